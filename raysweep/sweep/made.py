"""The runs that a Tuner made of a sweep, beside those of its file (`raysweep.tuner`).

    <storage>/<sweep>/search/tuner/<run id>.json

They are shown with the sweep's own, but no launch works on them: what the Tuner's scheduler has stopped is
not to go on.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from raysweep.errors import RaysweepError
from raysweep.files import names, write_atomic
from raysweep.sweep.config import Sweep
from raysweep.sweep.ledger import read_record
from raysweep.sweep.records import Record, encode
from raysweep.sweep.run import RunSpec, Stopped

log = logging.getLogger("raysweep.sweep")

Mode = Literal["min", "max"]


class MadeRecord(Record):
    """A run that a Tuner made: its `spec`, what the Tuner went by, and where it stopped the run."""

    spec: dict[str, Any]
    metric: str | None
    mode: Mode | None
    stopped: int | None
    by: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Made:
    """A run that a Tuner made; `metric` and `mode` are what the Tuner went by, as far as it was told."""

    spec: RunSpec
    metric: str | None
    mode: Mode | None


def _folder(directory: Path) -> Path:
    return directory / "search" / "tuner"


def record_made(
    directory: Path,
    spec: RunSpec,
    *,
    metric: str | None,
    mode: Mode | None,
    by: str = "",
    step: int | None = None,
) -> None:
    """Record a run of a Tuner, durably.

    `step` is the last one that it came to, None before its end; `by` is what may have stopped it there.
    """
    cut = step if step is not None and step < spec.milestones[-1] else None
    record = MadeRecord(spec=spec.encode(), metric=metric, mode=mode, stopped=cut, by=by, time=time.time())
    write_atomic(_folder(directory) / f"{spec.run_id}.json", encode(record))


def made_ids(directory: Path) -> set[str]:
    """Return the ids of the runs that Tuners have made."""
    return {name.removesuffix(".json") for name in names(_folder(directory)) if name.endswith(".json")}


def made(directory: Path) -> list[Made]:
    """Return the runs that Tuners have made in a sweep's folder, in the order of their records."""
    found: list[tuple[float, Made]] = []
    folder = _folder(directory)
    for run_id in sorted(made_ids(directory)):
        record = read_record(folder / f"{run_id}.json", MadeRecord, folder / "quarantine")
        if record is None:
            continue
        try:
            spec = RunSpec.decode(record.spec)
        except (RaysweepError, ValueError, KeyError, TypeError) as error:
            log.warning("%s: not shown, because it cannot be read any more (%s)", run_id, error)
            continue
        if record.stopped is not None:
            spec = replace(spec, stopped=Stopped(step=record.stopped, by=record.by))
        found.append((record.time, Made(spec=spec, metric=record.metric, mode=record.mode)))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def with_made(sweep: Sweep) -> Sweep:
    """Return a sweep with the runs that Tuners have made of it, for tables and reports."""
    own = {spec.run_id for spec in (*sweep.runs, *sweep.left_out)}
    found = [one.spec for one in made(sweep.directory) if one.spec.run_id not in own]
    if not found:
        return sweep
    axes = dict.fromkeys((*sweep.axes, *(path for spec in found for path in spec.axes)))
    return replace(sweep, runs=(*sweep.runs, *found), axes=tuple(axes))
