"""Sums over the draws of test vectors at each input, with the covariance of their means."""

from __future__ import annotations

import torch
from torch import Tensor


class Draws:
    """Sums over the draws of inputs.

    `values` [n, P] by parameter and `statistics` [n, K] of a control are means over draws.  Of `several`
    draws `spread` [n, 1 + K, 1 + K] is the covariance of the means of the values' total and the statistics
    (Welford, "Note on a method for calculating corrected sums of squares and products", 1962).  All are
    float64.
    """

    def __init__(
        self, inputs: int, parameters: int, statistics: int, device: torch.device, *, several: bool
    ) -> None:
        size = 1 + statistics if several else 0
        self._several = several
        self.values = torch.zeros(inputs, parameters, dtype=torch.float64, device=device)
        self.statistics = torch.zeros(inputs, statistics, dtype=torch.float64, device=device)
        self._mean = torch.zeros(inputs, size, dtype=torch.float64, device=device)
        self._apart = torch.zeros(inputs, size, size, dtype=torch.float64, device=device)
        self._count = torch.zeros(inputs, dtype=torch.float64, device=device)

    def add(self, rows: Tensor, weight: float, norms: Tensor, known: Tensor | None) -> None:
        """Add a draw at the inputs `rows` [b]: norms [b, P] and statistics [b, K], with a weight."""
        self.values[rows] += weight * norms
        if known is not None:
            self.statistics[rows] += weight * known
        if not self._several:
            return
        seen = norms.sum(dim=1, keepdim=True)
        if known is not None:
            seen = torch.cat([seen, known], dim=1)
        self._count[rows] += 1
        before = seen - self._mean[rows]
        self._mean[rows] += before / self._count[rows, None]
        self._apart[rows] += before[:, :, None] * (seen - self._mean[rows])[:, None, :]

    @property
    def spread(self) -> Tensor | None:
        """The covariance of the draws' means [n, 1 + K, 1 + K], None unless there are several."""
        if not self._several:
            return None
        return self._apart / (self._count * (self._count - 1))[:, None, None]
