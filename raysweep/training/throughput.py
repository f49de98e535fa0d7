"""How fast a run trains: tokens a second, and the share of the peak that its matrix products reach (MFU).

A token is a word of a sentence, masked or not; padding counts for nothing.  Model FLOPs utilisation
(Chowdhery et al., "PaLM: scaling language modeling with pathways", JMLR 2023, appendix B) is the operations
that training must do (`raysweep.models.flops`) a second, by the most that all workers' devices give.  What is
computed beyond that, such as padding or activations for a second time, raises the time alone.  The first step
of a process, in which kernels are compiled or loaded, counts for nothing.

The most that a device gives is measured rather than looked up: the best of a few products of square matrices
in the precision and with the threads of training, once a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from raysweep.models.base import MaskedLM
from raysweep.models.flops import training_flops
from raysweep.training.config import PretrainConfig
from raysweep.training.data import Batch, World, masked_words
from raysweep.training.workers import summed

#: Rows of the matrices by which a device is measured, large enough to keep it busy.
_PRODUCT = {"cpu": 512, "cuda": 4096}
_REPEATS = 8


def best_seconds(
    work: Callable[[], object],
    repeats: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds of the fastest of `repeats` calls, until the device is done.

    A call before them warms up.
    """

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock()

    work()
    best = float("inf")
    for _ in range(repeats):
        started = now()
        work()
        best = min(best, now() - started)
    return best


def product_flops(
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    repeats: int = _REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the operations a second of the best of `repeats` products of square matrices [size, size]."""
    # Not drawn: torch's generator is the caller's.
    a, b = (torch.full((size, size), 0.5, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / best_seconds(lambda: torch.mm(a, b, out=out), repeats, device, clock)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the most operations a second that matrix products in `dtype` reach here, measured once."""
    return _peak_flops(device, dtype, torch.get_num_threads())


@cache
def _peak_flops(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    with torch.no_grad():
        return product_flops(_PRODUCT.get(device.type, 512), dtype, device)


class Throughput:
    """Tokens and operations of the steps since the last look; all ranks make and ask theirs together."""

    def __init__(
        self,
        model: MaskedLM,
        pretrain: PretrainConfig,
        world: World,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._model, self._pretrain, self._world, self._device = model, pretrain, world, device
        [self._peak] = summed(world, [peak_flops(device, dtype)], device)
        self._lengths: list[Tensor] = []

    def add(self, batch: Batch) -> None:
        """Count this rank's part of a step."""
        self._lengths.append(batch.lengths)

    def take(self, seconds: float) -> tuple[float | None, float | None]:
        """Return tokens a second and MFU of the steps since the last call, which took `seconds`.

        Both are of all ranks together, and None where there was no step; MFU is None as well for a model
        whose operations are not known.
        """
        if not self._lengths:
            return None, None
        lengths = torch.cat(self._lengths)
        self._lengths.clear()
        flops = training_flops(self._model, lengths, masked_words(lengths, self._pretrain.mask))
        tokens, work = summed(
            self._world, [float(lengths.sum()), 0.0 if flops is None else float(flops)], self._device
        )
        return tokens / seconds, None if flops is None else work / seconds / self._peak
