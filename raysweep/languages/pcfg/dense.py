"""The dense engine: all symbols over all spans, as matrix products.

On a processor with vectors of 32 or 64 bytes, many sentences side by side have compiled charts (`blocks.py`),
on one thread.  The charts here are torch's, for few sentences, for more than two threads, and for GPUs.

Both charts are kept twice: by start and width, and by end and width downwards,

    L[i, w, A] = R[i + w, -w, A] = I_w[A, i]

so that the cuts u = 1 .. w-1 of all spans of a width, of all sentences, are one batch of products of strided
matrices, P[B, C] = sum_u L[i, u, B] R[i + w, u - w, C], and the rules one product of all P with the table
p(A -> B C) as an [N^2, N] matrix.  The outside pass reads the same matrices the other way round.

Cost of a sentence: `engine.dense_flops`; rules take 2 N^3 multiply-adds a span and products 3 N^2 a cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.pcfg import blocks
from raysweep.languages.pcfg.engine import TorchEngine, dense_flops
from raysweep.languages.pcfg.grammar import Grammar

_BLOCK_BYTES = {"cpu": 2 << 20, "cuda": 1 << 30}


class _Chart:
    """A chart [span, batch, symbol], by start and by end; slots of width count from the narrowest."""

    def __init__(self, n: int, batch: int, symbols: int, like: Tensor) -> None:
        self.n, self.batch, self.symbols = n, batch, symbols
        self.by_start = like.new_zeros(n, batch, n, symbols)
        self.by_end = like.new_zeros(n, batch, n, symbols)

    def lefts(self, w: int) -> Tensor:
        """Spans of widths 1 .. w-1 that begin where the spans of width w begin [starts * B, w-1, N]."""
        starts = self.n - w + 1
        return self.by_start[:starts].view(starts * self.batch, self.n, self.symbols)[:, : w - 1]

    def rights(self, w: int) -> Tensor:
        """Spans of widths w-1 .. 1 that end where the spans of width w end [starts * B, w-1, N]."""
        starts = self.n - w + 1
        return self.by_end[w - 1 :].view(starts * self.batch, self.n, self.symbols)[:, self.n - w + 1 :]

    def set(self, w: int, cells: Tensor) -> None:
        """Write the spans of width w [starts, B, N]."""
        self.by_start[: self.n - w + 1, :, w - 1] = cells
        self.by_end[w - 1 :, :, self.n - w] = cells

    def get(self, w: int) -> Tensor:
        """Return the spans of width w [starts, B, N], as written by start."""
        return self.by_start[: self.n - w + 1, :, w - 1]

    def sum(self, w: int) -> Tensor:
        """Return the spans of width w [starts, B, N], both halves added."""
        return self.get(w) + self.by_end[w - 1 :, :, self.n - w]


class DenseEngine(TorchEngine):
    """Charts by matrix products over all symbols.

    Reproducible for the same batch on the same device; the last place of a sentence's numbers may be rounded
    differently in a batch of another size.
    """

    name = "dense"

    def __init__(self, grammar: Grammar, longest: int, device: torch.device) -> None:
        super().__init__(grammar, longest, device)
        self._rules: dict[torch.dtype, Tensor] = {}
        self._tables_of_blocks: dict[torch.dtype, blocks.Tables] = {}
        #: Spans whose pairs are held at once: on a CPU they stay in the cache between two products.
        self._block = max(1, _BLOCK_BYTES[device.type] // (4 * len(grammar.symbols) ** 2))

    def flops(self, n: int) -> tuple[int, int]:
        return dense_flops(len(self.grammar.symbols), n)

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        symbols = len(self.grammar.symbols)
        return (4 * n * n * symbols + 2 * (n - 1) * symbols**2) * dtype.itemsize

    def leaf_weights(self, words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        chart = self._inside(words, dtype)
        n, root = chart.n, self.table("root", dtype)
        weights = self._outside(chart).sum(1)
        every = torch.arange(chart.symbols, device=words.device)
        return weights.transpose(0, 1), every, chart.get(n)[0] @ root

    def tops(self, words: Tensor, everything: bool = False) -> Tensor:
        dtype = torch.float64
        parts = [
            self._inside(words[part], dtype).get(words.shape[1])[0] for part in self._passes(words, dtype)
        ]
        out = torch.cat([words.new_zeros(0, len(self.grammar.symbols), dtype=dtype), *parts])
        return out if everything else out.masked_fill_(self.table("root", dtype) == 0, 0.0)

    def prefixes(self, words: Tensor, w: int) -> tuple[Tensor, Tensor]:
        dtype, n = torch.float64, words.shape[1]
        out = words.new_empty(len(words), len(self.grammar.symbols), dtype=dtype)
        total = words.new_empty(len(words), dtype=dtype)
        for part in self._passes(words, dtype):
            chart = self._inside(words[part], dtype)
            total[part] = chart.get(n)[0] @ self.table("root", dtype)
            out[part] = chart.get(w)[0] * self._outside(chart, down_to=w).sum(w)[0]
        return out, total

    def _passes(self, words: Tensor, dtype: torch.dtype) -> Iterator[slice]:
        side, first = blocks.SIDE, 0
        while self._side_by_side(words[first : first + side], dtype):
            yield slice(first, min(first + side, len(words)))
            first += side
        for part in super()._passes(words[first:], dtype):
            yield slice(first + part.start, first + part.stop)

    def _side_by_side(self, words: Tensor, dtype: torch.dtype) -> bool:
        """Return whether these sentences have compiled charts.

        These take as long for one sentence as for `blocks.SIDE`.  Torch uses all its threads, so it is faster
        with many.
        """
        batch, n = words.shape
        if self.device.type != "cpu" or torch.get_num_threads() > 2:
            return False
        symbols, size = self.grammar.emission.shape
        return blocks.SIDE // 2 < batch <= blocks.SIDE and blocks.fits(n, symbols, size, dtype)

    def _table(self, dtype: torch.dtype) -> Tensor:
        """Return p(A -> B C) as [N^2, N], row B N + C."""
        if dtype not in self._rules:
            grammar, N = self.grammar, len(self.grammar.symbols)
            at = torch.from_numpy((grammar.left * N + grammar.right) * N + grammar.parent)
            table = torch.zeros(N**3, dtype=torch.float64)
            table.index_add_(0, at, torch.from_numpy(grammar.probability))
            self._rules[dtype] = table.view(N * N, N).to(self.device, dtype)
        return self._rules[dtype]

    def _inside(self, words: Tensor, dtype: torch.dtype) -> _Chart | blocks.Cells:
        if self._side_by_side(words, dtype):
            if dtype not in self._tables_of_blocks:
                numbers = np.dtype(np.float32 if dtype == torch.float32 else np.float64)
                self._tables_of_blocks[dtype] = blocks.Tables.of(self.grammar, self.leaves, numbers)
            return blocks.inside(words.numpy(), self._tables_of_blocks[dtype])
        batch, n = words.shape
        leaves, rules = self.table("leaves", dtype), self._table(dtype)
        chart = _Chart(n, batch, len(leaves), leaves)
        chart.set(1, leaves.T[words.T])
        N = chart.symbols
        pairs = rules.new_empty(min(self._block, batch * n), N, N)
        for w in range(2, n + 1):
            left, right = chart.lefts(w), chart.rights(w)
            cells = rules.new_empty(len(left), N)
            for first in range(0, len(left), self._block):
                part = slice(first, first + self._block)
                p = pairs[: len(left[part])]
                torch.bmm(left[part].transpose(1, 2), right[part], out=p)
                torch.mm(p.view(len(p), -1), rules, out=cells[part])
            chart.set(w, cells.view(n - w + 1, batch, N))
        return chart

    def _outside(self, chart: _Chart | blocks.Cells, down_to: int = 1) -> _Chart | blocks.Cells:
        """Return the outside chart: at each span two halves, from parents that begin and that end with it."""
        if isinstance(chart, blocks.Cells):
            return blocks.outside(chart, down_to)
        n, N = chart.n, chart.symbols
        rules = self._table(chart.by_start.dtype)
        out = _Chart(n, chart.batch, N, rules)
        out.by_start[0, :, n - 1] = self.table("root", rules.dtype)
        pairs = rules.new_empty(min(self._block, chart.batch * n), N, N)
        shares = rules.new_empty(len(pairs) * n * N)
        for w in range(n, max(down_to, 1), -1):
            above = out.sum(w).view(-1, N)
            left, right = chart.lefts(w), chart.rights(w)
            out_left, out_right = out.lefts(w), out.rights(w)
            for first in range(0, len(left), self._block):
                part = slice(first, first + self._block)
                p = pairs[: len(left[part])]
                torch.mm(above[part], rules.T, out=p.view(len(p), -1))
                # Products of whole batches are fast, sums of them into strided ones are not: two steps.
                share = shares[: p.shape[0] * (w - 1) * N].view(len(p), w - 1, N)
                out_left[part] += torch.bmm(right[part], p.transpose(1, 2), out=share)
                out_right[part] += torch.bmm(left[part], p, out=share)
        return out
