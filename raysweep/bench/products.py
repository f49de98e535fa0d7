"""The share of the time that goes into matrix products with weights, and their speed."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from raysweep.models.fused import weights
from raysweep.models.fused.products import Product


def products(work: Callable[[], object]) -> tuple[float, float]:
    """Return the share of the CPU time of `work` in products with weights, and their operations a second.

    They are those of `raysweep.models.fused` and of traces by it, without the small products within attention
    and within norms.  The work is done twice, on one thread, and measured the second time.
    """
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

    work()
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
