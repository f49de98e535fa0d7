"""The online code of labels: their description length, given the sentences' representations.

Sender and receiver know the representations.  The first portion of the labels is sent in a uniform code; each
further portion in the code of a head that was trained on all labels before it:

    L = n_1 ln C - Σ_k Σ_{n_k < i ≤ n_{k+1}} ln p_k(y_i | z_i)

in nats.  A representation is better, the fewer labels a head needs, and the better its predictions are
(Voita and Titov, "Information-theoretic probing with minimum description length", EMNLP 2020, section 2.2).
As there, a portion ends at about twice the labels of the last one, the first at about a thousandth of all,
but it has at least `LEAST` labels here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from raysweep.downstream.logistic import Inputs, log_probs

LEAST = 16  # labels of the first portion
_HALVINGS = 10
_ROWS = 1024


def portions(n: int) -> list[int]:
    """Return the numbers of labels n_1 < n_2 < … = n at which portions end.

    >>> portions(512), portions(100_000)[:2]
    ([16, 32, 64, 128, 256, 512], [97, 195])
    """
    ends = [n >> k for k in range(_HALVINGS + 1) if n >> k >= LEAST]
    return ends[::-1] or [n]


def code_length(
    inputs: Inputs, task: int, classes: int, heads: Sequence[Tensor], ends: Sequence[int]
) -> Tensor:
    """Return L [G], float64, in nats, of the labels in a column.

    Portions end at `ends`; `heads` [G, C, K+1] were trained on the labels up to each end but the last.
    """
    total = inputs.x.new_full((len(inputs.x),), ends[0] * math.log(classes), dtype=torch.float64)
    for head, first, last in zip(heads, ends[:-1], ends[1:], strict=True):
        total += surprise(inputs, task, head[:, :classes], first, last)
    return total


def surprise(inputs: Inputs, task: int, head: Tensor, first: int, last: int) -> Tensor:
    """Return the sum of -ln p(label) [G], float64, over rows first .. last-1 under a head [G, C, K+1]."""
    total = inputs.x.new_zeros(len(inputs.x), dtype=torch.float64)
    for start in range(first, last, _ROWS):
        rows = slice(start, min(start + _ROWS, last))
        right = log_probs(inputs.x[:, rows], head).gather(2, inputs.y[:, rows, task, None])
        total -= right.sum(dim=(1, 2), dtype=torch.float64)
    return total
