"""The suites: their cases, and the runs of them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from raysweep.bench.harness import Device, Entry, Say, run_case
from raysweep.bench.process import call
from raysweep.bench.record import Record
from raysweep.errors import ConfigError, RunFailedError
from raysweep.registry import suggest

#: The modules of the suites; each holds `ENTRIES`.
SUITES = {
    "exact": "raysweep.bench.exact",
    "train": "raysweep.bench.train",
    "trace": "raysweep.bench.trace",
    "downstream": "raysweep.bench.downstream",
    "growth": "raysweep.bench.growth",
}

#: The modules of the benchmarks with runners of their own: of whole sweeps, and of the report's statistics.
OWN_RUNNERS = {
    "engine": "raysweep.bench.engine",
    "chaos": "raysweep.bench.chaos",
    "statistics": "raysweep.bench.statistics",
    "scale": "raysweep.bench.scale",
}


def entries(suite: str, only: Sequence[str] = (), device: Device = "cpu") -> list[Entry]:
    """Return the cases of a suite on a device, or those of them that `only` names.

    Raises `ConfigError` for a key that the suite lacks, and for a device without cases.
    """
    every: Sequence[Entry] = importlib.import_module(SUITES[suite]).ENTRIES
    found = {entry.key: entry for entry in every if entry.device == device}
    if not found:
        raise ConfigError(f"--device {device}: bench {suite} has no case there; leave it out")
    for key in only:
        if key not in found:
            raise ConfigError(
                f"--only: bench {suite} has no case '{key}'{suggest(key, found)}; it has {', '.join(found)}"
            )
    return [entry for key, entry in found.items() if not only or key in only]


def measure(
    suite: str, only: Sequence[str] = (), *, quick: bool, threads: int, device: Device = "cpu"
) -> Record:
    """Run a suite in a process of its own; raises `ConfigError` and `RunFailedError`."""
    keys = [entry.key for entry in entries(suite, only, device)]
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("--device cuda: torch finds no GPU here; leave it out to measure the processor")
    request = {"suite": suite, "only": keys, "quick": quick, "threads": threads, "device": device}
    return Record.model_validate_json(call("raysweep.bench", request, threads=threads))


def judge(record: Record, *, strict: bool = False) -> None:
    """Raise `RunFailedError` where a peer's results differ, and where one is absent if `strict`."""
    wrong = record.of_status("failed")
    if wrong:
        raise RunFailedError(f"bench {record.suite}: not equal to raysweep: {'; '.join(wrong)}")
    absent = [case.key for case in record.cases if case.reason is not None] + record.of_status("absent")
    if strict and absent:
        raise RunFailedError(f"bench {record.suite}: absent: {'; '.join(absent)}; the table says why")


def run_here(
    suite: str, only: Sequence[str], *, quick: bool, threads: int, say: Say, device: Device = "cpu"
) -> Record:
    """Run a suite in this process, whose threads have been set."""
    import torch

    from raysweep.bench.environment import Company, environment, measure_peak
    from raysweep.training.memory import keep_freed_memory

    # As raysweep's own processes do.
    keep_freed_memory()
    torch.set_num_threads(threads)
    company = Company()
    peak = measure_peak(quick, device)
    say(
        f"peak: {peak.gemm_float32_gflops:.0f} GF/s float32, {peak.gemm_float64_gflops:.0f} GF/s float64, "
        f"copy {peak.copy_gbytes:.0f} GB/s"
    )
    cases = tuple(run_case(entry, peak, quick=quick, say=say) for entry in entries(suite, only, device))
    place = environment(threads, device, company)
    return Record(suite=suite, quick=quick, environment=place, peak=peak, cases=cases)
