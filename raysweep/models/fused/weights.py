"""Weights, sums of their gradients, and the link to autograd, shared by the fused training paths of models.

A path computes gradients along with the loss, chunk by chunk, and sums them here in float32; to autograd the
whole path is one function of all parameters (`differentiable`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.fused import kernels
from raysweep.models.fused.packing import Chunk, packed
from raysweep.models.fused.products import Product, add_outer, array

_LARGE = 4096  # words of a vocabulary

R = TypeVar("R")
W = TypeVar("W", bound="Weights")


@dataclass(frozen=True)
class Matrix:
    """A weight in low precision, and the sum of the gradient of the float32 weight.

    The weight is laid out at its first product of many rows (`Product`); do not change it afterwards.
    """

    low: Tensor
    gradient: Tensor
    parts: dict[tuple[int, int], Matrix] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def _applied(self) -> Product:
        return Product(self.low.T)

    @cached_property
    def _returned(self) -> Product:
        return Product(self.low)

    def apply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return x [N, I] times the weight [O, I], transposed; in `out` if given, which is contiguous."""
        return self._applied(x, out)

    def back(self, d: Tensor, x: Tensor) -> Tensor:
        """Add the weight's gradient, and return that of x, given d [N, O], that of `apply(x)`."""
        self.learn(d, x)
        return self.through(d)

    def learn(self, d: Tensor, x: Tensor, row: np.ndarray | None = None) -> None:
        """Add the weight's gradient, given d [N, O], that of `apply(x)`.

        `row` [N] is the row of each word of the chunk in d and x, or −1; without it the words, or the masked
        ones, stand there in their order.
        """
        add_outer(self.gradient, d, x)

    def through(self, d: Tensor, out: Tensor | None = None) -> Tensor:
        """Return d [N, O] times the weight, in `out` if given, which is contiguous."""
        return self._returned(d, out)

    def part(self, rows: slice) -> Matrix:
        """Return some of its rows as a matrix of their own, always the same one."""
        first, last, _ = rows.indices(len(self.low))
        if (first, last) not in self.parts:
            self.parts[first, last] = self._part(slice(first, last))
        return self.parts[first, last]

    def _part(self, rows: slice) -> Matrix:
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

    decoder_bias: Vector

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.sums: dict[int, Tensor] = {}

    def gradient(self, parameter: Tensor) -> Tensor:
        """Return a parameter's gradient, a tensor of its own."""
        return self.sums[id(parameter)]

    def add(self, other: Weights) -> None:
        """Add the sums of the same parameters' gradients that were made beside these."""
        added: set[int] = set()
        for key, total in self.sums.items():
            # Parameters with equal gradients share one sum.
            if id(total) not in added:
                total.add_(other.sums[key])
                added.add(id(total))

    def low(self, rows: int, columns: int) -> tuple[Tensor, np.ndarray]:
        """Return an empty matrix in the working precision, as torch and as the kernels take it."""
        made = torch.empty(rows, columns, dtype=self.dtype)
        return made, array(made)

    def _sum(self, parameter: Tensor) -> Tensor:
        return self.sums.setdefault(id(parameter), torch.zeros(parameter.shape, dtype=parameter.dtype))

    def _matrix(self, weight: Tensor) -> Matrix:
        return Matrix(weight.detach().to(self.dtype), self._sum(weight))

    def _vector(self, parameter: Tensor) -> Vector:
        return Vector(array(parameter), array(self._sum(parameter)))

    def _linear(self, module: nn.Linear) -> tuple[Matrix, Vector]:
        return self._matrix(module.weight), self._vector(module.bias)


class Training(Protocol):
    """The forward and the backward pass of one chunk in training."""

    def forward(self) -> Tensor:
        """Return the logits [M, V] at masked words, without the decoder's bias."""

    def learn(self, d_logits: Tensor) -> None:
        """Add the gradients of all parameters but the decoder's bias to the weights' sums."""


class _Loss(torch.autograd.Function):
    """The loss; its gradients are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, made: Callable[[], tuple[float, Weights]], *parameters: Tensor) -> Tensor:
        loss, weights = made()
        ctx.gradients = [weights.gradient(p) for p in parameters]
        return parameters[0].new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        [factor] = given
        if ctx.gradients is None:
            raise RuntimeError("the gradients of this loss were given out before; compute the loss again")
        if factor.item() != 1:
            for gradient in ctx.gradients:
                gradient.mul_(factor)
        gradients = [
            g if needed else None for g, needed in zip(ctx.gradients, ctx.needs_input_grad[1:], strict=True)
        ]
        ctx.gradients = None
        return None, *gradients


def on_threads(threads: int, work: Callable[[int], R]) -> list[R]:
    """Return `work(k)` for each k below `threads`, each in a thread of its own with torch on one thread.

    The threads compute in the inference mode and the gradient mode of the caller.
    """
    if threads == 1:
        return [work(0)]
    # Both modes are those of a thread: a new one computes with gradients, and not in inference mode.
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def in_mode(k: int) -> R:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            return work(k)

    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(in_mode, range(threads)))
    # The number that the pool's threads set for themselves is also the default of later threads.
    torch.set_num_threads(threads)
    return found


def chunk_size(model: MaskedLM, words: Batch, size: int, threads: int) -> int:
    """Return the words of a chunk of about `size` words, twice as many under a large vocabulary.

    Adding up the gradient of a large vocabulary once a chunk would be slow.  Every thread has a chunk.
    """
    if model.total_vocabulary > _LARGE:
        size *= 2
    return min(size, -(-int(words.lengths.sum()) // threads))


def differentiable(
    model: MaskedLM, words: Batch, size: int, make: Callable[[], W], begin: Callable[[W, Chunk], Training]
) -> Tensor:
    """Return the sum of a batch's losses over its `count`, as a differentiable function of the parameters.

    `make` makes the weights, and `begin` the pass of a chunk that adds its gradients to their sums.  Chunks
    have `chunk_size` words.  Each of several torch threads computes chunks of its own, with torch on one
    thread in it: the order of sums depends on the number of threads alone.
    """
    threads = torch.get_num_threads()
    size = chunk_size(model, words, size, threads)

    def loss(weights: W, chunk: Chunk) -> float:
        work, bias = begin(weights, chunk), weights.decoder_bias
        logits = work.forward()
        total: float = kernels.cross_entropy(
            array(logits), bias.value, chunk.targets, np.float32(1 / words.count), bias.gradient
        )
        work.learn(logits)
        return total

    def made() -> tuple[float, W]:
        chunks = list(packed(words, model, size))

        def work(k: int) -> tuple[float, W]:
            weights = make()
            return sum(loss(weights, chunk) for chunk in chunks[k::threads]), weights

        [(total, weights), *others] = on_threads(threads, work)
        for more, other in others:
            total += more
            weights.add(other)
        return total / words.count, weights

    result: Tensor = _Loss.apply(made, *model.parameters())
    return result
