"""The speed of training: tokens a second, and the share of the hardware's peak (MFU).

A token is a word of a sentence, masked or not; padding does not count.  Model FLOPs utilisation (Chowdhery
et al., "PaLM: scaling language modeling with pathways", JMLR 2023, appendix B) is the necessary operations of
training (`raysweep.models.flops`) a second, divided by the peak of all workers' devices.  Extra work, such as
padding or recomputed activations, takes time and adds no operations.  The first step of a process does not
count, because it compiles or loads kernels.

The peak of a device is measured, not looked up: the best of a few products of square matrices in the
precision and with the threads of training, once a process.  On a CPU, seconds are those of
processor time of the calling thread, so waiting for a processor takes nothing from the peak.  What shares a
core or a cache does, so a machine keeps the best that any of its processes has measured, in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from raysweep.files import write_atomic
from raysweep.languages.cache import cache_directory
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.flops import training_flops
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, masked_words
from raysweep.training.workers import summed

log = logging.getLogger("raysweep.training")

#: Rows of the matrices by which a device is measured, large enough to keep it busy.
_PRODUCT = {"cpu": 512, "cuda": 4096}
_REPEATS = 8


def best_seconds(
    work: Callable[[], object],
    repeats: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds of the fastest of `repeats` calls, including the device's work.

    One call before them warms up.
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
    """Return the operations a second of the fastest of `repeats` products of matrices [size, size]."""
    # Constants, because torch's generator belongs to the caller.
    a, b = (torch.full((size, size), 0.5, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / best_seconds(lambda: torch.mm(a, b, out=out), repeats, device, clock)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the measured peak of matrix products in `dtype` on `device`, operations a second."""
    return _peak_flops(device, dtype, torch.get_num_threads())


@cache
def _peak_flops(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    # Products on a CPU are the caller's own work, as far as it is not made to wait.
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    with torch.no_grad():
        found = product_flops(_PRODUCT.get(device.type, 512), dtype, device, clock=clock)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} × {threads}"
    facts = {"host": socket.gethostname(), "device": name, "dtype": str(dtype), "torch": torch.__version__}
    return _best_so_far(facts, found)


def _best_so_far(facts: dict[str, str], found: float) -> float:
    """Return the better of a peak and the one that is kept for these facts, and keep it."""
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    path = cache_directory() / "peaks" / f"{digest}.json"
    try:
        before = float(json.loads(path.read_bytes())["flops"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or of no use
        before = 0.0
    if found <= before:
        return before
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({**facts, "flops": found}).encode())
    except OSError as error:
        log.warning("the peak of this machine is not kept, so MFU of other runs may have another: %s", error)
    return found


class Throughput:
    """Counts tokens and operations of steps; all ranks create and read theirs together.

    `mean` are tokens a second and MFU of all steps that were taken so far; None where `take` has told none.
    """

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
        self._tokens = self._work = self._seconds = 0.0
        self.mean: tuple[float | None, float | None] = None, None

    def add(self, batch: Batch) -> None:
        """Count this rank's part of a step."""
        self._lengths.append(batch.lengths)

    def take(self, seconds: float) -> tuple[float | None, float | None]:
        """Return tokens a second and MFU of the steps since the last call, which took `seconds`.

        Both cover all ranks.  Both are None if there was no step; MFU is also None for a model without a
        known number of operations.
        """
        if not self._lengths:
            return None, None
        lengths = torch.cat(self._lengths)
        self._lengths.clear()
        flops = training_flops(self._model, lengths, masked_words(lengths, self._pretrain.mask))
        tokens, work = summed(
            self._world, [float(lengths.sum()), 0.0 if flops is None else float(flops)], self._device
        )
        self._tokens, self._work, self._seconds = (
            self._tokens + tokens,
            self._work + work,
            self._seconds + seconds,
        )

        def speeds(tokens: float, work: float, seconds: float) -> tuple[float, float | None]:
            return tokens / seconds, None if flops is None else work / seconds / self._peak

        self.mean = speeds(self._tokens, self._work, self._seconds)
        return speeds(tokens, work, seconds)
