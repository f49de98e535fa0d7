"""Weights, sums of their gradients, and the link to autograd, shared by the fused training paths of models.

A path computes gradients along with the loss, chunk by chunk, and sums them here in float32; to autograd the
whole path is one function of all parameters.  Training does without autograd (`Step`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.fused import kernels
from raysweep.models.fused.packing import Chunk, packed
from raysweep.models.fused.products import Product, add_outer, array

_LARGE = 4096  # words of a vocabulary
_VECTOR = 16  # float32 numbers that lie in one line of the cache
#: Most numbers of a model whose weights are kept from step to step.  Making them takes a tenth of a step of a
#: small model, and hardly anything of a large one's, which has better use for the memory.
_KEPT = 2**22

R = TypeVar("R")
W = TypeVar("W", bound="Weights")


@dataclass(frozen=True)
class Matrix:
    """A weight in low precision, and the sum of the gradient of the float32 weight.

    The weight is laid out at its first product of many rows (`Product`); call `forget` before changing it.
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

    def forget(self) -> None:
        """Drop the layouts of the weight: its values will change."""
        for made in ("_applied", "_returned"):
            self.__dict__.pop(made, None)
        for part in self.parts.values():
            part.forget()

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

    Kinds of models add theirs; `sums` holds by a parameter's id where its gradient is summed.  All sums lie
    in one piece of memory (`room`).
    """

    decoder_bias: Vector

    def __init__(self, model: MaskedLM, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.parameters = list(model.parameters())
        self.sums: dict[int, Tensor] = {}
        self._memory = [_memory(p) for p in self.parameters]
        self._all = torch.zeros(sum(_padded(p.numel()) for p in self.parameters))
        self._used = 0
        self._matrices: list[Matrix] = []
        #: Where each sum lies in the memory of all.
        self._parts: dict[int, tuple[torch.Size, tuple[int, ...], int]] = {}
        #: Memory of this object, and the parameters whose values it has in its own precision or order.
        self._copies: list[tuple[Tensor, Tensor]] = []

    def serve(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> bool:
        """Return whether these are the weights of `parameters` in `dtype`, up to their values."""
        same = len(parameters) == len(self.parameters) and all(map(operator.is_, parameters, self.parameters))
        return same and dtype == self.dtype and self._memory == [_memory(p) for p in parameters]

    def renew(self) -> None:
        """Take the values of the parameters as they are now, and set all sums to zero."""
        self._all.zero_()
        if self._copies:
            torch._foreach_copy_([own for own, _ in self._copies], [of for _, of in self._copies])

    def rest(self) -> bool:
        """Drop what the next step makes anew; return whether these weights may be kept for it."""
        for matrix in self._matrices:
            matrix.forget()
        # Memory of inference mode cannot be written to outside of it, and other tensors hold graphs.
        return not self._all.is_inference() and all(p.is_leaf for p in self.parameters)

    def gradients(self, parameters: Sequence[Tensor], *, own: bool) -> list[Tensor]:
        """Return the parameters' gradients, none in the memory of another.

        Without `own` they are the sums themselves where they can be.
        """
        if not self._parts:
            self._parts = {
                key: (s.size(), s.stride(), int(s.storage_offset())) for key, s in self.sums.items()
            }
        whole, found, given = self._all.clone() if own else self._all, [], set[int]()
        for parameter in parameters:
            size, stride, first = self._parts[id(parameter)]
            part = whole.as_strided(size, stride, first)
            # Parameters with equal gradients share one sum.
            again = first in given or not part.is_contiguous()
            found.append(part.clone(memory_format=torch.contiguous_format) if again else part)
            given.add(first)
        return found

    def add(self, other: Weights) -> None:
        """Add the sums of the same parameters' gradients that were made beside these."""
        self._all.add_(other._all)

    def room(self, shape: Sequence[int]) -> Tensor:
        """Return zeros for the sum of a gradient, in vectors of their own."""
        first = self._used
        self._used += _padded(prod(shape))
        return self._all[first : first + prod(shape)].view(*shape)

    def low(self, rows: int, columns: int) -> tuple[Tensor, np.ndarray]:
        """Return an empty matrix in the working precision, as torch and as the kernels take it."""
        made = torch.empty(rows, columns, dtype=self.dtype)
        return made, array(made)

    def _sum(self, parameter: Tensor) -> Tensor:
        if id(parameter) not in self.sums:
            self.sums[id(parameter)] = self.room(parameter.shape)
        return self.sums[id(parameter)]

    def _matrix(self, *weights: Tensor, dim: int = 0) -> Matrix:
        """Return weights side by side along `dim` as one matrix; their gradients are parts of its own."""
        if len(weights) == 1:
            [weight] = weights
            total, low = self._sum(weight), weight.detach()
            if self.dtype != weight.dtype:
                low = self._copy(torch.empty_like(low, dtype=self.dtype), weights)
        else:
            shape = list(weights[0].shape)
            shape[dim] = sum(weight.shape[dim] for weight in weights)
            total = self._shared(self.room(shape), weights, dim)
            low = self._copy(torch.empty(shape, dtype=self.dtype), weights, dim)
        self._matrices.append(Matrix(low, total))
        return self._matrices[-1]

    def _vector(self, *parameters: Tensor) -> Vector:
        """Return parameters one behind the other as one vector; their gradients are parts of its own."""
        if len(parameters) == 1:
            return Vector(array(parameters[0]), array(self._sum(parameters[0])))
        size = sum(map(len, parameters))
        total = self._shared(self.room([size]), parameters)
        return Vector(array(self._copy(torch.empty(size), parameters)), array(total))

    def _linear(self, module: nn.Linear) -> tuple[Matrix, Vector]:
        return self._matrix(module.weight), self._vector(module.bias)

    def _shared(self, total: Tensor, parameters: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Give each parameter its part of a sum along `dim`; return the sum."""
        parts = total.split([p.shape[dim] for p in parameters], dim)
        self.sums.update({id(p): part for p, part in zip(parameters, parts, strict=True)})
        return total

    def _copy(self, room: Tensor, parameters: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Copy parameters side by side into `room` now and whenever their values change; return it."""
        parts = room.split([p.shape[dim] for p in parameters], dim)
        self._copies += [(part, p.detach()) for part, p in zip(parts, parameters, strict=True)]
        for part, parameter in self._copies[-len(parts) :]:
            part.copy_(parameter)
        return room


def _memory(tensor: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Return where and how a tensor lies in memory."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _padded(size: int) -> int:
    """Return a number of float32 numbers, rounded up to whole vectors."""
    return -(-size // _VECTOR) * _VECTOR


class Training(Protocol):
    """The forward and the backward pass of one chunk in training."""

    def forward(self) -> Tensor:
        """Return the logits [M, V] at masked words, without the decoder's bias."""

    def learn(self, d_logits: Tensor) -> None:
        """Add the gradients of all parameters but the decoder's bias to the weights' sums."""


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


#: Weights that no step uses, for the next one of their model: one for each thread.
_resting: WeakKeyDictionary[MaskedLM, list[Weights]] = WeakKeyDictionary()


class Step(Generic[W]):
    """The loss of a batch, which is the sum of its masked words' over its `count`, and its gradients.

    `make` makes the weights of a model in `dtype`, and `begin` the pass of a chunk that adds its gradients to
    their sums.  Chunks have `chunk_size` words.  Each of several torch threads computes chunks of its own,
    with torch on one thread in it: the order of sums depends on the number of threads alone.
    """

    def __init__(
        self,
        model: MaskedLM,
        words: Batch,
        size: int,
        dtype: torch.dtype,
        make: Callable[[Any, torch.dtype], W],
        begin: Callable[[W, Chunk], Training],
    ) -> None:
        self.model, self.words, self.dtype, self._make, self._begin = model, words, dtype, make, begin
        self.parameters = list(model.parameters())
        self.threads = torch.get_num_threads()
        self.size = chunk_size(model, words, size, self.threads)
        self._small = sum(p.numel() for p in self.parameters) <= _KEPT
        self._spare = cast(list[W], _resting.setdefault(model, []))

    def differentiable(self) -> Tensor:
        """Return the loss as a differentiable function of the parameters."""
        loss: Tensor = _Loss.apply(self, *self.parameters)
        return loss

    def learn(self) -> Tensor:
        """Add the gradients to `.grad` of the parameters, without autograd; return the loss."""
        loss, weights = self.done()
        for parameter, gradient in zip(self.parameters, self.gradients(weights), strict=True):
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.add_(gradient)
        return self.parameters[0].new_tensor(loss)

    def done(self) -> tuple[float, W]:
        """Return the loss, and the weights with the sums of gradients."""
        chunks = list(packed(self.words, self.model, self.size))

        def work(k: int) -> tuple[float, W]:
            weights = self._weights()
            return sum(self._loss(weights, chunk) for chunk in chunks[k :: self.threads]), weights

        [(total, weights), *others] = on_threads(self.threads, work)
        for more, other in others:
            total += more
            weights.add(other)
            self._put_by(other)
        return total / self.words.count, weights

    def gradients(self, weights: W) -> list[Tensor]:
        """Return the gradients in one piece of memory that nothing else writes to; `weights` are used up."""
        found = weights.gradients(self.parameters, own=self._small)
        self._put_by(weights)
        return found

    def _weights(self) -> W:
        """Return the weights, with sums of zero."""
        with suppress(IndexError):
            while True:
                weights = self._spare.pop()
                if weights.serve(self.parameters, self.dtype):
                    weights.renew()
                    return weights
        return self._make(self.model, self.dtype)

    def _put_by(self, weights: W) -> None:
        """Keep weights for the next step, if the model is small."""
        if self._small and weights.rest() and len(self._spare) < self.threads:
            self._spare.append(weights)

    def _loss(self, weights: W, chunk: Chunk) -> float:
        """Return the sum of a chunk's losses, and add their gradients to the weights' sums."""
        work, bias = self._begin(weights, chunk), weights.decoder_bias
        logits = work.forward()
        total: float = kernels.cross_entropy(
            array(logits), bias.value, chunk.targets, np.float32(1 / self.words.count), bias.gradient
        )
        work.learn(logits)
        return total


class _Loss(torch.autograd.Function):
    """The loss of a step; its gradients are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, step: Step[Any], *parameters: Tensor) -> Tensor:
        loss, ctx.weights = step.done()
        ctx.step = step
        return parameters[0].new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        [factor] = given
        weights, ctx.weights = ctx.weights, None
        if weights is None:
            raise RuntimeError("the gradients of this loss were given out before; compute the loss again")
        found, ctx.step = ctx.step.gradients(weights), None
        if factor.item() != 1:
            torch._foreach_mul_(found, factor)
        return None, *(g if n else None for g, n in zip(found, ctx.needs_input_grad[1:], strict=True))
