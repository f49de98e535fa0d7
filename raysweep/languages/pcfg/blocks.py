"""Compiled charts of the dense engine: some sentences side by side, with blocks of sums in registers.

A vector of a chart holds one number for each of K sentences, so the products of `dense.py` become sums over
vectors (`raysweep.compiled.tiles`) that are read in their order.  A chart is [SIDE / K, n, row]: the cell of
the words from i to before j stands in row i and column j - 1 of a square, and holds N vectors.  Spans that
begin together lie a cell apart, those that end together a row.  N is the number of symbols, with zeros up to
a multiple of 5.

A sentence's numbers do not depend on the others.  Working space: n^2 cells a chart, where half are used, up
to 4 KiB more for each row, and N^2 numbers for each sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysweep.compiled import kernel, tiles
from raysweep.compiled.simd import aligned, itemsize, peek, poke
from raysweep.compiled.tiles import WHOLE, tile
from raysweep.languages.pcfg.grammar import Grammar

#: Bytes of a vector: what a register holds on the processors that these charts are for (`fits`).  So a loop
#: uses all of each line of the cache that it reads.
VECTOR = 64 if WHOLE else 32

#: Sentences side by side: two vectors of float32, to which a rule's weight is applied at once.  Pairs of
#: symbols of more sentences would leave little room in a core's own cache.
SIDE = 2 * VECTOR // 4

#: Symbols of a block, and rules' weights that are applied at once to two vectors.
_BLOCK, _RULES = 5, 10
#: Columns of a block of products P[B, C].  With vectors of 32 bytes, ten are five loops of 5 × 2 sums.
_ACROSS = 5 if WHOLE else 10

#: Bytes after which addresses share a place in the nearest cache.
_CACHE = 4096

_pairs, _few_pairs = tile(_BLOCK, _ACROSS, size=VECTOR), tile(_BLOCK, _BLOCK, size=VECTOR)
_rules, _few_rules = (tile(height, 2, scalar=True, size=VECTOR) for height in (_RULES, _BLOCK))
_one, _two, _three, _four, _five = (
    tile(_BLOCK, cuts, add=True, size=VECTOR) for cuts in range(1, _BLOCK + 1)
)


@dataclass(frozen=True)
class Tables:
    """A grammar's numbers in one dtype: leaves [V+1, N], root [N], and p(A -> B C) twice.

    `up` is [N / 10, N^2, 10], ten symbols A for each pair B C, and where five symbols remain, [N^2, 5] of
    these behind.  `down` has the same numbers as [N^2 / 10, N, 10], ten pairs for each A, and where five
    pairs remain, [N, 5] of these behind.  So a block's rules are read in their order.
    """

    symbols: int
    leaves: np.ndarray
    root: np.ndarray
    up: np.ndarray
    down: np.ndarray

    @classmethod
    def of(cls, grammar: Grammar, leaves: np.ndarray, dtype: np.dtype) -> Tables:
        """Return the tables of a grammar whose scaled leaves are `leaves` [symbols, V+1]."""
        symbols = len(grammar.symbols)
        N = -(-symbols // _BLOCK) * _BLOCK
        up = np.zeros((N * N, N))
        np.add.at(up, (grammar.left * N + grammar.right, grammar.parent), grammar.probability)
        up = up.astype(dtype)
        parents, pairs = N // _RULES * _RULES, N * N // _RULES * _RULES
        return cls(
            symbols=symbols,
            leaves=np.ascontiguousarray(np.pad(leaves, ((0, N - symbols), (0, 0))).T, dtype=dtype),
            root=np.pad(grammar.root, (0, N - symbols)).astype(dtype),
            up=_blocks(up, parents),
            down=_blocks(up.T, pairs),
        )

    def pairs(self) -> np.ndarray:
        """Return room for a number of each pair of symbols and each sentence [N * N * SIDE]."""
        return aligned(self.root.size**2 * SIDE, self.root.dtype)


def _blocks(weights: np.ndarray, whole: int) -> np.ndarray:
    """Return the first `whole` columns of [R, C] as [whole / 10, R, 10], and the others as [R, .] behind."""
    tens = weights[:, :whole].reshape(len(weights), -1, _RULES).transpose(1, 0, 2)
    return np.concatenate([tens.ravel(), weights[:, whole:].ravel()])


class Cells:
    """A chart of up to SIDE sentences of n words."""

    def __init__(self, n: int, batch: int, tables: Tables) -> None:
        self.n, self.batch, self.tables = n, batch, tables
        self.symbols = tables.symbols
        kind = tables.root.dtype
        self.row = _row(n, len(tables.root), kind.itemsize)
        self.numbers = aligned(SIDE * kind.itemsize // VECTOR * n * self.row, kind)

    def get(self, w: int) -> Tensor:
        """Return the spans of width w [starts, B, symbols]."""
        starts, N, step = self.n - w + 1, len(self.tables.root), VECTOR // self.numbers.itemsize
        rows = torch.from_numpy(self.numbers).view(-1, self.n, self.row)
        square = rows[:, :, : self.n * N * step].unflatten(2, (self.n, N, step))
        spans = square.diagonal(w - 1, dim1=1, dim2=2).permute(3, 0, 2, 1)
        return spans.reshape(starts, SIDE, N)[:, : self.batch, : self.symbols]

    #: Unlike torch's, a chart has both halves of an outside weight in one.
    sum = get


def _row(n: int, symbols: int, size: int) -> int:
    """Return how many numbers, of `size` bytes, a row holds: those of n cells, and some more.

    Cells that are a row apart follow each other in the places of the nearest cache, so that they share few.
    """
    cell = symbols * VECTOR
    return (-(-(n - 1) * cell // _CACHE) * _CACHE + cell) // size


def fits(n: int, symbols: int, words: int, dtype: torch.dtype) -> bool:
    """Return whether blocks are fast on this processor, and SIDE sentences take at most 128 MiB.

    A sentence of n words takes two charts, the pairs, and two vectors of all `words` for each position.
    """
    most, size = symbols + _BLOCK, dtype.itemsize
    chart = SIDE * size // VECTOR * n * _row(n, most, size)
    return tiles.FAST and (2 * chart + SIDE * (most**2 + 2 * n * words)) * size <= 1 << 27


def inside(words: np.ndarray, tables: Tables) -> Cells:
    """Return the inside chart of sentences [B, n], B ≤ SIDE, V a hidden word."""
    batch, n = words.shape
    chart = Cells(n, batch, tables)
    # Lanes without a sentence repeat the last one.
    shown = np.pad(words, ((0, SIDE - batch), (0, 0)), mode="edge")
    shown = np.ascontiguousarray(shown.T, dtype=np.int64)
    _inside(shown, tables.leaves, tables.up, chart.numbers, chart.row, tables.pairs())
    return chart


def outside(chart: Cells, down_to: int) -> Cells:
    """Return the outside chart of spans of at least `down_to` words."""
    out = Cells(chart.n, chart.batch, chart.tables)
    tables, last = chart.tables, max(down_to, 1)
    _outside(chart.n, tables.root, tables.down, chart.numbers, chart.row, out.numbers, tables.pairs(), last)
    return out


@kernel(error_model="numpy")
def _inside(words, leaves, up, chart, row, pairs):  # type: ignore[no-untyped-def]
    """Fill `chart`, whose rows hold `row` numbers, for words [n, SIDE]; `pairs` is working space."""
    n, N = len(words), leaves.shape[1]
    step = VECTOR // itemsize(chart)
    part, own, across = N * step, n * row, _ACROSS * step
    for t in range(n):
        for b in range(SIDE):
            word = peek(words, t * SIDE + b) * N
            to = b // step * own + t * (row + part) + b % step
            for A in range(N):
                poke(chart, to + A * step, peek(leaves, word + A))
    for w in range(2, n + 1):
        for i in range(n - w + 1):
            left, right = i * (row + part), (i + 1) * row + (i + w - 1) * part
            for v in range(SIDE // step):
                x, y, to = left + v * own, right + v * own, v * part * N
                for B in range(0, part, _BLOCK * step):
                    for C in range(0, part - across + 1, across):
                        _pairs(
                            pairs, to + B * N + C, part, step, chart, x + B, part, step,
                            chart, y + C, row, step, w - 1,
                        )  # fmt: skip
                    if part % across > 0:
                        C = part - _BLOCK * step
                        _few_pairs(
                            pairs, to + B * N + C, part, step, chart, x + B, part, step,
                            chart, y + C, row, step, w - 1,
                        )  # fmt: skip
            to = left + (w - 1) * part
            for v in range(0, SIDE // step, 2):
                x, y = to + v * own, v * part * N
                for A in range(0, N - _RULES + 1, _RULES):
                    u = A * N * N
                    _rules(chart, x + A * step, step, own, up, u, _RULES, 1, pairs, y, step, part * N, N * N)
                if N % _RULES > 0:
                    A = N - _BLOCK
                    u = A * N * N
                    _few_rules(
                        chart, x + A * step, step, own, up, u, _BLOCK, 1, pairs, y, step, part * N, N * N
                    )


@kernel(error_model="numpy")
def _outside(n, root, down, chart, row, out, pairs, down_to):  # type: ignore[no-untyped-def]
    """Fill `out`, given the inside chart; `pairs` is working space."""
    N = len(root)
    step = VECTOR // itemsize(chart)
    part, own, whole = N * step, n * row, N * N // _RULES * _RULES
    for v in range(SIDE // step):
        for i in range(n):
            for k in range(v * own + i * (row + part), v * own + i * row + n * part):
                poke(out, k, 0)
        for A in range(N):
            for k in range(step):
                poke(out, v * own + (n - 1) * part + A * step + k, root[A])
    for w in range(n, max(down_to, 1), -1):
        for i in range(n - w + 1):
            left, right = i * (row + part), (i + 1) * row + (i + w - 1) * part
            above = left + (w - 1) * part
            for v in range(0, SIDE // step, 2):
                to, y = v * part * N, above + v * own
                for k in range(0, whole, _RULES):
                    x = to + k * step
                    _rules(pairs, x, step, part * N, down, k * N, _RULES, 1, out, y, step, own, N)
                if whole < N * N:
                    x = to + whole * step
                    _few_rules(pairs, x, step, part * N, down, whole * N, _BLOCK, 1, out, y, step, own, N)
            for v in range(SIDE // step):
                x, y, p = left + v * own, right + v * own, v * part * N
                for B in range(0, part, _BLOCK * step):
                    q = p + B * N
                    _shares(w - 1, out, x + B, step, part, pairs, q, step, part, chart, y, step, row, N)
                for C in range(0, part, _BLOCK * step):
                    q = p + C
                    _shares(w - 1, out, y + C, step, row, pairs, q, part, step, chart, x, step, part, N)


@kernel(error_model="numpy", forceinline=True)
def _shares(cuts, out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count):  # type: ignore[no-untyped-def]
    """Do a loop that adds, for any number of columns."""
    done = 0
    while done < cuts:
        rest = cuts - done
        if WHOLE:
            # Three and three are faster than five and one, whose last sums would wait for each other.
            columns = rest - 3 if 5 < rest < 8 else min(rest, 5)
            if columns == 5:
                _five(out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count)
            elif columns == 4:
                _four(out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count)
            elif columns == 3:
                _three(out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count)
            elif columns == 2:
                _two(out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count)
            else:
                _one(out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count)
        else:
            # Registers hold the sums of two columns.
            columns = min(rest, 2)
            if columns == 2:
                _two(out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count)
            else:
                _one(out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count)
        o, q, done = o + columns * o_column, q + columns * y_column, done + columns
