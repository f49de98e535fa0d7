"""The plan's inside and outside passes in logarithms, for sentences that no scaled chart can hold.

The equations are those of `chart.py` with every number as its logarithm, so nothing underflows:

    log I_w[A, i] = logsumexp_{A -> B C, u} (log p + log I_u[B, i] + log I_{w-u}[C, i+u])

A sentence costs some hundred times as much as in the engines.  They hand over those whose probability,
divided by the scales of the words, is below what float64 holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.pcfg.grammar import Grammar
from raysweep.languages.pcfg.plan import Plan, Width

#: Bytes of the charts of one pass.
_PASS_BYTES = 64 << 20

#: By width, the logarithms [A, n-w+1, B] of active symbols, positions and sentences.
Chart = list[np.ndarray]


def log_totals(grammar: Grammar, plan: Plan | None, words: Tensor) -> Tensor:
    """Return log Pr(words) [B] of sentences [B, n] (V: a hidden word), float64; -inf where it is zero."""
    out = np.full(len(words), -np.inf)
    if plan is not None:
        for part in _passes(plan, len(words)):
            chart = _inside(grammar, plan, words[part].cpu().numpy())
            out[part] = _total(grammar, plan, chart)
    return torch.from_numpy(out).to(words.device)


def log_conditionals(
    grammar: Grammar, plan: Plan | None, words: Tensor, place: Tensor, out: Tensor
) -> Tensor:
    """Write log Pr(x_t = . | visible words but x_t) and return what is sound, as `Engine.conditionals` does.

    `out` is float64.  A sentence is sound where its visible words are possible.
    """
    sound = torch.zeros(len(words), dtype=torch.bool, device=words.device)
    if plan is None:
        return sound
    log_emission = _log(grammar.emission[plan.active[1]])
    for part in _passes(plan, len(words)):
        chart = _inside(grammar, plan, words[part].cpu().numpy())
        weights = _outside(grammar, plan, chart)[1]
        wanted = place[part].cpu().numpy() >= 0
        good = np.isfinite(_total(grammar, plan, chart)) | wanted.all(axis=1)
        for b, t in np.argwhere(wanted):
            joint = np.logaddexp.reduce(weights[:, t, b, None] + log_emission, axis=0)
            largest = joint.max()
            good[b] &= np.isfinite(largest)
            if good[b]:
                joint -= largest
                joint -= np.logaddexp.reduce(joint)
                out[place[part][b, t]] = torch.from_numpy(joint).to(out.device)
        sound[part] = torch.from_numpy(good).to(words.device)
    return sound


def _log(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        found: np.ndarray = np.log(values)
    return found


def _passes(plan: Plan, sentences: int) -> Iterator[slice]:
    size = max(1, min(256, _PASS_BYTES // (8 * plan.elements)))
    for first in range(0, sentences, size):
        yield slice(first, min(first + size, sentences))


def _rows(plan: Plan) -> np.ndarray:
    """Return the row of each symbol in a chart's width [n+1, N]."""
    rows: np.ndarray = np.cumsum(plan.active, axis=1) - 1
    return rows


def _total(grammar: Grammar, plan: Plan, chart: Chart) -> np.ndarray:
    top = _log(grammar.root[plan.active[plan.n]])
    total: np.ndarray = np.logaddexp.reduce(top[:, None] + chart[plan.n][:, 0], axis=0)
    return total


def _sums(terms: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the groups that occur, ascending, and the logarithm of the sum of each one's terms [R, ...]."""
    order = np.argsort(group, kind="stable")
    found, first = np.unique(group[order], return_index=True)
    return found, np.logaddexp.reduceat(terms[order], first, axis=0)


def _inside(grammar: Grammar, plan: Plan, words: np.ndarray) -> Chart:
    emission = grammar.emission[plan.active[1]]
    leaves = _log(np.concatenate([emission, emission.sum(axis=1, keepdims=True)], axis=1))
    rows, n, batch = _rows(plan), plan.n, len(words)
    chart = [np.zeros(0), leaves[:, words.T]]
    chart += [np.full((int(plan.active[w].sum()), n - w + 1, batch), -np.inf) for w in range(2, n + 1)]
    for width in plan.widths:
        pairs = np.full((len(width.left), n - width.w + 1, batch), -np.inf)
        for split, left, right in _cuts(width, rows, chart):
            mine = pairs[split]
            np.logaddexp(mine, chart[left[0]][left[1:]] + chart[right[0]][right[1:]], out=mine)
        parents, sums = _sums(pairs[width.pair] + _log(width.probability)[:, None, None], width.parent)
        chart[width.w][rows[width.w][parents]] = sums
    return chart


def _outside(grammar: Grammar, plan: Plan, chart: Chart) -> Chart:
    rows = _rows(plan)
    out = [np.full_like(cells, -np.inf) for cells in chart]
    out[plan.n][:] = _log(grammar.root[plan.active[plan.n]])[:, None, None]
    for width in reversed(plan.widths):
        above = out[width.w][rows[width.w][width.parent]] + _log(width.probability)[:, None, None]
        used, sums = _sums(above, width.pair)
        pairs = np.full((len(width.left), *sums.shape[1:]), -np.inf)
        pairs[used] = sums
        for split, left, right in _cuts(width, rows, chart):
            for mine, other in ((left, right), (right, left)):
                cells, found = _sums(pairs[split] + chart[other[0]][other[1:]], mine[1])
                into = out[mine[0]]
                into[cells, mine[2]] = np.logaddexp(into[cells, mine[2]], found)
    return out


Cells = tuple[int, np.ndarray, slice]


def _cuts(width: Width, rows: np.ndarray, chart: Chart) -> Iterator[tuple[slice, Cells, Cells]]:
    """Yield the pairs of each split, and the cells (width, rows, starts) of their left and right parts."""
    starts = chart[1].shape[1] - width.w + 1
    for split in width.splits:
        pairs, u = slice(split.first, split.last), split.u
        yield (
            pairs,
            (u, rows[u][width.left[pairs]], slice(0, starts)),
            (width.w - u, rows[width.w - u][width.right[pairs]], slice(u, u + starts)),
        )
