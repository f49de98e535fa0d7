"""The time that a sweep took: for training, for evaluations by kind, and for the rest of its launches.

All of it comes from the sweep's folder.  The records of runs tell what training and measuring took, of runs
that are no longer in the file, too; those of launches tell what their phases took.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.sweep.ledger import Ledger
from raysweep.sweep.provenance import all_launches

#: Phases of a launch besides the work, in their order, for people.
_PHASES = {
    "load": "load: Python, imports, sweep file",
    "start": "start: plan, languages, Ray",
    "end": "end: Ray, MLflow",
    "report": "verdicts and report",
}


def phase(name: str, seconds: float, cpu_seconds: float | None) -> dict[str, Any]:
    """Return plain data of a phase for the record of a launch; `cpu_seconds` None: not known."""
    used = None if cpu_seconds is None else round(cpu_seconds, 3)
    return {"name": name, "seconds": round(seconds, 3), "cpu_seconds": used}


@dataclass(frozen=True, kw_only=True)
class Part:
    """The time that one part of the work took.

    `seconds` of works that went on at once are added up.  `cpu_seconds` are seconds of processor time.
    Either is None where it is not known.
    """

    name: str
    number: int
    seconds: float | None
    cpu_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The time that a sweep took; `parts` add up to `cpu_seconds` where all of them are known.

    `seconds` and `cpu_seconds` are those of all launches that have told their phases, `launches` their number
    and that of all, and `processors` those of the machine of the latest one.
    """

    parts: tuple[Part, ...]
    seconds: float
    cpu_seconds: float | None
    launches: tuple[int, int]
    processors: int | None

    @property
    def busy(self) -> float | None:
        """The share of the processors' time that was used; None where it is not known."""
        if self.cpu_seconds is None or not self.processors or not self.seconds:
            return None
        return self.cpu_seconds / self.seconds / self.processors

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "parts": [vars(part) for part in self.parts],
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "launches": {"counted": self.launches[0], "all": self.launches[1]},
            "processors": self.processors,
            "busy": self.busy,
        }


def spent(directory: Path) -> Spent:
    """Return what took the time of the sweep in a folder."""
    works = _works(Ledger(directory))
    launches = all_launches(directory)
    counted = [facts["phases"] for facts in launches if facts.get("phases")]
    phases = [found for each in counted for found in each]
    parts = list(works)
    rest = _total([found["cpu_seconds"] for found in phases if found["name"] == "work"])
    measured = _total([work.cpu_seconds for work in works])
    if rest is not None and measured is not None and counted and len(counted) == len(launches):
        parts.append(
            Part(
                name="Ray, loading and the rest",
                number=len(counted),
                seconds=None,
                cpu_seconds=rest - measured,
            )
        )
    for name, told in _PHASES.items():
        took = [(found["seconds"], found["cpu_seconds"]) for found in phases if found["name"] == name]
        if took:
            parts.append(_part(told, took))
    return Spent(
        parts=tuple(parts),
        seconds=sum(found["seconds"] for found in phases),
        cpu_seconds=_total([found["cpu_seconds"] for found in phases]),
        launches=(len(counted), len(launches)),
        processors=launches[-1].get("cpus") if launches else None,
    )


def _works(ledger: Ledger) -> list[Part]:
    """Return what training and each kind of evaluation took, the longest first."""
    training: list[tuple[float, float | None]] = []
    measuring: dict[str, list[tuple[float, float | None]]] = {}
    for run in map(ledger.open, ledger.run_ids()):
        if checkpoints := run.checkpoint_records():
            last = max(checkpoints, key=lambda record: record.step)
            training.append((last.train_seconds, last.train_cpu_seconds))
        for record in run.evaluations():
            measuring.setdefault(record.kind, []).append((record.seconds, record.cpu_seconds))
    parts = [_part(kind, took) for kind, took in measuring.items()]
    if training:
        parts.append(_part("training", training))
    return sorted(parts, key=lambda part: -(part.seconds or 0.0))


def _part(name: str, took: Iterable[tuple[float, float | None]]) -> Part:
    each = list(took)
    return Part(
        name=name,
        number=len(each),
        seconds=sum(seconds for seconds, _ in each),
        cpu_seconds=_total([cpu for _, cpu in each]),
    )


def _total(values: list[float | None]) -> float | None:
    """Return the sum; None if one of the values is not known, or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
