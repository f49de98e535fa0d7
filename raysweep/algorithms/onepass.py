"""AdamW's update of a small model in one pass over its weights, on a processor.

torch's own step looks at every tensor and its options anew, which for a model of some ten thousand weights
takes longer than the arithmetic.  The update is the same up to rounding, and so are the states.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

#: What torch keeps for each parameter.
_STATE = ("exp_avg", "exp_avg_sq", "step")
#: Options of torch's with another update, or another way to it.
_OPTIONS = ("maximize", "amsgrad", "capturable", "differentiable")


class OnePassAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with a compiled step.

    The step is torch's own where a parameter has no gradient, where a tensor is anything but contiguous
    float32 numbers on a processor, where there is no state yet, and with options that change the update.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        found = [self._places(k, group) for k, group in enumerate(self.param_groups)]
        scaled = getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None
        if closure is not None or scaled or None in found:
            loss = super().step(closure)
            _written(p for group in self.param_groups for p in group["params"] if p.grad is not None)
            return loss
        for group, places in zip(self.param_groups, found, strict=True):
            if places is not None and places.rows:
                rates = float(group["lr"]), *group["betas"], group["weight_decay"], group["eps"]
                _update(places.table, places.sizes, *rates)
                _written(tensor for row in places.rows for tensor in row)
        return None

    def _places(self, k: int, group: Mapping[str, Any]) -> _Places | None:
        """Return where the tensors of group k are; None where the step is torch's."""
        parameters = group["params"]
        # Made here because a copy of this object does not have it.
        known: dict[int, _Places | None] = vars(self).setdefault("_known", {})
        places = known.get(k)
        if places is None or not places.hold(parameters, self.state):
            places = known[k] = _Places.of(parameters, self.state)
        gradients = [parameter.grad for parameter in parameters]
        plain = not any(group.get(option) for option in _OPTIONS)
        if places is None or not plain or not all(g is not None and g.is_contiguous() for g in gradients):
            return None
        # A gradient has the shape, the type and the device of its parameter: torch takes no other.
        places.table[:, 1] = [g.data_ptr() for g in gradients if g is not None]
        return places


@dataclass(eq=False)
class _Places:
    """The addresses of a group's tensors.

    `rows` are each parameter's weights, both averages, and the number of steps.  `table` [P, 5] are the
    addresses of the weights, the gradient and the rest, and `sizes` [P] the numbers of weights.
    """

    rows: list[tuple[Tensor, ...]]
    table: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, parameters: Sequence[Tensor], state: Mapping[Tensor, Mapping[str, Any]]) -> Self | None:
        """Return those of parameters and their states; None where the compiled step does not take them."""
        if not all(state.get(parameter) for parameter in parameters):
            return None
        rows = [(p, *(state[p][name] for name in _STATE)) for p in parameters]
        same = all(p.shape == first.shape == second.shape for p, first, second, _ in rows)
        if not same or not all(_plain(tensor) for row in rows for tensor in row):
            return None
        table = np.zeros((len(rows), 5), dtype=np.int64)
        for row, own in zip(table, rows, strict=True):
            row[[0, 2, 3, 4]] = [tensor.data_ptr() for tensor in own]
        return cls(rows, table, np.array([p.numel() for p in parameters], dtype=np.int64))

    def hold(self, parameters: Sequence[Tensor], state: Mapping[Tensor, Mapping[str, Any]]) -> bool:
        """Return whether weights and states are the same tensors, in the same places."""
        if len(parameters) != len(self.rows):
            return False
        for parameter, (p, *states) in zip(parameters, self.rows, strict=True):
            now = state.get(parameter)
            if parameter is not p or not now or not p.is_contiguous():
                return False
            if any(now.get(name) is not tensor for name, tensor in zip(_STATE, states, strict=True)):
                return False
        places = [[tensor.data_ptr() for tensor in row] for row in self.rows]
        return places == self.table[:, [0, 2, 3, 4]].tolist()


def _written(tensors: Iterable[Tensor]) -> None:
    """Tell torch of a change that it did not see: of one by compiled code, or by its own fused step."""
    torch.autograd.graph.increment_version(list(tensors))


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
    b2, least = np.float32(beta2), np.float32(eps)
    new1, new2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
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
            m = mean[i] + new1 * (g - mean[i])
            v = b2 * square[i] + new2 * g * g
            mean[i], square[i] = m, v
            weight[i] = weight[i] * shrink - length * m / (np.sqrt(v) * root + least)
