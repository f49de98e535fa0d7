"""A training step by a fused path, and its link to autograd.

A path computes gradients along with the loss, chunk by chunk, and sums them in float32.  To autograd the
whole path is one function of all parameters; training does without autograd.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.fused import kernels
from raysweep.models.fused.packing import Chunk, packed
from raysweep.models.fused.weights import Weights

_LARGE = 4096  # words of a vocabulary
#: Most numbers of a model whose weights are kept from step to step.  For a small model, making them takes
#: noticeable time; for a large one it does not, and the memory counts.
_KEPT = 2**22

R = TypeVar("R")
W = TypeVar("W", bound=Weights)


class Training(Protocol):
    """The forward and the backward pass of one chunk in training.

    Arrays are as `raysweep.models.fused.products.array` returns them.
    """

    def forward(self) -> np.ndarray:
        """Return the logits [M, V] at masked words, without the decoder's bias."""

    def learn(self, d_logits: np.ndarray) -> None:
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
    return size if threads == 1 else min(size, -(-int(words.lengths.numpy().sum()) // threads))


class Known:
    """A model's parameters, and weights that no step uses, known from one step to the next.

    Walking through a model's modules takes longer than looking whether anything in them has been replaced.
    """

    def __init__(self, model: MaskedLM) -> None:
        self.parameters = list(model.parameters())
        #: Whether weights are kept for the next step.
        self.small = sum(p.numel() for p in self.parameters) <= _KEPT
        #: One for each thread, at most.
        self.spare: list[Any] = []
        #: All modules without the model itself, which would not be freed.
        self.inside = list(model.modules())[1:]
        self._entries = list(self._now(model))

    def holds(self, model: MaskedLM) -> bool:
        """Return whether the model has the same modules and parameters as before."""
        now = list(self._now(model))
        return len(now) == len(self._entries) and all(map(operator.is_, now, self._entries))

    def _now(self, model: MaskedLM) -> Iterator[object]:
        for module in (model, *self.inside):
            yield from module._parameters.values()
            yield from module._modules.values()


_known: WeakKeyDictionary[MaskedLM, Known] = WeakKeyDictionary()


def known(model: MaskedLM) -> Known:
    """Return what is known of a model as it is now."""
    found = _known.get(model)
    if found is None or not found.holds(model):
        found = _known[model] = Known(model)
    return found


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
        self._known = known(model)
        self.parameters = self._known.parameters
        self.threads = torch.get_num_threads()
        self.size = chunk_size(model, words, size, self.threads)

    def differentiable(self) -> Tensor:
        """Return the loss as a differentiable function of the parameters."""
        loss: Tensor = _Loss.apply(self, *self.parameters)
        return loss

    def learn(self) -> Tensor:
        """Add the gradients to `.grad` of the parameters, without autograd; return the loss."""
        loss, weights = self.done()
        self.give(weights)
        return self.parameters[0].new_tensor(loss)

    def give(self, weights: W) -> None:
        """Add the gradients to `.grad` of the parameters; `weights` are used up."""
        for parameter, gradient in zip(self.parameters, self.gradients(weights), strict=True):
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.add_(gradient)

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
            self.put_by(other)
        return total / self.words.count, weights

    def gradients(self, weights: W) -> list[Tensor]:
        """Return the gradients in one piece of memory that nothing else writes to; `weights` are used up."""
        found = weights.gradients(self.parameters, own=self._known.small)
        self.put_by(weights)
        return found

    def _weights(self) -> W:
        """Return the weights, with sums of zero."""
        with suppress(IndexError):
            while True:
                weights: W = self._known.spare.pop()
                if weights.serve(self.parameters, self.dtype):
                    weights.renew()
                    return weights
        return self._make(self.model, self.dtype)

    def put_by(self, weights: W) -> None:
        """Keep weights for the next step, if the model is small."""
        if self._known.small and weights.rest() and len(self._known.spare) < self.threads:
            self._known.spare.append(weights)

    def _loss(self, weights: W, chunk: Chunk) -> float:
        """Return the sum of a chunk's losses, and add their gradients to the weights' sums."""
        work, bias = self._begin(weights, chunk), weights.decoder_bias
        logits = work.forward()
        total: float = kernels.cross_entropy(
            logits, bias.value, chunk.targets, np.float32(1 / self.words.count), bias.gradient
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
