"""The inside and outside passes, for many sentences of one length at once.

    I_1[A, i] = emission[A, x_i] (or its sum over words where x_i is hidden), scaled
    I_w[A, i] = sum_{A -> B C} p sum_u I_u[B, i] I_{w-u}[C, i+u]
    O_n[A, 0] = root[A];   each term p I_u[B, i] I_{w-u}[C, i+u] hands O_w[A, i] p I_{w-u}[C, i+u] to
                           O_u[B, i] and O_w[A, i] p I_u[B, i] to O_{w-u}[C, i+u]

(Baker 1979; Lari and Young 1990.)  Charts are lists by width of tensors [A, n-w+1, B] over active symbols,
positions and sentences.  A leaf is divided by the largest entry over all symbols, so that the charts of usual
sentences stay within float32's range and no logarithms are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysweep.languages.pcfg.plan import Plan

Chart = list[Tensor]


def inside(plan: Plan, leaves: Tensor) -> Chart:
    """Return the inside chart; `leaves` [A, n, B] are those of the active symbols at width 1."""
    n, batch = leaves.shape[1:]
    chart = [leaves.new_zeros(0), leaves]
    chart += [leaves.new_zeros(len(plan.active[w]), n - w + 1, batch) for w in range(2, n + 1)]
    for width in plan.widths:
        w, starts = width.w, n - width.w + 1
        pairs = leaves.new_zeros(width.rules.shape[1], starts, batch)
        for split in width.splits:
            left = chart[split.u].narrow(1, 0, starts).index_select(0, split.left)
            right = chart[w - split.u].narrow(1, split.u, starts).index_select(0, split.right)
            pairs[split.first : split.last].addcmul_(left, right)
        torch.mm(width.rules, pairs.view(len(pairs), -1), out=chart[w].view(len(chart[w]), -1))
    return chart


def outside(plan: Plan, chart: Chart, top: Tensor) -> Chart:
    """Return the outside chart for an inside chart; `top` [A] weighs the symbols active at width n."""
    n = plan.n
    out = [torch.zeros_like(cells) for cells in chart]
    out[n] += top[:, None, None]
    for width in reversed(plan.widths):
        w, starts, batch = width.w, n - width.w + 1, chart[1].shape[2]
        pairs = torch.mm(width.rules.T, out[w].view(len(out[w]), -1)).view(-1, starts, batch)
        for split in width.splits:
            u, above = split.u, pairs[split.first : split.last]
            left = chart[u].narrow(1, 0, starts).index_select(0, split.left)
            right = chart[w - u].narrow(1, u, starts).index_select(0, split.right)
            out[u].narrow(1, 0, starts).index_add_(0, split.left, right.mul_(above))
            out[w - u].narrow(1, u, starts).index_add_(0, split.right, left.mul_(above))
    return out
