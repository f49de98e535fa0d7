"""The machine of a benchmark, and the most that it can do.

Nothing here names the machine, its user or its folders, because records are published.
"""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version

import torch

from raysweep.bench.harness import Device
from raysweep.bench.record import Environment, Peak
from raysweep.sweep.provenance import provenance
from raysweep.training.throughput import best_seconds, product_flops

PACKAGES = (
    *("raysweep", "torch", "numpy", "numba", "transformers", "ray", "mlflow"),
    *("hmmlearn", "nltk", "torch-struct", "dynamax", "jax"),
    *("opacus", "curvlinops-for-pytorch", "scikit-learn", "accelerate"),
)


def environment(threads: int, device: Device = "cpu") -> Environment:
    """Return processor, GPU where the suite runs on one, versions, commit and date."""
    facts = provenance()
    return Environment(
        date=time.strftime("%Y-%m-%d", time.gmtime(facts["time"])),
        cpu=facts["processor"],
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        threads=threads,
        gpu=torch.cuda.get_device_name() if device == "cuda" else None,
        system=platform.system(),
        python=facts["python"],
        versions={name: found for name in PACKAGES if (found := _version(name)) is not None},
        commit=facts["git_commit"],
        dirty=facts["git_dirty"],
    )


def measure_peak(quick: bool = False, device: Device = "cpu") -> Peak:
    """Measure the fastest of several products of square matrices, and of several copies.

    A copy of n bytes counts as 2n, for it reads and writes.  Times are CPU times, or wall times on a GPU.
    """
    full = 1536 if device == "cpu" else 8192
    size, repeats = (512, 3) if quick else (full, 7)
    where = torch.device(device)
    clock = time.process_time if device == "cpu" else time.perf_counter

    def gflops(dtype: torch.dtype) -> float:
        return 1e-9 * product_flops(size, dtype, where, repeats, clock)

    # Far more than any cache holds.
    source = torch.zeros(1 << 26, device=device)
    target = torch.zeros_like(source)
    seconds = best_seconds(lambda: target.copy_(source), repeats, where, clock)
    return Peak(
        gemm_float32_gflops=gflops(torch.float32),
        gemm_float64_gflops=gflops(torch.float64),
        gemm_bfloat16_gflops=gflops(torch.bfloat16),
        copy_gbytes=2e-9 * source.numel() * source.itemsize / seconds,
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
