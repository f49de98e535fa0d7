"""Shares of the peak of matrix products, and of the time that goes into those with weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import median

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from raysweep.bench.environment import PEAK_SIZE
from raysweep.bench.record import Figure, Goal
from raysweep.flatness.fused import whole as of_traces
from raysweep.models.fused import weights
from raysweep.models.fused.encoder_weights import EncoderWeights
from raysweep.models.fused.products import Product
from raysweep.training.throughput import product_flops

#: Times that a rate and the peak are measured in turns, and products for a peak: the fastest counts.
_ROUNDS, _PRODUCTS = 5, 3


def by_peak(rate: Callable[[], float], dtype: torch.dtype = torch.float32, rounds: int = _ROUNDS) -> float:
    """Return the share of a processor's peak that a rate is, the median over rounds.

    `rate` measures it, in operations a CPU second.  The peak is that of torch's products of large matrices,
    just before and just after: where a processor has other work too, its speed changes within a minute.
    """
    peak = partial(product_flops, PEAK_SIZE, dtype, torch.device("cpu"), _PRODUCTS, time.process_time)
    found, before = [], peak()
    for _ in range(rounds):
        own, after = rate(), peak()
        found.append(2 * own / (before + after))
        before = after
    return median(found)


def share_of_peak(
    flops: float, work: Callable[[], object], dtype: torch.dtype = torch.float32, rounds: int = _ROUNDS
) -> float:
    """Return the share of the peak that `work` of `flops` useful operations reaches; it was done before."""

    def rate() -> float:
        began = time.process_time()
        work()
        return flops / (time.process_time() - began)

    return by_peak(rate, dtype, rounds)


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
    and within norms.  Where an encoder's passes are one or two calls of compiled code, the products are timed
    in the same passes call by call, and the whole work as it is.  It is done once before, on one thread.
    """
    shares = []

    def rate() -> float:
        share, found = _products(work)
        shares.append(share)
        return found

    work()
    found = by_peak(rate, dtype)
    return median(shares), found


def _products(work: Callable[[], object]) -> tuple[float, float]:
    """Return the time of products by that of the whole work, and their operations a second."""
    began = time.process_time()
    work()
    whole = time.process_time() - began
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
        call_by_call(work)
    finally:
        Product.__call__, weights.add_outer = multiply, add  # type: ignore[method-assign]
    return seconds / whole, flops / seconds


def call_by_call(work: Callable[[], object]) -> object:
    """Do some work in which encoders' passes call kernel by kernel, instead of being one call each."""
    whole_for, maker = EncoderWeights.whole_for, of_traces.maker
    EncoderWeights.whole_for = lambda self, chunk: None  # type: ignore[method-assign]
    of_traces.maker = lambda model: nullcontext()  # type: ignore[assignment, return-value]
    try:
        return work()
    finally:
        EncoderWeights.whole_for, of_traces.maker = whole_for, maker  # type: ignore[method-assign]


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
