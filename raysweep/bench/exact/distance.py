"""The distance between two sets of distributions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from raysweep.bench.harness import Difference


def total_variation(pairs: Iterable[tuple[Tensor, Tensor]], tolerance: float) -> Difference:
    """Return the largest total-variation distance between distributions [..., V]; NaN where any is NaN.

    >>> total_variation([(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))], 1e-6).value
    0.5
    """
    worst = [(0.5 * (a.double() - b.double()).abs().sum(dim=-1)).max() for a, b in pairs]
    # torch's maximum is NaN where a value is; Python's is not.
    return Difference(
        quantity="largest total variation", value=torch.stack(worst).max().item(), tolerance=tolerance
    )
