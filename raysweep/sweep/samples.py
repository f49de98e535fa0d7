"""The samples of a search: those that are known, what became of them, and the next one.

    <storage>/<sweep>/search/<digest>/sample-00012.json     the settings that Optuna has chosen for a sample

The digest is that of the question and of the runs of the first sample, so a search of other settings begins
anew, and finds its samples again when the file is changed back.  Samples that are drawn at random have no
record, because the file says them.  A run that a scheduler has stopped has a record of that (`StopRecord`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from raysweep.errors import ConfigError
from raysweep.files import write_atomic
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import DIGITS, digest
from raysweep.sweep.ledger import RunLedger, read_record
from raysweep.sweep.missing import metrics_at
from raysweep.sweep.records import Record, encode
from raysweep.sweep.run import RunSpec, Stopped
from raysweep.sweep.search import Known, Search, suggestion
from raysweep.sweep.starts import Starts, starts

log = logging.getLogger("raysweep.sweep")

#: Suggestions that make no sense, such as heads that do not divide a width, before a search gives up.
_ATTEMPTS = 20

State = Literal["queued", "blocked", "unfinished", "stopped", "done", "failed", "cancelled"]
#: States of a sample that has come to nothing.
IN_VAIN = ("failed", "cancelled")


class SampleRecord(Record):
    """The settings that a search algorithm has chosen for a sample; `time` is in unix seconds."""

    index: int
    settings: dict[str, Any]
    time: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One sample of a search and what became of it.

    `value` is the mean of the metric over its runs at `step`, the last milestone of all of them.
    `standard_error` is that of the mean over its runs, of the measurement where there is one run.
    `reached` is the step that all of its unfinished runs have come to, measured or not; 0 for the others.
    """

    index: int
    settings: Mapping[str, Any]
    runs: tuple[RunSpec, ...]
    state: State
    step: int = 0
    value: float | None = None
    standard_error: float | None = None
    reached: int = 0

    @property
    def how(self) -> str:
        """The state in words."""
        if self.state == "unfinished" and self.reached > self.step:
            return f"unfinished at step {self.reached:,}"
        stopped = next((spec.stopped for spec in self.runs if spec.stopped is not None), None)
        return str(stopped) if self.state == "stopped" and stopped is not None else self.state

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "sample": self.index,
            "settings": dict(self.settings),
            "state": self.state,
            "step": self.step,
            "value": self.value,
            "standard_error": self.standard_error,
            "run_ids": [spec.run_id for spec in self.runs],
        }


def trials(sweep: Sweep) -> list[Trial]:
    """Return the samples of a sweep's search in the order of their numbers; [] without a search."""
    search = sweep.search
    if search is None:
        return []
    runs_of = [
        (settings, tuple(spec for spec in sweep.runs if search.belongs(spec.axes, settings)))
        for settings in sweep.samples
    ]
    return judged(sweep, runs_of, search.metric)


def judged(
    sweep: Sweep, samples: Sequence[tuple[Mapping[str, Any], tuple[RunSpec, ...]]], wanted: str
) -> list[Trial]:
    """Return what became of samples, given as settings and runs, by the metric `wanted`."""
    every = {spec.run_id: spec for _, runs in samples for spec in runs}
    waits = starts(replace(sweep, runs=tuple(every.values())), verify=False)
    ledger = sweep.ledger()
    found = []
    for index, (settings, runs) in enumerate(samples):
        values: list[tuple[int, float, float | None]] = []
        for spec in runs:
            run = ledger.open(spec.run_id)
            for step in reversed(spec.milestones):
                metric = next((m for m in metrics_at(run, spec, step) if m.name == wanted), None)
                if metric is not None:
                    values.append((step, metric.value, metric.standard_error))
                    break
        lacking = [spec for spec in runs if not waits.missing(spec).finished]
        state: State = "stopped" if any(spec.stopped is not None for spec in runs) else "done"
        vain = [spec for spec in lacking if waits.failure(spec) is not None]
        if vain:
            state = "cancelled" if all(map(waits.cancelled, vain)) else "failed"
        elif lacking or not runs:
            begun = any(_reached(ledger.open(spec.run_id), spec, waits) is not None for spec in runs)
            blocked = bool(lacking) and all(waits.wait(spec) is not None for spec in lacking)
            state = "unfinished" if begun else "blocked" if blocked else "queued"
        reached = 0
        if state == "unfinished":
            reached = min(_reached(ledger.open(spec.run_id), spec, waits) or 0 for spec in lacking)
        trial = Trial(index=index, settings=settings, runs=runs, state=state, reached=reached)
        if values and len(values) == len(runs) and len({step for step, _, _ in values}) == 1:
            mean, error = _mean([value for _, value, _ in values], values[0][2])
            trial = replace(trial, step=values[0][0], value=mean, standard_error=error)
        found.append(trial)
    return found


def _reached(run: RunLedger, spec: RunSpec, waits: Starts) -> int | None:
    """Return the step of the last checkpoint or measurement of a run; None where it is not begun."""
    steps = [*(step for step in spec.milestones if metrics_at(run, spec, step)), *waits.usable(spec)]
    return min(max(steps), spec.milestones[-1]) if steps else None


def _mean(values: Sequence[float], error: float | None) -> tuple[float, float | None]:
    """Return mean and standard error over runs; of one run, the `error` of its measurement."""
    mean, n = sum(values) / len(values), len(values)
    if n == 1:
        return mean, error
    return mean, (sum((value - mean) ** 2 for value in values) / (n - 1) / n) ** 0.5


def best(found: Sequence[Trial], mode: str | None) -> list[Trial]:
    """Return samples, the best first: those trained to the end, then those stopped later, then the others."""
    sign = 1.0 if mode == "min" else -1.0

    def order(trial: Trial) -> tuple[bool, bool, int, float]:
        none = trial.value is None or trial.state in IN_VAIN
        return none, trial.state != "done", -trial.step, 0.0 if trial.value is None else sign * trial.value

    return sorted(found, key=order)


def digest_of(search: Search, first: Sequence[RunSpec]) -> str:
    """Return the digest of a search, given the runs of its first sample."""
    return digest([search.question, [spec.training_identity for spec in first]])[:DIGITS]


def _path(directory: Path, head: str, index: int) -> Path:
    return directory / "search" / head / f"sample-{index:05d}.json"


def recorded(directory: Path, search: Search, first: Sequence[RunSpec]) -> list[dict[str, Any]]:
    """Return the settings of the samples that were chosen already after those drawn at random, in order.

    A sample after one that is missing or damaged was chosen by other results, so it does not count.
    """
    head, found = digest_of(search, first), list[dict[str, Any]]()
    for index in range(search.drawn, search.samples):
        path = _path(directory, head, index)
        record = read_record(path, SampleRecord, path.parent / "quarantine")
        if record is None or record.settings.keys() != search.space.keys():
            break
        found.append(record.settings)
    return found


def with_next(sweep: Sweep) -> Sweep:
    """Choose the next sample by all results so far, record it, and return the sweep with its runs.

    Raises `ConfigError` if the search finds no sample that makes sense.
    """
    search = sweep.search
    if search is None or sweep.make_runs is None:
        raise ConfigError(f"sweep '{sweep.name}' has no search, or was not loaded from its file")
    known = [
        Known(
            settings=dict(trial.settings),
            value=trial.value if trial.state in ("done", "stopped") else None,
            step=trial.step if trial.state == "stopped" else None,
            failed=trial.state in IN_VAIN,
        )
        for trial in trials(sweep)
    ]
    for attempt in range(_ATTEMPTS):
        settings = suggestion(search, known, attempt)
        try:
            runs = sweep.make_runs([*sweep.samples, settings])
            break
        except ConfigError as error:
            log.warning(
                "search: sample %d, %s, makes no sense and is chosen again: %s", len(known), settings, error
            )
            last = error
    else:
        raise ConfigError(f"search.space: {_ATTEMPTS} samples in a row make no sense; the last one: {last}")
    index = len(sweep.samples)
    first = [spec for spec in runs if search.belongs(spec.axes, sweep.samples[0])]
    path = _path(sweep.directory, digest_of(search, first), index)
    write_atomic(path, encode(SampleRecord(index=index, settings=settings, time=time.time())))
    return with_stops(replace(sweep, runs=runs, samples=(*sweep.samples, settings), points=sweep.points + 1))


def with_stops(sweep: Sweep) -> Sweep:
    """Return a sweep whose runs end where the scheduler of its search has stopped them."""
    search = sweep.search
    if search is None or search.scheduler is None:
        return sweep
    ledger = sweep.ledger()

    def ended(spec: RunSpec) -> RunSpec:
        record = ledger.open(spec.run_id).stop(search.stops)
        if record is None or record.step >= spec.milestones[-1]:
            return spec
        return replace(spec, stopped=Stopped(step=record.step, by=record.by))

    return replace(sweep, runs=tuple(map(ended, sweep.runs)), left_out=tuple(map(ended, sweep.left_out)))
