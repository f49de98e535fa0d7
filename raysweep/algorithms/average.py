"""The exponential moving average of weights.

    θ̄_n = (1-d) Σ_s d^(n-s) θ_s / (1 - d^n),    s = 1 .. n

These are the weights after steps 1 .. n, with geometrically falling shares that sum to one.  The untrained
initial weights have no share.  Averaged weights sit nearer the middle of the valley that training moves in
(Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; for neural networks
Izmailov et al., "Averaging weights leads to wider optima and better generalization", UAI 2018).

>>> model = nn.Linear(1, 1, bias=False)
>>> average = WeightAverage(model, decay=0.5)
>>> for step, value in enumerate([3.0, 6.0], start=1):
...     _ = nn.init.constant_(model.weight, value)
...     average.update(step)
>>> average.tensors["weight"].item()  # (0.5 · 3 + 1 · 6) / 1.5
5.0
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from raysweep.algorithms.adamw import ONE_PASS

if TYPE_CHECKING:
    from raysweep.algorithms.onepass import Blending


class WeightAverage:
    """The average of a model's parameters, by name in `tensors`."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters: list[Tensor] = list(model.parameters())
        self.tensors: dict[str, Tensor] = {name: p.detach().clone() for name, p in model.named_parameters()}

    @cached_property
    def _blending(self) -> Blending | None:
        """The same in one pass over memory; None for many weights, or where they are not on a processor."""
        on_processor = all(p.device.type == "cpu" for p in self._parameters)
        if not on_processor or sum(p.numel() for p in self._parameters) > ONE_PASS:
            return None
        # Imported here because it imports numba.
        from raysweep.algorithms.onepass import Blending

        return Blending(list(self.tensors.values()), self._parameters)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step `step`, counted from 1, to the average."""
        share = (1 - self.decay) / (1 - self.decay**step)
        if self._blending is None or not self._blending.move(share):
            torch._foreach_lerp_(list(self.tensors.values()), self._parameters, share)
