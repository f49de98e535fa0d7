"""What the fused training paths of models share: weights, sums of their gradients, and the way to autograd.

A path makes the gradients along with the loss, chunk by chunk, and sums them here in float32; to autograd the
whole of it is one function of all parameters (`differentiable`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysweep.models.fused.scalars import LEVELS


def array(tensor: Tensor) -> np.ndarray:
    """Return a tensor's memory as the kernels take it: float32, or bfloat16's bits as uint16."""
    tensor = tensor.detach()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def cut_of(p: float) -> int:
    """Return how many of the 2^16 levels drop an element with probability `p` < 1."""
    return min(round(p * LEVELS), LEVELS - 1)


@dataclass(frozen=True)
class Matrix:
    """A weight in low precision, and where the gradient of the float32 weight is summed."""

    low: Tensor
    gradient: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return x [N, I] times the weight [O, I], transposed."""
        return x @ self.low.T

    def back(self, d: Tensor, x: Tensor) -> Tensor:
        """Add the weight's gradient, given d [N, O] of what `apply` made of x; return that of x."""
        self.gradient.add_(d.T @ x)
        return d @ self.low

    def part(self, rows: slice) -> Matrix:
        """Return some of its rows as a matrix of their own."""
        return Matrix(self.low[rows], self.gradient[rows])


@dataclass(frozen=True)
class Vector:
    """A bias or a LayerNorm's parameter, and the sum of its gradient."""

    value: np.ndarray
    gradient: np.ndarray


class Weights:
    """A model's parameters as they are now, in the working precision, with sums of gradients.

    Kinds of models add theirs; `sums` holds by a parameter's id where its gradient is summed.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.sums: dict[int, Tensor] = {}

    def gradient(self, parameter: Tensor) -> Tensor:
        """Return a parameter's gradient, a tensor of its own."""
        return self.sums[id(parameter)]

    def low(self, rows: int, columns: int) -> tuple[Tensor, np.ndarray]:
        """Return an empty matrix in the working precision, as torch and as the kernels take it."""
        made = torch.empty(rows, columns, dtype=self.dtype)
        return made, array(made)

    def _sum(self, parameter: Tensor) -> Tensor:
        return self.sums.setdefault(id(parameter), torch.zeros_like(parameter, requires_grad=False))

    def _matrix(self, weight: Tensor) -> Matrix:
        return Matrix(weight.detach().to(self.dtype), self._sum(weight))

    def _vector(self, parameter: Tensor) -> Vector:
        return Vector(array(parameter), array(self._sum(parameter)))

    def _linear(self, module: nn.Linear) -> tuple[Matrix, Vector]:
        return self._matrix(module.weight), self._vector(module.bias)


class _Loss(torch.autograd.Function):
    """The loss, whose gradients are made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, made: Callable[[], tuple[float, Weights]], *parameters: Tensor) -> Tensor:
        loss, weights = made()
        ctx.gradients = [weights.gradient(p) for p in parameters]
        return parameters[0].new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        [factor] = given
        gradients = [
            g.mul_(factor) if needed else None
            for g, needed in zip(ctx.gradients, ctx.needs_input_grad[1:], strict=True)
        ]
        del ctx.gradients  # a second time there is nothing to give, and torch says so
        return None, *gradients


def differentiable(model: nn.Module, made: Callable[[], tuple[float, Weights]]) -> Tensor:
    """Return the loss that `made` makes along with its gradients, as a function of the parameters."""
    result: Tensor = _Loss.apply(made, *model.parameters())
    return result
