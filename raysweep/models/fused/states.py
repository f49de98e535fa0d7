"""Hidden states at chosen words as a differentiable function of a model's parameters, without padding.

It serves losses that torch computes from hidden states, such as that of a classifier in fine-tuning.  The
passes are those of pre-training.  Between forward and backward they keep the activations of the whole batch,
because the gradient of the states is not known before; the masked-LM loss, and states without gradients, keep
those of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol

import numpy as np
import torch
from torch import Tensor

from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.fused.packing import Chunk, packed
from raysweep.models.fused.products import array, tensor
from raysweep.models.fused.step import W, chunk_size, on_threads


class Reading(Protocol):
    """The forward and the backward pass of one chunk, without the head.

    Arrays are as `raysweep.models.fused.products.array` returns them.
    """

    def encode(self) -> np.ndarray:
        """Return hidden states [M, D] at masked words, in the working precision."""

    def learn_states(self, d_states: np.ndarray) -> None:
        """Add the gradients of the parameters to the weights' sums, given that of the states [M, D]."""


def states(
    model: MaskedLM,
    words: Batch,
    size: int,
    make: Callable[[], W],
    begin: Callable[[W, Chunk], Reading],
    read: Callable[[W, Chunk], np.ndarray | None] = lambda weights, chunk: None,
) -> Tensor:
    """Return hidden states [M, D] at `words.index`, in its order, float32, to differentiate once.

    Where gradients are off, as in evaluation, they are plain states.  `size`, `make`, `begin` and threads are
    as in `raysweep.models.fused.step.Step`.  `read` returns what `Reading.encode` does for a chunk, or the
    same in float32, where no backward pass follows, or None.  Parameters that the head alone uses have no
    part in it.
    """
    head = {id(parameter) for parameter in model.head_parameters()}
    body = [parameter for parameter in model.parameters() if id(parameter) not in head]
    threads = torch.get_num_threads()
    chunks = list(packed(words, model, chunk_size(model, words, size, threads)))
    out = torch.empty(len(words.index), model.width)
    kept = torch.is_grad_enabled()
    work = _Work(chunks, threads, make, begin, read, out, kept=kept)
    result: Tensor = _States.apply(work, *body) if kept else work.forward()
    return result


class _Work(Generic[W]):
    """Both passes of all chunks of a batch, on as many threads as torch has."""

    def __init__(
        self,
        chunks: list[Chunk],
        threads: int,
        make: Callable[[], W],
        begin: Callable[[W, Chunk], Reading],
        read: Callable[[W, Chunk], np.ndarray | None],
        out: Tensor,
        *,
        kept: bool,
    ) -> None:
        self.chunks, self.threads, self.out, self._kept = chunks, threads, out, kept
        self._make, self._begin, self._read = make, begin, read
        self._begun: list[tuple[W, list[Reading]]] = []

    def forward(self) -> Tensor:
        """Return the states [M, D], and keep the arrays of the backward pass if there is one."""

        def work(k: int) -> tuple[W, list[Reading]]:
            weights, passes = self._make(), []
            for chunk in self.chunks[k :: self.threads]:
                found = None if self._kept else self._read(weights, chunk)
                if found is None:
                    reading = self._begin(weights, chunk)
                    found = reading.encode()
                    if self._kept:
                        passes.append(reading)
                self.out[torch.from_numpy(chunk.number)] = tensor(found).float()
            return weights, passes

        self._begun = on_threads(self.threads, work)
        return self.out

    def backward(self, d_out: Tensor) -> W:
        """Return the weights with their sums of gradients, given that of the states; free the arrays."""
        if not self._begun:
            raise RuntimeError(
                "the gradients of these states were given out before; compute the states again"
            )
        begun, self._begun = self._begun, []

        def work(k: int) -> W:
            weights, passes = begun[k]
            for chunk, reading in zip(self.chunks[k :: self.threads], passes, strict=True):
                d_states = d_out[torch.from_numpy(chunk.number)].to(weights.dtype)
                reading.learn_states(array(d_states))
            return weights

        weights, *others = on_threads(self.threads, work)
        for other in others:
            weights.add(other)
        return weights


class _States(torch.autograd.Function):
    """The states; their gradients come from the passes that made them."""

    @staticmethod
    def forward(ctx: Any, work: _Work[Any], *parameters: Tensor) -> Tensor:
        ctx.work, ctx.parameters = work, parameters
        return work.forward()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.work.backward(given[0]).gradients(ctx.parameters, own=False)
        return None, *(g if n else None for g, n in zip(found, ctx.needs_input_grad[1:], strict=True))
