"""Steps of a GPU that are recorded once and then replayed, so that they do not wait for the CPU.

A step of a small model is a few hundred kernels of some microseconds each, and starting them one by one takes
the CPU longer than the GPU needs for them.  A CUDA graph starts all of them at once.  It fixes shapes and
addresses.  So a graph belongs to a number of rows (`raysweep.models.packed`), and few numbers occur.  What
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
#: Graphs keep the memory of a step to themselves.  A step stays plain if its forward pass leaves more than
#: this share of the GPU's memory to the backward pass; it then takes longer than starting its kernels.
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
        self._stopped = False
        #: Bytes that the last forward pass left for the backward pass.
        self._taken = 0
        self._key = torch.zeros((), dtype=torch.int64, device=device)
        self._count = torch.ones((), dtype=torch.float32, device=device)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
            group["capturable"] = True

    @staticmethod
    def serve(optimizer: Optimizer, algorithm: AlgorithmConfig, device: torch.device) -> bool:
        """Return whether steps of this kind can be recorded."""
        # What holds for an algorithm need not hold for a subclass.
        recordable = vars(type(algorithm)).get("recordable", False)
        return bool(recordable) and isinstance(optimizer, torch.optim.AdamW) and device.type == "cuda"

    def update(self, words: Batch, seed: int) -> Tensor | None:
        """Update the weights and return the loss; None, with nothing done, where it cannot.

        That is where the model's loss is not made of rows, and once a step has not fitted into the memory.
        `seed` is that of the step's dropout.  The learning rate is that of the optimizer's groups.
        """
        rows = None if self._stopped else self.model.rows(words, dtype=self.dtype)
        if rows is None:
            return None
        self._key.fill_(dropout_seed(words, seed))
        self._count.fill_(words.count)
        shape = (*rows.ids.shape, len(rows.masked))
        # A graph is recorded, and Triton's kernels are started, on the current GPU.
        with torch.cuda.device_of(self._key):
            try:
                if shape not in self._recorded and self._to_record(shape):
                    log.debug("recording the step of shape %s", shape)
                    other = next(iter(self._recorded.values()), None)
                    self._recorded[shape] = _Recorded(rows, self._work, other)
                loss = None if shape in self._recorded else self._gradient(rows)
            except torch.OutOfMemoryError:
                self.stop()
                return None
            if loss is None:
                return self._recorded[shape].replay(rows)
            self._apply()
            return loss

    def stop(self) -> None:
        """Leave all further steps to others, and give the memory of graphs back."""
        if not self._stopped:
            log.warning("a step does not fit into the memory of %s; steps are not recorded", self.device)
        self._stopped = True
        self._recorded.clear()
        self.optimizer.zero_grad()
        torch.cuda.empty_cache()

    def _to_record(self, shape: tuple[int, ...]) -> bool:
        """Count a plain step of this shape; return whether it is time to record one instead."""
        self._seen[shape] += 1
        # Graphs of one model share their memory.
        fits = self._taken <= SHARE * torch.cuda.get_device_properties(self.device).total_memory
        return fits and self._seen[shape] > WARM_UP and len(self._recorded) < MOST

    def _work(self, rows: Rows) -> Tensor:
        loss = self._gradient(rows)
        self._apply()
        return loss

    def _gradient(self, rows: Rows) -> Tensor:
        def backward(half: int | None = None) -> Tensor:
            before = torch.cuda.memory_allocated(self.device)
            loss = self.model.rows_loss(rows, self._key, self._count)
            self._taken = torch.cuda.memory_allocated(self.device) - before
            with reproducible(self.device):
                torch.autograd.backward(loss)
            return loss.detach()

        return self.algorithm.gradient(self.model, backward)

    def _apply(self) -> None:
        self.algorithm.before_update(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()


class _Recorded:
    """The work of a step on rows of one shape.

    It uses the memory of an `other` graph of the same model: no step leaves anything there for the next.
    """

    def __init__(self, rows: Rows, work: Callable[[Rows], Tensor], other: _Recorded | None) -> None:
        self._inputs = Rows(*(tensor.clone() for tensor in rows.tensors))
        self._graph = torch.cuda.CUDAGraph()
        pool = None if other is None else other._graph.pool()
        # A thread draws words meanwhile and waits for them, which by default would spoil the recording.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._loss = work(self._inputs)

    def replay(self, rows: Rows) -> Tensor:
        """Do the work on other rows, and return the loss."""
        torch._foreach_copy_(self._inputs.tensors, rows.tensors)
        self._graph.replay()
        # The next replay writes to the same place.
        return self._loss.clone()
