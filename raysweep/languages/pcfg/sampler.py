"""Samples of derivations with at most a given number of words, without rejection.

With g[w, A] the probability that A derives exactly w words (`Grammar.lengths`), a sentence is drawn top down:

    (A, n) at the root            in proportion to  root[A] g[n, A]
    (B, u) from a node (A, w)     in proportion to  sum_C p(A -> B C) g[u, B] g[w-u, C]
    C given A, B and w-u          in proportion to  p(A -> B C) g[w-u, C]
    a word from a node (A, 1)     in proportion to  emission[A, c]

Every node but the root is either the widest node that starts where it starts (a right child) or the widest
one that ends where it ends (a left child), so a node's uniforms are keyed by that place: a sentence needs at
most 3 L of them, in whatever order its nodes are expanded, and all sentences are expanded together.

A derivation is kept as its nodes' symbols and widths in that layout: int16 [B, 2, L], plane 0 by start
(right children, and the root at 0), plane 1 by end (left children), width 0 where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.draw import Categories
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.seeding import uniforms

if TYPE_CHECKING:
    from raysweep.languages.pcfg.derive import Choices

CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Tables:
    """Distributions and what their entries mean; a pair is a parent with a left child, P of them.

    `root` has entries w * N + A.  `split` has a distribution for each w * N + A; `split_entry` of an entry is
    u * P + pair, and the pair's left child is `left_of`.  `right` has a distribution for each width * P +
    pair, `right_symbol` of an entry is C.  `word` has a distribution for each A and entries A * V + c.
    """

    root: Categories
    split: Categories
    split_entry: Tensor
    left_of: Tensor
    right: Categories
    right_symbol: Tensor
    word: Categories

    def to(self, device: torch.device) -> _Tables:
        return _Tables(*(getattr(self, field.name).to(device) for field in fields(self)))


class Sampler:
    """Draws derivations of at most `longest` words; `table` is the grammar's `lengths(longest)`."""

    def __init__(self, grammar: Grammar, table: np.ndarray) -> None:
        self.longest, self.symbols = len(table) - 1, len(grammar.symbols)
        self.vocabulary = len(grammar.words)
        L, N = self.longest, self.symbols
        pairs, pair = np.unique(grammar.parent * N + grammar.left, return_inverse=True)
        P = self._pairs = len(pairs)
        # `rest[w, pair]` sums over the right child.
        share = grammar.probability * table[:, grammar.right]
        rest = np.stack([np.bincount(pair, weights=row, minlength=P) for row in share])
        parent, left = pairs // N, pairs % N
        group, weight, entry = ([np.zeros(0, dtype=kind)] for kind in (np.int64, np.float64, np.int64))
        for w in range(2, L + 1):
            weights = table[1:w][:, left] * rest[w - 1 : 0 : -1]
            u, q = np.nonzero(weights)
            group.append(w * N + parent[q])
            weight.append(weights[u, q])
            entry.append((u + 1) * P + q)
        size, rule = np.nonzero(share)
        self._tables = {
            CPU: _Tables(
                root=Categories(np.zeros((L + 1) * N, dtype=np.int64), (table * grammar.root).reshape(-1), 1),
                split=Categories(np.concatenate(group), np.concatenate(weight), (L + 1) * N),
                split_entry=torch.from_numpy(np.concatenate(entry)),
                left_of=torch.from_numpy(left),
                right=Categories(size * P + pair[rule], share[size, rule], (L + 1) * P),
                right_symbol=torch.from_numpy(grammar.right[rule]),
                word=Categories.of_rows(grammar.emission),
            )
        }

    def _on(self, device: torch.device) -> _Tables:
        if device not in self._tables:
            self._tables[device] = self._tables[CPU].to(device)
        return self._tables[device]

    def draw(
        self,
        numbers: Tensor,
        *,
        seed: int,
        pad: int,
        derivations: bool = True,
        device: torch.device = CPU,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return sentences `numbers` [n]: ids [n, L] padded with `pad`, and their derivations.

        Symbols and widths of these are int16 [n, 2, L]; without `derivations`, they are [0, 2, L].  The
        result is the same on every device: a compiled kernel draws on a CPU; other devices expand
        all sentences together.
        """
        if device.type != "cpu":
            ids, symbol, width = self.expand(numbers, seed=seed, pad=pad, device=device)
            return (ids, symbol, width) if derivations else (ids, symbol[:0], width[:0])
        from raysweep.compiled.philox import key
        from raysweep.languages.pcfg import derive

        n, L = len(numbers), self.longest
        kept = n if derivations else 0
        ids = torch.full((n, L), pad, dtype=torch.int64)
        symbol, width = (torch.zeros(kept, 2, L, dtype=torch.int16) for _ in range(2))
        derive.derivations(
            self._choices,
            key(seed, "pcfg"),
            numbers.contiguous().numpy(),
            ids.numpy(),
            symbol.view(kept, 2 * L).numpy(),
            width.view(kept, 2 * L).numpy(),
        )
        return ids, symbol, width

    @cached_property
    def _choices(self) -> Choices:
        from raysweep.languages.guide import guide
        from raysweep.languages.pcfg.derive import Choices

        tables = self._tables[CPU]
        split, right = guide(tables.split), guide(tables.right)
        split_entry = tables.split_entry.numpy()[split.entry]
        return Choices(
            root=guide(tables.root),
            split=split,
            size=(split_entry // self._pairs).astype(np.int32),
            pair=(split_entry % self._pairs).astype(np.int32),
            left_of=tables.left_of.numpy(),
            right=right,
            right_symbol=tables.right_symbol.numpy()[right.entry].astype(np.int32),
            word=guide(tables.word),
            symbols=self.symbols,
            vocabulary=self.vocabulary,
        )

    def expand(
        self, numbers: Tensor, *, seed: int, pad: int, device: torch.device = CPU
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result of `draw`, with a few tensor operations per level of all derivations."""
        n, L, N = len(numbers), self.longest, self.symbols
        tables = self._on(device)
        row = torch.arange(n, device=device)
        u = uniforms(seed, "pcfg", numbers.to(device), 3 * L)
        symbol = torch.zeros(n, 2, L, dtype=torch.int16, device=device)
        width = torch.zeros(n, 2, L, dtype=torch.int16, device=device)
        # No left child ends where a longest sentence ends, so that uniform is free for the root.
        first = tables.root.draw(torch.zeros_like(row), u[:, 2 * L - 1])
        place, at, A, w = torch.zeros_like(row), torch.zeros_like(row), first % N, first // N
        ids = torch.full((n, L), pad, dtype=torch.int64, device=device)
        while True:
            # `place` is the node's slot in the two planes, `at` where its words start.
            symbol.view(n, 2 * L)[row, place] = A.to(torch.int16)
            width.view(n, 2 * L)[row, place] = w.to(torch.int16)
            uniform = u[row, place]
            leaf = w == 1
            ids[row[leaf], at[leaf]] = tables.word.draw(A[leaf], uniform[leaf]) % self.vocabulary
            row, at, A, w, uniform = (x[~leaf] for x in (row, at, A, w, uniform))
            if len(row) == 0:
                return ids, symbol, width
            entry = tables.split_entry[tables.split.draw(w * N + A, uniform)]
            size, pair = entry // self._pairs, entry % self._pairs
            B, middle, rest = tables.left_of[pair], at + size, w - size
            C = tables.right_symbol[tables.right.draw(rest * self._pairs + pair, u[row, 2 * L + middle - 1])]
            row = torch.cat([row, row])
            place = torch.cat([L + middle - 1, middle])
            at, A, w = torch.cat([at, middle]), torch.cat([B, C]), torch.cat([size, rest])
