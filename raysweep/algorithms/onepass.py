"""AdamW's update of a small model and the average of its weights, each in one pass, on a processor.

torch's own step looks at every tensor and its options anew, which for a model of some ten thousand weights
takes longer than the arithmetic.  The update is the same up to rounding, and so are states and averages.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import unwrap
from typing import Any, Self

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from torch import Tensor, nn

from raysweep.algorithms.eager import AdamW
from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED
from raysweep.compiled.simd import intrinsic

_F1, _HALF = np.float32(1.0), np.float32(0.5)

#: Options of torch's with another update, or another way to it.
_OPTIONS = ("maximize", "amsgrad", "capturable", "differentiable")


class OnePassAdamW(AdamW):
    """`torch.optim.AdamW` with a compiled step.

    The step is torch's own where a parameter has no gradient, where a tensor is anything but contiguous
    float32 numbers on a processor, where there is no state yet, and with options that change the update.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        found = self._places(lambda parameter: parameter.grad) if closure is None and self._usual() else None
        if found is None:
            # Without the hooks that torch puts around it: they are around this step already.
            loss = unwrap(AdamW.step)(self, closure)
            _written(p for group in self.param_groups for p in group["params"] if p.grad is not None)
            return loss
        self._apply(found)
        return None

    def step_from(self, gradients: Mapping[int, Tensor]) -> Callable[[], bool] | None:
        """Return the step from gradients that stay where they are, by the ids of their parameters.

        None where the step is torch's.  The step returns True.  It does nothing and returns False once states
        have been loaded or groups added, and with options that change the update.  Otherwise it looks at no
        tensor anew, so it is for weights and states that nobody moves or exchanges, and it calls no hooks.
        Whoever keeps the step keeps the gradients.
        """

        def gradient_of(parameter: Tensor) -> Tensor | None:
            found = gradients.get(id(parameter))
            fits = found is not None and found.shape == parameter.shape and _plain(found)
            return found if fits else None

        found = self._places(gradient_of) if self._usual() else None
        if found is None:
            return None
        # `step` writes the addresses of other gradients to its own tables.
        own = [replace(places, table=places.table.copy()) for places in found]
        states = list(self.state.values())

        def step() -> bool:
            there = len(self.param_groups) == len(own) and self._usual()
            # Looking states up by their parameters would take longer than the update of a small model.
            there = there and len(self.state) == len(states)
            there = there and all(map(operator.is_, self.state.values(), states))
            if there:
                self._apply(own)
            return there

        return step

    def _usual(self) -> bool:
        """Return whether no option changes the update."""
        scaled = getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None
        return not scaled and not any(group.get(name) for group in self.param_groups for name in _OPTIONS)

    def _apply(self, found: Sequence[_Places]) -> None:
        for group, places in zip(self.param_groups, found, strict=True):
            if places.tensors:
                rates = float(group["lr"]), *group["betas"], group["weight_decay"], group["eps"]
                _update(places.table, places.sizes, *rates)
                _written(places.tensors)

    def _places(self, gradient_of: Callable[[Tensor], Tensor | None]) -> list[_Places] | None:
        """Return where the tensors of all groups are; None where the step is torch's."""
        # Made here because a copy of this object does not have it.
        known: dict[int, _Places | None] = vars(self).setdefault("_known", {})
        found = []
        for k, group in enumerate(self.param_groups):
            parameters, places = group["params"], known.get(k)
            if places is None or not places.hold(parameters, self.state):
                places = known[k] = _Places.of(parameters, self.state)
            if places is None or not places.take([gradient_of(parameter) for parameter in parameters]):
                return None
            found.append(places)
        return found


@dataclass(eq=False)
class _Places:
    """The addresses of a group's tensors.

    `tensors` are each parameter's weights, both averages, and the number of steps, one parameter after the
    other, and `addresses` theirs.  `table` [P, 5] are the addresses of the weights, the gradient and the
    rest, and `sizes` [P] the numbers of weights.
    """

    tensors: list[Tensor]
    addresses: list[int]
    table: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, parameters: Sequence[Tensor], state: Mapping[Tensor, Mapping[str, Any]]) -> Self | None:
        """Return those of parameters and their states; None where the compiled step does not take them."""
        tensors = _tensors(parameters, state)
        if tensors is None or not all(map(_plain, tensors)):
            return None
        kinds = (tensors[k::4] for k in range(3))
        if not all(p.shape == first.shape == second.shape for p, first, second in zip(*kinds, strict=True)):
            return None
        addresses = _addresses(tensors)
        table = np.zeros((len(parameters), 5), dtype=np.int64)
        table[:, [0, 2, 3, 4]] = np.reshape(addresses, (-1, 4))
        return cls(tensors, addresses, table, np.array([p.numel() for p in parameters], dtype=np.int64))

    def hold(self, parameters: Sequence[Tensor], state: Mapping[Tensor, Mapping[str, Any]]) -> bool:
        """Return whether weights and states are the same tensors, in the same places."""
        now = _tensors(parameters, state)
        if now is None or len(now) != len(self.tensors) or not all(map(operator.is_, now, self.tensors)):
            return False
        return all(p.is_contiguous() for p in parameters) and _addresses(now) == self.addresses

    def take(self, gradients: Sequence[Tensor | None]) -> bool:
        """Take the addresses of the gradients; return False where one is absent or lies in another way."""
        there = [g for g in gradients if g is not None and g.is_contiguous()]
        if len(there) < len(gradients):
            return False
        # A gradient has the shape, the type and the device of its parameter: torch takes no other.
        self.table[:, 1] = _addresses(there)
        return True


class Blending:
    """Moves averages by a share of their way to the weights, in one pass over both."""

    def __init__(self, averages: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        self._averages, self._tensors = averages, [*averages, *weights]
        self._sizes = np.array([average.numel() for average in averages], dtype=np.int64)
        self._look()

    def move(self, share: float) -> bool:
        """Do so and return True; or return False, with nothing done, where that does not serve.

        It serves contiguous float32 numbers on a processor.
        """
        if self._plain and _addresses(self._tensors) != self._known:
            self._look()
        if self._plain:
            _blend(self._table, self._sizes, share)
            _written(self._averages)
        return self._plain

    def _look(self) -> None:
        """Find out where the tensors are."""
        # A tensor of another kind may have no address.
        self._plain = all(map(_plain, self._tensors))
        self._known = _addresses(self._tensors) if self._plain else []
        self._table = np.reshape(np.array(self._known, dtype=np.int64), (2, -1))


def _tensors(parameters: Sequence[Tensor], state: Mapping[Tensor, Mapping[str, Any]]) -> list[Tensor] | None:
    """Return the `tensors` of `_Places`; None where a state lacks one."""
    owns = [state.get(parameter, {}) for parameter in parameters]
    try:
        pairs = zip(parameters, owns, strict=True)
        return [t for p, own in pairs for t in (p, own["exp_avg"], own["exp_avg_sq"], own["step"])]
    except KeyError:
        return None


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


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


@kernel(**COMPILED)
def _blend(table, sizes, share):  # type: ignore[no-untyped-def]
    """Move averages as `Blending` says; `table` [2, P] are the addresses of averages and weights."""
    to, rest = np.float32(share), np.float32(1.0 - share)
    for k in range(len(sizes)):
        n = sizes[k]
        average, weight = carray(_numbers(table[0, k]), n), carray(_numbers(table[1, k]), n)
        # As torch has it: with a share of 1, the average is the weight.
        if to < _HALF:
            for i in range(n):
                average[i] += to * (weight[i] - average[i])
        else:
            for i in range(n):
                average[i] = weight[i] - rest * (weight[i] - average[i])
