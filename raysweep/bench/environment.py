"""The machine of a benchmark, and the most that it can do.

Nothing here names the machine, its user or its folders, because records are published.
"""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from raysweep.bench.harness import Device
from raysweep.bench.record import Environment, Peak
from raysweep.compiled import amx
from raysweep.sweep.provenance import provenance
from raysweep.training.throughput import best_seconds, product_flops

#: Rows and columns of the matrices whose product has the peak's speed on a processor.
PEAK_SIZE = 1536

PACKAGES = (
    *("raysweep", "torch", "numpy", "numba", "transformers", "ray", "mlflow"),
    *("hmmlearn", "nltk", "torch-struct", "dynamax", "jax"),
    *("opacus", "curvlinops-for-pytorch", "scikit-learn", "accelerate"),
)


class Company:
    """Counts what else the machine does from now on, besides the work of this process and its children.

    It is read from /proc/stat, where the system has that.
    """

    def __init__(self) -> None:
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, float] | None:
        """Return seconds: of all processors at work, those taken away, all of them, and our own at work."""
        try:
            line = Path("/proc/stat").read_text().splitlines()[0]
        except OSError:
            return None
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in line.split()[1:9]
        )
        busy = user + nice + system + irq + softirq
        own = os.times()
        return busy, steal, busy + steal + idle + iowait, sum(own[:4])

    def told(self) -> tuple[float | None, float | None]:
        """Return the number of processors that other work kept busy, and the share of time taken away."""
        now, before = self._now(), self._began
        if now is None or before is None:
            return None, None
        busy, stolen, whole, own = (a - b for a, b in zip(now, before, strict=True))
        seconds = whole / (os.cpu_count() or 1)
        return (max(0.0, busy - own) / seconds, stolen / whole) if whole else (None, None)


def environment(threads: int, device: Device = "cpu", company: Company | None = None) -> Environment:
    """Return processor, GPU where the suite runs on one, versions, commit and date.

    `company` has seen the measurements.
    """
    facts = provenance()
    others, stolen = (None, None) if company is None else company.told()
    return Environment(
        date=time.strftime("%Y-%m-%d", time.gmtime(facts["time"])),
        cpu=facts["processor"],
        cpu_capability=_capability(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        threads=threads,
        gpu=torch.cuda.get_device_name() if device == "cuda" else None,
        others=None if others is None else round(others, 2),
        stolen=None if stolen is None else round(stolen, 4),
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
    full = PEAK_SIZE if device == "cpu" else 8192
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


def _capability() -> str:
    """Return the instruction sets that count: torch's own word, and AMX, which some hosts hide or forbid."""
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{vectors} AMX" if amx.usable() else vectors


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
