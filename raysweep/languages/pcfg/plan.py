"""The plan of an inside-outside pass over sentences of n words, made once per grammar and length.

Symbol A is *active* at width w where it derives w words in some sentence of n words below one of the symbols
wanted at the top; everything else is zero and is neither stored nor computed.  The rules used at a width are
held as their distinct pairs (B, C), sorted so that pairs of the same feasible splits u | w-u are contiguous:

    P[q] = sum_u I_u[B_q] I_{w-u}[C_q],      I_w = R P,      R[A, q] = p(A -> B_q C_q)

A plan is plain numpy and knows neither device nor dtype.  `chart.py` executes it with torch operations over
all starts of a width at once; `instructions.py` turns it into a flat list for compiled kernels, which visits
only the cells that a sentence of n words can use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raysweep.languages.pcfg.grammar import Grammar


@dataclass(frozen=True)
class Split:
    """Pairs `first:last` of a width may be cut after `u` words."""

    u: int
    first: int
    last: int


@dataclass(frozen=True)
class Width:
    """Work at width `w`: its pairs `left`, `right` [Q] (symbols), its rules `parent` (symbol), `pair` and
    `probability` [R], sorted by parent and pair, and the splits."""

    w: int
    left: np.ndarray
    right: np.ndarray
    parent: np.ndarray
    pair: np.ndarray
    probability: np.ndarray
    splits: tuple[Split, ...]

    @property
    def terms(self) -> int:
        """Products of one start: pairs times their splits."""
        return sum(split.last - split.first for split in self.splits)


@dataclass(frozen=True)
class Plan:
    """A pass over sentences of `n` words: boolean `active` [n+1, N], the symbols stored at width w."""

    n: int
    active: np.ndarray
    widths: tuple[Width, ...]

    @property
    def elements(self) -> int:
        """Numbers held per sentence by one pass over all starts: both charts, and the widest row of pairs."""
        cells = int((self.active.sum(axis=1) * (self.n + 1 - np.arange(self.n + 1)))[1:].sum())
        return 2 * cells + 3 * max(
            (len(width.left) * (self.n - width.w + 1) for width in self.widths), default=0
        )

    @property
    def flops(self) -> tuple[int, int]:
        """Multiply-adds times two per sentence, over all starts, of the inside pass, and of both passes.

        A product costs one multiply-add inside and two outside, a rule one in each.
        """
        starts = [self.n - width.w + 1 for width in self.widths]
        terms = sum(width.terms * count for width, count in zip(self.widths, starts, strict=True))
        rules = sum(len(width.parent) * count for width, count in zip(self.widths, starts, strict=True))
        return 2 * (terms + rules), 2 * (3 * terms + 2 * rules)


def feasible(grammar: Grammar, longest: int) -> np.ndarray:
    """Return boolean [longest+1, N]: symbol A derives some string of w words."""
    N = len(grammar.symbols)
    live = grammar.probability > 0
    a, b, c = grammar.parent[live], grammar.left[live], grammar.right[live]
    can = np.zeros((longest + 1, N), dtype=bool)
    can[1:2] = grammar.emission.any(axis=1)
    for w in range(2, longest + 1):
        both = (can[1:w, b] & can[w - 1 : 0 : -1, c]).any(axis=0)
        can[w, a[both]] = True
    return can


def make_plan(grammar: Grammar, can: np.ndarray, n: int, top: np.ndarray) -> Plan | None:
    """Plan a pass with the symbols `top` (boolean [N]) over n words; None where none of them derives n words.

    `can` is `feasible` for at least n words.
    """
    N = len(grammar.symbols)
    live = grammar.probability > 0
    a, b, c, p = (x[live] for x in (grammar.parent, grammar.left, grammar.right, grammar.probability))
    active = np.zeros((n + 1, N), dtype=bool)
    active[n] = top & can[n]
    if not active[n].any():
        return None
    for w in range(n, 1, -1):
        mine = active[w][a]
        x, y = b[mine], c[mine]
        for u in range(1, w):
            both = can[u][x] & can[w - u][y]
            active[u, x[both]] = True
            active[w - u, y[both]] = True
    widths = []
    for w in range(2, n + 1):
        if not active[w].any():
            continue
        mine = active[w][a]
        pairs, pair = np.unique(b[mine] * N + c[mine], return_inverse=True)
        left, right = pairs // N, pairs % N
        cuts = np.arange(1, w)
        fits: np.ndarray = np.logical_and(can[cuts][:, left], can[w - cuts][:, right])
        # Pairs of one signature of feasible cuts stand together, so that a cut takes contiguous rows.
        kinds, kind = np.unique(fits, axis=1, return_inverse=True)
        kind = kind.reshape(-1)
        order = np.argsort(kind, kind="stable")
        possible = np.asarray(kinds.any(axis=0))
        order = order[possible[kind[order]]]
        rank = np.full(len(pairs), -1)
        rank[order] = np.arange(len(order))
        used = rank[pair] >= 0
        parent, place, weight = a[mine][used], rank[pair[used]], p[mine][used]
        # The same rule may be listed more than once.
        rule, which = np.unique(parent * max(len(order), 1) + place, return_inverse=True)
        splits = []
        for k in range(kinds.shape[1]):
            block = np.nonzero(kind[order] == k)[0]
            splits += [Split(int(u), int(block[0]), int(block[-1]) + 1) for u in cuts[kinds[:, k]]]
        widths.append(
            Width(
                w,
                left[order],
                right[order],
                rule // max(len(order), 1),
                rule % max(len(order), 1),
                np.bincount(which.reshape(-1), weights=weight, minlength=len(rule)),
                tuple(splits),
            )
        )
    return Plan(n, active, tuple(widths))
