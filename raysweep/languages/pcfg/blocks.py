"""Compiled charts of the dense engine: 32 sentences side by side, with blocks of sums in registers.

A cell holds the numbers of a span for all of them [32 / K, N, K], in vectors of 64 bytes of K sentences.  So
the products of `dense.py` become sums over vectors (`raysweep.compiled.tiles`) that are read in their order.
The cell of the words from i to before j stands in row i and column j - 1 of a square: spans that begin
together lie a cell apart, those that end together a row.  N is the number of symbols, with zeros up to a
multiple of 5.

A sentence's numbers do not depend on the others.  Working space: n^2 cells a chart, where half are used, and
N^2 numbers for each of the 32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysweep.compiled import kernel, tiles
from raysweep.compiled.simd import BYTES, aligned, peek, poke
from raysweep.languages.pcfg.grammar import Grammar

#: Sentences side by side.
SIDE = 32

#: Symbols of a block, and rules' weights that are applied at once to two vectors.
_BLOCK, _RULES = 5, 10

_pairs = tiles.tile(_BLOCK, _BLOCK)
_rules, _few_rules = tiles.tile(_RULES, 2, scalar=True), tiles.tile(_BLOCK, 2, scalar=True)
_one, _two, _three, _four, _five = (tiles.tile(_BLOCK, cuts, add=True) for cuts in range(1, _BLOCK + 1))


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
        """Return room for a number of each pair of symbols and each sentence [N * N * 32]."""
        return aligned(self.root.size**2 * SIDE, self.root.dtype)


def _blocks(weights: np.ndarray, whole: int) -> np.ndarray:
    """Return the first `whole` columns of [R, C] as [whole / 10, R, 10], and the others as [R, .] behind."""
    tens = weights[:, :whole].reshape(len(weights), -1, _RULES).transpose(1, 0, 2)
    return np.concatenate([tens.ravel(), weights[:, whole:].ravel()])


class Cells:
    """A chart of up to 32 sentences of n words."""

    def __init__(self, n: int, batch: int, tables: Tables) -> None:
        self.n, self.batch, self.tables = n, batch, tables
        self.symbols = tables.symbols
        self.numbers = aligned(n * n * SIDE * len(tables.root), tables.root.dtype)

    def get(self, w: int) -> Tensor:
        """Return the spans of width w [starts, B, symbols]."""
        starts, N = self.n - w + 1, len(self.tables.root)
        vectors = SIDE * self.numbers.itemsize // BYTES
        square = torch.from_numpy(self.numbers).view(self.n, self.n, vectors, N, -1)
        spans = square.diagonal(w - 1).permute(3, 0, 2, 1)
        return spans.reshape(starts, SIDE, N)[:, : self.batch, : self.symbols]

    #: Unlike torch's, a chart has both halves of an outside weight in one.
    sum = get


def fits(n: int, symbols: int, words: int, dtype: torch.dtype) -> bool:
    """Return whether blocks are fast on this processor, and 32 sentences take at most 128 MiB.

    A sentence of n words takes two charts, the pairs, and two vectors of all `words` for each position.
    """
    most = symbols + _BLOCK
    numbers = SIDE * (2 * n * n * most + most**2 + 2 * n * words)
    return tiles.FAST and numbers * dtype.itemsize <= 1 << 27


def inside(words: np.ndarray, tables: Tables) -> Cells:
    """Return the inside chart of sentences [B, n], B ≤ 32, V a hidden word."""
    batch, n = words.shape
    chart = Cells(n, batch, tables)
    # Lanes without a sentence repeat the last one.
    shown = np.pad(words, ((0, SIDE - batch), (0, 0)), mode="edge")
    shown = np.ascontiguousarray(shown.T, dtype=np.int64)
    _inside(shown, tables.leaves, tables.up, chart.numbers, tables.pairs())
    return chart


def outside(chart: Cells, down_to: int) -> Cells:
    """Return the outside chart of spans of at least `down_to` words."""
    out = Cells(chart.n, chart.batch, chart.tables)
    tables = chart.tables
    _outside(chart.n, tables.root, tables.down, chart.numbers, out.numbers, tables.pairs(), max(down_to, 1))
    return out


@kernel(error_model="numpy")
def _inside(words, leaves, up, chart, pairs):  # type: ignore[no-untyped-def]
    """Fill `chart` for words [n, 32]; `pairs` is working space."""
    n, N = len(words), leaves.shape[1]
    step, cell, row = BYTES // chart.itemsize, SIDE * N, SIDE * N * n
    part = N * step
    for t in range(n):
        for b in range(SIDE):
            word = peek(words, t * SIDE + b) * N
            to = t * (row + cell) + b // step * part + b % step
            for A in range(N):
                poke(chart, to + A * step, peek(leaves, word + A))
    for w in range(2, n + 1):
        for i in range(n - w + 1):
            left, right = i * (row + cell), (i + 1) * row + (i + w - 1) * cell
            for v in range(SIDE // step):
                x, y, to = left + v * part, right + v * part, v * part * N
                for B in range(0, part, _BLOCK * step):
                    for C in range(0, part, _BLOCK * step):
                        _pairs(
                            pairs, to + B * N + C, part, step, chart, x + B, cell, step,
                            chart, y + C, row, step, w - 1,
                        )  # fmt: skip
            to = left + (w - 1) * cell
            for v in range(0, SIDE // step, 2):
                x, y = to + v * part, v * part * N
                for A in range(0, N - _RULES + 1, _RULES):
                    u = A * N * N
                    _rules(chart, x + A * step, step, part, up, u, _RULES, 1, pairs, y, step, part * N, N * N)
                if N % _RULES > 0:
                    A = N - _BLOCK
                    u = A * N * N
                    _few_rules(
                        chart, x + A * step, step, part, up, u, _BLOCK, 1, pairs, y, step, part * N, N * N
                    )


@kernel(error_model="numpy")
def _outside(n, root, down, chart, out, pairs, down_to):  # type: ignore[no-untyped-def]
    """Fill `out`, given the inside chart; `pairs` is working space."""
    N = len(root)
    step, cell, row = BYTES // chart.itemsize, SIDE * N, SIDE * N * n
    part, whole = N * step, N * N // _RULES * _RULES
    for i in range(n):
        for k in range(i * (row + cell), (i + 1) * row):
            poke(out, k, 0)
    for v in range(SIDE // step):
        for A in range(N):
            for k in range(step):
                poke(out, (n - 1) * cell + v * part + A * step + k, root[A])
    for w in range(n, max(down_to, 1), -1):
        for i in range(n - w + 1):
            left, right = i * (row + cell), (i + 1) * row + (i + w - 1) * cell
            above = left + (w - 1) * cell
            for v in range(0, SIDE // step, 2):
                to, y = v * part * N, above + v * part
                for k in range(0, whole, _RULES):
                    x = to + k * step
                    _rules(pairs, x, step, part * N, down, k * N, _RULES, 1, out, y, step, part, N)
                if whole < N * N:
                    x = to + whole * step
                    _few_rules(pairs, x, step, part * N, down, whole * N, _BLOCK, 1, out, y, step, part, N)
            for v in range(SIDE // step):
                x, y, p = left + v * part, right + v * part, v * part * N
                for B in range(0, part, _BLOCK * step):
                    q = p + B * N
                    _shares(w - 1, out, x + B, step, cell, pairs, q, step, part, chart, y, step, row, N)
                for C in range(0, part, _BLOCK * step):
                    q = p + C
                    _shares(w - 1, out, y + C, step, row, pairs, q, part, step, chart, x, step, cell, N)


@kernel(error_model="numpy")
def _shares(cuts, out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count):  # type: ignore[no-untyped-def]
    """Do a loop that adds, for any number of columns."""
    done = 0
    while done < cuts:
        rest = cuts - done
        if not tiles.WHOLE:
            # Parts have two columns, and of five columns one part would have pieces of two vectors.
            columns = min(rest, 4)
        elif 5 < rest < 8:
            # Three and three are faster than five and one, whose last sums would wait for each other.
            columns = rest - 3
        else:
            columns = min(rest, 5)
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
        o, q, done = o + columns * o_column, q + columns * y_column, done + columns
