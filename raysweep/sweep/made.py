"""The runs that a Tuner made of a sweep, beside those of its file (`raysweep.tuner`).

    <storage>/<sweep>/search/tuner/<digest>/<run id>.json

The digest is that of the metric and the mode of the Tuner, so a run that several searches have sampled has a
record in each.

They are shown with the sweep's own, but no launch works on them: what the Tuner's scheduler has stopped is
not to go on.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from raysweep.errors import RaysweepError
from raysweep.files import names, write_atomic
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import DIGITS, digest
from raysweep.sweep.ledger import read_record
from raysweep.sweep.records import Record, encode
from raysweep.sweep.run import RunSpec, Stopped

log = logging.getLogger("raysweep.sweep")

Mode = Literal["min", "max"]
MODES: tuple[Mode, ...] = get_args(Mode)

_QUARANTINE = "quarantine"


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
    head = digest([metric, mode])[:DIGITS]
    write_atomic(_folder(directory) / head / f"{spec.run_id}.json", encode(record))


def _paths(directory: Path) -> list[Path]:
    """Return the records in a sweep's folder."""
    folder = _folder(directory)
    heads = [folder / head for head in names(folder) if head != _QUARANTINE]
    return [head / name for head in heads for name in names(head) if name.endswith(".json")]


def made_ids(directory: Path) -> set[str]:
    """Return the ids of the runs that Tuners have made."""
    return {path.name.removesuffix(".json") for path in _paths(directory)}


def made(directory: Path) -> list[Made]:
    """Return the runs that Tuners have made in a sweep's folder, in the order of their records.

    A run is there once for each metric and mode by which it was sampled.
    """
    records: list[tuple[str, MadeRecord]] = []
    for path in _paths(directory):
        record = read_record(path, MadeRecord, _folder(directory) / _QUARANTINE)
        if record is not None:
            records.append((path.name.removesuffix(".json"), record))
    found: list[Made] = []
    for run_id, record in sorted(records, key=lambda item: item[1].time):
        try:
            spec = RunSpec.decode(record.spec)
        except (RaysweepError, ValueError, KeyError, TypeError) as error:
            log.warning("%s: not shown, because it cannot be read any more (%s)", run_id, error)
            continue
        if record.stopped is not None:
            spec = replace(spec, stopped=Stopped(step=record.stopped, by=record.by))
        found.append(Made(spec=spec, metric=record.metric, mode=record.mode))
    return found


def with_made(sweep: Sweep) -> Sweep:
    """Return a sweep with the runs that Tuners have made of it, for tables and reports.

    A run that several searches have sampled comes as far as that which has stopped it last, if all have.
    """
    own = {spec.run_id for spec in (*sweep.runs, *sweep.left_out)}
    made_here = [one.spec for one in made(sweep.directory) if one.spec.run_id not in own]
    if not made_here:
        return sweep
    farthest: dict[str, RunSpec] = {}
    for spec in made_here:
        known = farthest.setdefault(spec.run_id, spec)
        if known.stopped is not None and (spec.stopped is None or spec.stopped.step > known.stopped.step):
            farthest[spec.run_id] = spec
    found = tuple(farthest.values())
    axes = dict.fromkeys((*sweep.axes, *(path for spec in found for path in spec.axes)))
    return replace(sweep, runs=(*sweep.runs, *found), axes=tuple(axes))
