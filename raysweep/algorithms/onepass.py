"""AdamW's update of a small model in one pass over its weights, on a processor.

torch's own step looks at every tensor and its options anew, which for a model of some ten thousand weights
takes longer than the arithmetic.  The update is the same up to rounding, and so are the states.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from torch import Tensor, nn

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED
from raysweep.compiled.simd import intrinsic

_F1 = np.float32(1.0)


class OnePassAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with a compiled step.

    The step is torch's own where a parameter has no gradient, where a tensor is anything but contiguous
    float32 numbers on a processor, and where there is no state yet.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        found = [self._places(k, group["params"]) for k, group in enumerate(self.param_groups)]
        if closure is not None or None in found:
            return super().step(closure)
        for group, places in zip(self.param_groups, found, strict=True):
            if places is not None and len(places.table):
                rates = float(group["lr"]), *group["betas"], group["weight_decay"], group["eps"]
                _update(places.table, places.sizes, *rates)
        return None

    def _places(self, k: int, parameters: Sequence[Tensor]) -> _Places | None:
        """Return where the tensors of group k are; None where the step is torch's."""
        # Not set before torch has made the rest of this object.
        known: dict[int, _Places | None] = vars(self).setdefault("_known", {})
        places = known.get(k)
        if places is None or not places.hold(parameters, self.state):
            places = known[k] = _Places.of(parameters, self.state)
        gradients = [parameter.grad for parameter in parameters]
        if places is None or not all(g is not None and g.is_contiguous() for g in gradients):
            return None
        places.table[:, 1] = [g.data_ptr() for g in gradients if g is not None]
        return places


@dataclass(eq=False)
class _Places:
    """The addresses of a group's tensors.

    `table` [P, 5] has a row for each parameter: its weights, its gradient, both averages, and the number of
    steps.  `sizes` [P] are the numbers of weights.
    """

    table: np.ndarray
    sizes: np.ndarray
    weights: list[int]
    averages: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, parameters: Sequence[Tensor], state: Mapping[Tensor, Mapping[str, Any]]) -> Self | None:
        """Return those of parameters and their states; None where the compiled step does not take them."""
        states = [state.get(parameter, {}) for parameter in parameters]
        if not all(states):
            return None
        rows = [
            (p, p, s["exp_avg"], s["exp_avg_sq"], s["step"]) for p, s in zip(parameters, states, strict=True)
        ]
        if not all(_plain(tensor) for row in rows for tensor in row):
            return None
        table = np.array([[t.data_ptr() for t in row] for row in rows], dtype=np.int64).reshape(-1, 5)
        sizes = np.array([p.numel() for p in parameters], dtype=np.int64)
        return cls(table, sizes, table[:, 0].tolist(), [row[2:4] for row in rows])

    def hold(self, parameters: Sequence[Tensor], state: Mapping[Tensor, Mapping[str, Any]]) -> bool:
        """Return whether weights and states are where they were; those that are loaded are other tensors."""
        return [p.data_ptr() for p in parameters] == self.weights and all(
            (now := state.get(p, {})).get("exp_avg") is first and now.get("exp_avg_sq") is second
            for p, (first, second) in zip(parameters, self.averages, strict=True)
        )


def _plain(tensor: Tensor) -> bool:
    # Subclasses, such as the shards of FSDP, have their numbers elsewhere.
    own = type(tensor) in (Tensor, nn.Parameter)
    return own and tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()


@intrinsic
def _numbers(context, address):  # type: ignore[no-untyped-def]
    """Return the pointer to float32 numbers at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@kernel(**COMPILED)
def _update(table, sizes, rate, beta1, beta2, decay, eps):  # type: ignore[no-untyped-def]
    """Do a step of AdamW on the parameters of `_Places`."""
    b1, b2, least = np.float32(beta1), np.float32(beta2), np.float32(eps)
    shrink = np.float32(1.0 - rate * decay)
    for k in range(len(table)):
        n = sizes[k]
        weight, gradient = carray(_numbers(table[k, 0]), n), carray(_numbers(table[k, 1]), n)
        mean, square = carray(_numbers(table[k, 2]), n), carray(_numbers(table[k, 3]), n)
        steps = carray(_numbers(table[k, 4]), 1)
        steps[0] += _F1
        done = np.float64(steps[0])
        length = np.float32(rate / (1.0 - beta1**done))
        root = np.float32(1.0 / np.sqrt(1.0 - beta2**done))
        for i in range(n):
            g = gradient[i]
            m = mean[i] + (_F1 - b1) * (g - mean[i])
            v = b2 * square[i] + (_F1 - b2) * g * g
            mean[i], square[i] = m, v
            weight[i] = weight[i] * shrink - length * m / (np.sqrt(v) * root + least)
