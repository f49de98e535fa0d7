"""Lessons of former launches on the time that the next one takes.

A launch keeps in its record, under `learnt`, the seconds from its begin to its first work, and how fast
evaluations of each kind were in comparison with training.  So the launches of a storage teach one another.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from raysweep.remote import RemotePath
from raysweep.sweep.provenance import all_launches, last_launch
from raysweep.sweep.resources import Resources
from raysweep.sweep.survey import RunRecords

#: Most launches of other sweeps that are read.
_MOST = 8
#: What shares the processors of a machine is at most one training and one evaluation for each of them
#: (`raysweep.engine.choice`).
_CROWDED = 2.0


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """Seconds from the begin of a launch to its first work, None where unknown, and shares by kind.

    The share of a kind of evaluation is its operations a second over those of training.
    """

    start: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """Return plain data, with the host that the start is of."""
        return {"host": socket.gethostname(), "start": self.start, "shares": dict(self.shares)}


def of_storage(directory: Path) -> Learnt:
    """Return what the launches of a sweep's folder and, where it says nothing, of those beside it tell.

    Of each sweep the latest launch counts, and of the others the newest few.  The start is the least one, as
    other work on a machine makes it longer.  What cannot be read tells nothing.
    """
    starts = []
    shares: dict[str, float] = {}
    for folder in islice([directory, *_beside(directory)], 1 + _MOST):
        found = _learnt(folder)
        told = found.get("shares")
        for kind, share in told.items() if isinstance(told, dict) else ():
            if isinstance(share, float) and share > 0:
                shares.setdefault(kind, share)
        if found.get("host") == socket.gethostname() and isinstance(found.get("start"), float):
            starts.append(found["start"])
    return Learnt(start=min(starts, default=None), shares=shares)


def _beside(directory: Path) -> list[Path]:
    """Return the folders of the launches' sweeps beside one, the newest first.

    In an object store, where this would take a request for each of them, there are none.
    """
    if isinstance(directory, RemotePath):
        return []
    try:
        with os.scandir(directory.parent) as entries:
            others = [Path(entry.path) for entry in entries if entry.path != str(directory)]
    except OSError:
        return []
    times = {}
    for other in others:
        try:
            times[other] = (other / "launches").stat().st_mtime
        except OSError:
            continue
    return sorted(times, key=lambda other: -times[other])


def _learnt(folder: Path) -> dict[str, Any]:
    try:
        found = (last_launch(folder) or {}).get("learnt")
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that spans cover together.

    >>> covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def crowding(directory: Path, records: Iterable[RunRecords], resources: Resources) -> float:
    """Return by how much the records' seconds are longer than on a machine with a processor for each work.

    That is the mean number of processors that were asked for at once over those of the latest launch's
    machine, from 1 to 2; 1 where no launch tells of its machine.
    """
    training = [span for held in records for span in held.training]
    measuring = [span for held in records for span in held.measuring]
    try:
        cpus = (last_launch(directory) or {}).get("cpus")
    except (OSError, ValueError, AttributeError):
        cpus = None
    busy = covered([*training, *measuring])
    if not isinstance(cpus, int) or cpus < 1 or busy <= 0:
        return 1.0
    asked = resources.workers * resources.per_worker.get("CPU", 0.0) * _length(training)
    asked += resources.evaluate.get("CPU", 0.0) * _length(measuring)
    return min(_CROWDED, max(1.0, asked / busy / cpus))


def first_work(directory: Path, records: Iterable[RunRecords]) -> float | None:
    """Return the seconds from the begin of the latest launch with work to its first; None where unknown."""
    begun = sorted(start for held in records for start, _ in [*held.training, *held.measuring])
    for facts in reversed(all_launches(directory)):
        after = [start for start in begun if start >= facts["time"]]
        if after:
            return after[0] - float(facts["time"])
    return None


def _length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)
