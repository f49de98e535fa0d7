"""Sampling derivations, conditioned on at most so many words, without rejection.

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

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.draw import Categories
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.seeding import uniforms


class Sampler:
    """Draws derivations of at most `longest` words; `table` is the grammar's `lengths(longest)`."""

    def __init__(self, grammar: Grammar, table: np.ndarray) -> None:
        self.longest, self.symbols = len(table) - 1, len(grammar.symbols)
        self.vocabulary = len(grammar.words)
        L, N = self.longest, self.symbols
        self._root = Categories(np.zeros((L + 1) * N, dtype=np.int64), (table * grammar.root).reshape(-1), 1)
        self._word = Categories.of_rows(grammar.emission)
        # A pair is a parent with a left child; `rest[w, pair]` sums over the right child.
        key = grammar.parent * N + grammar.left
        pairs, pair = np.unique(key, return_inverse=True)
        share = grammar.probability * table[:, grammar.right]
        rest = np.stack([np.bincount(pair, weights=row, minlength=len(pairs)) for row in share])
        self._left_of = torch.from_numpy(pairs % N)
        parent, left, group, weight, entry = pairs // N, pairs % N, [], [], []
        for w in range(2, L + 1):
            # Entries (u, pair); the group is the node (w, parent).
            weights = table[1:w][:, left] * rest[w - 1 : 0 : -1]
            u, q = np.nonzero(weights)
            group.append(w * N + parent[q])
            weight.append(weights[u, q])
            entry.append((u + 1) * len(pairs) + q)
        self._pairs = len(pairs)
        none = np.zeros(0, dtype=np.int64)
        self._split = Categories(
            np.concatenate([none, *group]), np.concatenate([none.astype(float), *weight]), (L + 1) * N
        )
        self._split_entry = torch.from_numpy(np.concatenate([none, *entry]))
        size, rule = np.nonzero(share)
        self._right = Categories(size * self._pairs + pair[rule], share[size, rule], (L + 1) * self._pairs)
        self._right_symbol = torch.from_numpy(grammar.right[rule])

    def draw(self, n: int, *, seed: int, start: int, pad: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids [n, L] padded with `pad`, and the derivations' symbols and widths int16 [n, 2, L]."""
        L, N = self.longest, self.symbols
        u = uniforms(seed, "pcfg", torch.arange(start, start + n), 3 * L)
        symbol = torch.zeros(n, 2, L, dtype=torch.int16)
        width = torch.zeros(n, 2, L, dtype=torch.int16)
        # No left child ends where a longest sentence ends, so that uniform is free for the root.
        first = self._root.draw(torch.zeros(n, dtype=torch.int64), u[:, 2 * L - 1])
        row = torch.arange(n)
        place, at, A, w = torch.zeros_like(row), torch.zeros_like(row), first % N, first // N
        ids = torch.full((n, L), pad, dtype=torch.int64)
        while True:
            # `place` is the node's slot in the two planes, `at` where its words start.
            symbol.view(n, -1)[row, place] = A.to(torch.int16)
            width.view(n, -1)[row, place] = w.to(torch.int16)
            uniform = u[row, place]
            leaf = w == 1
            ids[row[leaf], at[leaf]] = self._word.draw(A[leaf], uniform[leaf]) % self.vocabulary
            row, at, A, w, uniform = (x[~leaf] for x in (row, at, A, w, uniform))
            if len(row) == 0:
                return ids, symbol, width
            entry = self._split_entry[self._split.draw(w * N + A, uniform)]
            size, pair = entry // self._pairs, entry % self._pairs
            B, middle, rest = self._left_of[pair], at + size, w - size
            C = self._right_symbol[self._right.draw(rest * self._pairs + pair, u[row, 2 * L + middle - 1])]
            row = torch.cat([row, row])
            place = torch.cat([L + middle - 1, middle])
            at, A, w = torch.cat([at, middle]), torch.cat([B, C]), torch.cat([size, rest])
