"""Steps of a GPU that are recorded once and then replayed, so that they do not wait for the CPU.

A step of a small model is a few hundred kernels of some microseconds each, and starting them one by one takes
the CPU longer than the GPU needs for them.  A CUDA graph starts all of them at once.  It fixes shapes and
addresses, so a graph belongs to a number of rows (`raysweep.models.packed`), of which few occur, and what
changes from step to step is written to places that it reads: words, the key of dropout, the divisor of the
loss and the learning rate.  Recorded and plain steps are the same kernels on the same values, so a run may
have any mixture of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch, dropout_seed
from raysweep.models.packed import Rows
from raysweep.models.reproducible import reproducible

WARM_UP = 3  # plain steps of a shape before it is recorded: kernels are compiled and chosen in them
MOST = 4  # graphs of a run; steps of other shapes stay plain
#: A graph keeps the memory of a step to itself.  A step that takes a larger share of the GPU's memory than
#: this also takes longer than starting its kernels, and stays plain.
SHARE = 0.2

log = logging.getLogger(__name__)


class RecordedSteps:
    """The updates of one model by one optimizer, from rows of words."""

    def __init__(
        self,
        model: MaskedLM,
        optimizer: Optimizer,
        algorithm: AlgorithmConfig,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.model, self.optimizer, self.algorithm = model, optimizer, algorithm
        self.dtype, self.device = dtype, device
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._recorded: dict[tuple[int, ...], _Recorded] = {}
        #: Bytes that the last forward pass left for the backward pass.
        self._taken = 0
        self._key = torch.zeros((), dtype=torch.int64, device=device)
        self._count = torch.ones((), device=device)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
            group["capturable"] = True

    @staticmethod
    def serve(optimizer: Optimizer, algorithm: AlgorithmConfig, device: torch.device) -> bool:
        """Return whether steps of this kind can be recorded."""
        plain = algorithm.recordable and isinstance(optimizer, torch.optim.AdamW)
        return plain and device.type == "cuda"

    def update(self, words: Batch, seed: int) -> Tensor | None:
        """Update the weights and return the loss; None, with nothing done, where the model does not serve.

        `seed` is that of the step's dropout.  The learning rate is that of the optimizer's groups.
        """
        rows = self.model.rows(words, dtype=self.dtype)
        if rows is None:
            return None
        self._key.fill_(dropout_seed(words, seed))
        self._count.fill_(words.count)
        shape = (*rows.ids.shape, len(rows.masked))
        if shape not in self._recorded:
            self._seen[shape] += 1
            if self._seen[shape] <= WARM_UP or len(self._recorded) >= MOST or not self._fits():
                return self._work(rows)
            log.debug("recording the step of shape %s", shape)
            self._recorded[shape] = _Recorded(rows, self._work)
        return self._recorded[shape].replay(rows)

    def _fits(self) -> bool:
        """Whether the memory of a step may be kept for the graph."""
        return self._taken <= SHARE * torch.cuda.get_device_properties(self.device).total_memory

    def _work(self, rows: Rows) -> Tensor:
        def backward(half: int | None = None) -> Tensor:
            before = torch.cuda.memory_allocated(self.device)
            loss = self.model.rows_loss(rows, self._key, self._count)
            self._taken = torch.cuda.memory_allocated(self.device) - before
            with reproducible(self.device):
                torch.autograd.backward(loss)
            return loss.detach()

        loss = self.algorithm.gradient(self.model, backward)
        self.algorithm.before_update(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class _Recorded:
    """The work of a step on rows of one shape."""

    def __init__(self, rows: Rows, work: Callable[[Rows], Tensor]) -> None:
        self._inputs = Rows(*(tensor.clone() for tensor in rows.tensors))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = work(self._inputs)

    def replay(self, rows: Rows) -> Tensor:
        """Do the work on other rows, and return the loss."""
        torch._foreach_copy_(self._inputs.tensors, rows.tensors)
        self._graph.replay()
        # The next replay writes to the same place.
        return self._loss.clone()
