"""A plan as flat arrays of cells to multiply and add, for compiled kernels.

A cell is a symbol over a span; symbol A over the w words from i has the number `base[w, A] + i`.  A *block*
is a width with the starts at which the same symbols can be used in a sentence of n words.  It holds the
pairs, terms and rules of one start, and a kernel adds the start to every cell number:

    P[q]    = sum over the terms k of pair q      I[left[k] + i] I[right[k] + i]
    I[a, i] = sum over the rules r of parent a    probability[r] P[pair[r]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raysweep.languages.pcfg.plan import Plan, Width


class Code(NamedTuple):
    """The tables that a kernel reads: blocks K, pairs Q, terms M, parents A, rules R; leaves and tops.

    Arrays `x_of` delimit the runs of x.  All are uint32, save `probability`, `share` and `programs`.  Tables
    of P programs may lie one behind another (`joined`).
    """

    #: [K+1] runs of first words of spans.
    starts_of: np.ndarray
    starts: np.ndarray
    #: [K+1] runs of pairs, [Q+1] runs of their terms `left`, `right` [M].
    pairs_of: np.ndarray
    terms_of: np.ndarray
    left: np.ndarray
    right: np.ndarray
    #: [K+1] runs of `parents` [A], [A+1] runs of their rules `pair` (counted from the block's first), [R].
    parents_of: np.ndarray
    parents: np.ndarray
    rules_of: np.ndarray
    pair: np.ndarray
    probability: np.ndarray
    #: The same rules by pair: [Q+1] runs of parents' cells `above` and probabilities `share` [R].
    above_of: np.ndarray
    above: np.ndarray
    share: np.ndarray
    #: [n+1] runs of each position's reached leaves: cells and symbols.
    leaves_of: np.ndarray
    leaf_cells: np.ndarray
    leaf_symbols: np.ndarray
    #: Cells and symbols over all n words, and all reached cells below them.
    top_cells: np.ndarray
    top_symbols: np.ndarray
    reached: np.ndarray
    #: int64 [P+1, 4]: where the blocks, positions, tops and reached cells of each program begin; their ends.
    programs: np.ndarray

    def cast(self, dtype: np.dtype) -> Code:
        """Return the code with probabilities of `dtype`."""
        return self._replace(probability=self.probability.astype(dtype), share=self.share.astype(dtype))


def joined(codes: Sequence[Code]) -> Code:
    """Return the tables of some programs, one behind another."""
    fields = {name: [getattr(code, name) for code in codes] for name in Code._fields}
    out = {name: np.concatenate(arrays) for name, arrays in fields.items()}
    for name in (name for name in fields if name.endswith("_of")):
        out[name] = runs_joined(fields[name])
    return Code(**{**out, "programs": runs_joined(fields["programs"])})


def runs_joined(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the bounds of runs of arrays that lie one behind another, from those [n+1, ...] of each array.

    >>> runs_joined([np.array([0, 2, 3]), np.array([0, 4])])
    array([0, 2, 3, 7])
    """
    found, end = [runs[0][:1]], runs[0][:1]
    for bounds in runs:
        found.append(bounds[1:] + end)
        end = found[-1][-1:]
    return np.concatenate(found)


@dataclass(frozen=True)
class Instructions:
    """The code of a plan, with float64 probabilities, and the sizes of the arrays that it works on.

    `base` int64 [n+1, N] is the cell of (w, A) at start 0, -1 where there is none; `reach` boolean
    [n+1, N, n] says which symbols over the w words from i occur in a derivation from the top.
    """

    n: int
    code: Code
    cells: int
    #: Most pairs of a block.
    pairs: int
    base: np.ndarray
    reach: np.ndarray

    @property
    def flops(self) -> tuple[int, int]:
        """Multiply-adds times two per sentence of the inside pass, and of both passes."""
        code = self.code
        times = np.diff(code.starts_of.astype(np.int64))
        terms = np.diff(code.terms_of[code.pairs_of].astype(np.int64))
        rules = np.diff(code.rules_of[code.parents_of].astype(np.int64))
        return int(2 * (times * (terms + rules)).sum()), int(2 * (times * (3 * terms + 2 * rules)).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (*self.code, self.base, self.reach))

    def cells_of(self, w: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the reached cells over the first w words, uint32, and their symbols."""
        symbols = np.nonzero(self.reach[w, :, 0])[0]
        return self.base[w, symbols].astype(np.uint32), symbols


def flatten(plan: Plan) -> Instructions:
    """Return the instructions of a plan."""
    n = plan.n
    count = np.where(plan.active, (n + 1 - np.arange(n + 1))[:, None], 0)
    before = np.cumsum(count).reshape(count.shape) - count
    base: np.ndarray = np.where(plan.active, before, -1)
    reach = _reached(plan)
    lists = _Lists()
    most = 1
    for width in plan.widths:
        w = width.w
        left, right, sizes = _terms(width, base)
        first = np.cumsum(sizes) - sizes
        kinds, kind = np.unique(reach[w, :, : n - w + 1], axis=1, return_inverse=True)
        for k in range(kinds.shape[1]):
            rules = np.nonzero(kinds[:, k][width.parent])[0]
            if len(rules) == 0:
                continue
            chosen, pair = np.unique(width.pair[rules], return_inverse=True)
            parent, probability = width.parent[rules], width.probability[rules]
            symbols, each = np.unique(parent, return_counts=True)
            starts = np.nonzero(kind.reshape(-1) == k)[0]
            lists.add_runs(starts_of=[len(starts)], pairs_of=[len(chosen)], parents_of=[len(symbols)])
            take = np.concatenate([np.arange(first[q], first[q] + sizes[q]) for q in chosen])
            by_pair = np.argsort(pair, kind="stable")
            lists.add_runs(
                terms_of=sizes[chosen], rules_of=each, above_of=np.bincount(pair, minlength=len(chosen))
            )
            lists.add(
                starts=starts,
                left=left[take],
                right=right[take],
                parents=base[w, symbols],
                pair=pair,
                probability=probability,
                above=base[w, parent[by_pair]],
                share=probability[by_pair],
            )
            most = max(most, len(chosen))
    position, symbol = np.nonzero(reach[1].T)
    top = np.nonzero(reach[n, :, 0])[0]
    cells = base[:, :, None] + np.arange(n)
    lists.add_runs(leaves_of=np.bincount(position, minlength=n))
    lists.add(
        leaf_cells=base[1, symbol] + position,
        leaf_symbols=symbol,
        top_cells=base[n, top],
        top_symbols=top,
        reached=cells[1:n][reach[1:n]],
    )
    return Instructions(n, lists.code(), int(count.sum()), most, base, reach)


class _Lists:
    """Arrays of a `Code` in the making."""

    def __init__(self) -> None:
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in Code._fields if name != "programs"}
        self._end = {name: 0 for name in Code._fields if name.endswith("_of")}
        self.add(**{name: np.zeros(1, dtype=np.int64) for name in self._end})

    def add(self, **arrays: np.ndarray) -> None:
        for name, array in arrays.items():
            self._parts[name].append(array)

    def add_runs(self, **sizes: np.ndarray | list[int]) -> None:
        for name, values in sizes.items():
            self._parts[name].append(self._end[name] + np.cumsum(values))
            self._end[name] += int(np.sum(values))

    def code(self) -> Code:
        out = {}
        for name, parts in self._parts.items():
            dtype = np.float64 if name in ("probability", "share") else np.uint32
            out[name] = np.concatenate([np.zeros(0), *parts]).astype(dtype)
        ends = [len(out[name]) for name in ("starts_of", "leaves_of", "top_cells", "reached")]
        ends[0], ends[1] = ends[0] - 1, ends[1] - 1
        return Code(**out, programs=np.array([[0] * len(ends), ends]))


def _reached(plan: Plan) -> np.ndarray:
    """Return boolean [n+1, N, n]: symbol A over the w words from i occurs in some derivation from the top."""
    n, N = plan.n, plan.active.shape[1]
    reach = np.zeros((n + 1, N, n), dtype=bool)
    reach[n, :, 0] = plan.active[n]
    for width in reversed(plan.widths):
        w, starts = width.w, n - width.w + 1
        used = np.zeros((len(width.left), starts), dtype=bool)
        rule, start = np.nonzero(reach[w, width.parent, :starts])
        used[width.pair[rule], start] = True
        for split in width.splits:
            pair, start = np.nonzero(used[split.first : split.last])
            reach[split.u, width.left[split.first + pair], start] = True
            reach[w - split.u, width.right[split.first + pair], start + split.u] = True
    return reach


def _terms(width: Width, base: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the terms of a width at start 0, by pair and then by split: left and right cells [M], and the
    number of terms of each pair [Q]."""
    if not width.splits:
        none = np.zeros(0, dtype=np.int64)
        return none, none, none
    pair = np.concatenate([np.arange(split.first, split.last) for split in width.splits])
    u = np.concatenate([np.full(split.last - split.first, split.u) for split in width.splits])
    order = np.lexsort((u, pair))
    pair, u = pair[order], u[order]
    left = base[u, width.left[pair]]
    right = base[width.w - u, width.right[pair]] + u
    return left, right, np.bincount(pair, minlength=len(width.left))
