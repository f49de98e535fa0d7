"""Shares of the peak of matrix products, and of the time that goes into those with weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from raysweep.bench.harness import Contestant, paired_ratio
from raysweep.bench.record import Figure, Goal
from raysweep.models.fused import weights
from raysweep.models.fused.products import Product

#: Rows and columns of the matrices whose product has the peak's speed.
_SIZE = 1536

#: Times that work and the peak are measured in turns.
_ROUNDS = 5


def peak(dtype: torch.dtype = torch.float32) -> Contestant:
    """Return torch's product of large matrices; a unit is an operation.

    Its rate is the peak.  Where a processor does other work as well, its speed changes within a minute, so a
    share of the peak is only known where both rates are measured in turns.
    """
    # Constants, because torch's generator belongs to the caller.
    a, b = (torch.full((_SIZE, _SIZE), 0.5, dtype=dtype) for _ in range(2))
    return Contestant(units=2.0 * _SIZE**3, work=partial(torch.mm, a, b, out=torch.empty_like(a)))


def share_of_peak(
    flops: float, work: Callable[[], object], dtype: torch.dtype = torch.float32, rounds: int = _ROUNDS
) -> float:
    """Return the share of the peak that `work` of `flops` useful operations reaches on a processor."""
    most = peak(dtype)
    # Both rates are operations per CPU second of all threads together.
    return flops / most.units * paired_ratio(most.work, work, rounds)


def share_of_gemm(
    flops: float, work: Callable[[], object], goal: float | None = None, rounds: int = _ROUNDS
) -> Figure:
    """Return `share_of_peak` in float32 as a figure."""
    return Figure(
        name="share of the float32 GEMM peak",
        unit="",
        value=share_of_peak(flops, work, rounds=rounds),
        goal=None if goal is None else Goal(sense="at least", value=goal),
    )


def products(work: Callable[[], object], dtype: torch.dtype = torch.float32) -> tuple[float, float]:
    """Return the share of the CPU time of `work` in products with weights, and their rate by the peak's.

    They are those of `raysweep.models.fused` and of traces by it, without the small products within attention
    and within norms.  The work is done once before it is measured, on one thread.
    """
    most = peak(dtype)
    work(), most.work()
    shares, rates = [], []
    for _ in range(_ROUNDS):
        began = time.process_time()
        most.work()
        best = most.units / (time.process_time() - began)
        share, rate = _products(work)
        shares.append(share)
        rates.append(rate / best)
    return median(shares), median(rates)


def _products(work: Callable[[], object]) -> tuple[float, float]:
    """Return the share of the CPU time of one call in products, and their operations a second."""
    seconds, flops = 0.0, 0.0
    multiply, add = Product.__call__, weights.add_outer

    def took(began: float, factors: np.ndarray, columns: int) -> None:
        nonlocal seconds, flops
        seconds += time.process_time() - began
        flops += 2.0 * factors.size * columns

    def timed(self: Product, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        began = time.process_time()
        found = multiply(self, x, out)
        took(began, x, self.columns // self.parts)
        return found

    def timed_sum(total: np.ndarray, d: np.ndarray, x: np.ndarray, parts: int = 1) -> None:
        began = time.process_time()
        add(total, d, x, parts)
        took(began, d, total.shape[1])

    Product.__call__, weights.add_outer = timed, timed_sum  # type: ignore[method-assign]
    try:
        began = time.process_time()
        work()
        whole = time.process_time() - began
    finally:
        Product.__call__, weights.add_outer = multiply, add  # type: ignore[method-assign]
    return seconds / whole, flops / seconds


def rate_on_gpu(work: Callable[[], object]) -> float:
    """Return the operations a second of torch's matrix products on a GPU, while they run.

    The work is done twice, and measured the second time.  It must not replay graphs, whose kernels belong to
    no operation of torch.
    """
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_flops=True) as taken:
        work()
        torch.cuda.synchronize()
    own = [one for one in taken.key_averages() if one.key in ("aten::mm", "aten::addmm")]
    return 1e6 * sum(one.flops for one in own) / sum(one.self_device_time_total for one in own)
