"""One launch of the sweep of short runs, or of Ray alone, and the costs that records and processes tell."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.bench.harness import Spent
from raysweep.bench.launching import last_words, start, start_launch, with_engine, write_sweep
from raysweep.errors import RunFailedError
from raysweep.processes import Watch
from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep.tidy import tidy
from raysweep.training.checkpoint import MODEL

#: Seconds that the processes of a launch may take to leave after it.
_LEAVE = 60.0


#: Ray without raysweep; by its path, because its package imports much of raysweep.
_ALONE = (sys.executable, "-P", str(Path(__file__).with_name("alone.py")))


@dataclass(frozen=True, kw_only=True)
class Content:
    """The results of a sweep: its tidy table, and the sha256 of the weights of each run and milestone."""

    table: bytes
    weights: dict[tuple[str, int], str]

    def unlike(self, other: Content) -> int:
        """Return the number of weights that differ or are absent, and one more if the tables differ."""
        differing = {
            key
            for key in self.weights.keys() | other.weights.keys()
            if self.weights.get(key) != other.weights.get(key)
        }
        return len(differing) + (self.table != other.table)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The costs of one launch of `runs` runs, `slots` of them at once."""

    runs: int
    slots: int
    #: Seconds from the launch to the first step of the first run.
    first_step: float
    #: CPU seconds of the whole launch, with the start.
    cpu: float
    #: Seconds from start to end of the launch, and from its last result to the end of its last process.
    wall: float
    leaving: float
    #: CPU seconds, and seconds of a slot, of all runs after the first of each slot.
    spent: Spent
    #: Wall time of the second half of these runs by that of the first half.
    slowing: float
    #: Resident memory of the launch's own process at the end by that after the first runs.
    growing: float
    #: Bytes by which that grew for each run after the first hundred, 0 with fewer.
    each: float
    #: Peak of the proportional set size of all processes (GiB), 0 if not measured; the most processes.
    memory: float
    processes: int
    content: Content

    @property
    def counted(self) -> int:
        """The number of runs after warm-up."""
        return self.runs - self.slots


def launch(sweep: dict[str, Any], engine: str | None, *, memory: bool = False) -> Measured:
    """Launch a sweep in a new folder and measure it; without an engine, the bare loop does its runs.

    Raises `RunFailedError` where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as place:
        folder = Path(place)
        log, storage = folder / "log", folder / "results"
        file = write_sweep(folder, sweep if engine is None else with_engine(sweep, engine))
        began = time.time()
        if engine is None:
            bare = (sys.executable, "-m", "raysweep.bench.engine.bare", str(file), str(storage))
            process = start(bare, log)
        else:
            process = start_launch(file, storage, log)
        # To measure memory takes milliseconds for each process.
        watch = Watch(process.pid, period=1.0 if memory else 0.25, memory=memory)
        watch.start()
        try:
            code = process.wait()
            ended = time.time()
            left = _wait_for_the_last(watch, process)
        finally:
            process.kill()
            watch.close()
        if code != 0:
            raise RunFailedError(
                f"bench engine: {engine or 'bare'} ended with code {code}: {last_words(log)}"
            )
        loaded = load_sweep(file, storage=storage)
        slots = 1 if engine is None else int(sweep["resources"]["max_concurrent"])
        return _measured(loaded, watch, began, ended, left, slots)


@dataclass(frozen=True)
class Alone:
    """Seconds from the start to the first worker's note, the peak of the memory (GiB), the most processes."""

    first_step: float
    memory: float
    processes: int


def alone(trials: int) -> Alone:
    """Start Ray without raysweep, with so many trials at once, and measure it.

    Raises `RunFailedError` where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as place:
        folder = Path(place)
        began = time.time()
        process = start((*_ALONE, str(trials), place), folder / "log")
        watch = Watch(process.pid, period=1.0, memory=True)
        watch.start()
        try:
            code = process.wait()
        finally:
            process.kill()
            watch.close()
        noted = [float(note.read_text()) for note in folder.glob("*.noted")]
        if code != 0 or len(noted) != trials:
            raise RunFailedError(f"bench engine: Ray alone ended with {code}: {last_words(folder / 'log')}")
        return Alone(
            first_step=min(noted) - began,
            memory=max(sample.memory for sample in watch.samples) / 2**30,
            processes=max(sample.processes for sample in watch.samples),
        )


@dataclass(frozen=True)
class Kept:
    """Bytes that MLflow's client with a store takes, and those of a trial after the first hundred."""

    client: float
    trial: float


def kept(trials: int) -> Kept:
    """Let Tune do so many trials without raysweep, and measure what its process keeps.

    Raises `RunFailedError` where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as place:
        log, answer = Path(place) / "log", Path(place) / "kept"
        process = start((*_ALONE, "kept", str(trials), place), log)
        try:
            code = process.wait()
        finally:
            process.kill()
        if code != 0 or not answer.exists():
            raise RunFailedError(f"bench engine: Tune alone ended with {code}: {last_words(log)}")
        return Kept(**json.loads(answer.read_text(encoding="utf-8")))


def _wait_for_the_last(watch: Watch, process: subprocess.Popen[bytes]) -> float:
    """Wait until no process of a launch is left and return the moment, in unix seconds."""
    deadline = time.monotonic() + _LEAVE
    while watch.alive():
        if time.monotonic() > deadline:
            raise RunFailedError(f"bench engine: processes are left {_LEAVE:.0f} s after the end of a launch")
        time.sleep(0.1)
    return time.time()


def _measured(sweep: Sweep, watch: Watch, began: float, ended: float, left: float, slots: int) -> Measured:
    started, done = moments(sweep)
    first, middle, last = done[slots - 1], done[(slots - 1 + len(done) - 1) // 2], done[-1]
    root = {sample.time: sample.root for sample in watch.samples}
    after = [size for moment, size in root.items() if first <= moment <= last and size] or [1]
    return Measured(
        runs=len(done),
        slots=slots,
        first_step=started - began,
        cpu=watch.samples[-1].cpu_seconds,
        wall=ended - began,
        leaving=left - last,
        spent=Spent(cpu=watch.cpu_at(last) - watch.cpu_at(first), wall=slots * (last - first)),
        slowing=(last - middle) / (middle - first),
        growing=after[-1] / after[0],
        each=_growth([(t, size) for t, size in root.items() if size], done),
        memory=max(sample.memory for sample in watch.samples) / 2**30,
        processes=max(sample.processes for sample in watch.samples),
        content=content(sweep),
    )


def _growth(sizes: list[tuple[float, int]], done: list[float], first: int = 100) -> float:
    """Return the growth of a size between the ends of the run after `first` others and the last, a run."""
    if len(done) <= first:
        return 0.0
    between = [size for moment, size in sizes if done[first - 1] <= moment <= done[-1]] or [0]
    return (between[-1] - between[0]) / (len(done) - first)


def moments(sweep: Sweep) -> tuple[float, list[float]]:
    """Return the moment of the first step of all, and the sorted moments at which runs were complete.

    Both are in unix seconds.  A checkpoint says when it was recorded and how long training had taken.
    """
    ledger = sweep.ledger()
    begun, done = [], []
    for spec in sweep.runs:
        run = ledger.open(spec.run_id)
        first, records = run.checkpoint(spec.milestones[0]), run.evaluations()
        if first is None or not records:
            raise RunFailedError(f"bench engine: {spec.run_id} is not complete")
        begun.append(first.time - first.train_seconds)
        done.append(max(record.time for record in records))
    return min(begun), sorted(done)


def content(sweep: Sweep) -> Content:
    """Return the results of a sweep."""
    ledger = sweep.ledger()
    weights = {
        (spec.run_id, record.step): record.files[MODEL].sha256
        for spec in sweep.runs
        for record in ledger.open(spec.run_id).checkpoint_records()
    }
    return Content(table=tidy(ledger, sweep).to_csv(index=False).encode(), weights=weights)
