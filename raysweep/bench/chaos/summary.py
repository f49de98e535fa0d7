"""The figures of a campaign: its faults, the ends of its launches, and the comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from raysweep.bench.record import CaseRecord, Figure, Goal, Pass

_NONE = Goal(sense="at most", value=0)


def work_of(passes: Sequence[Pass], seed: int) -> str:
    """Return the work of a campaign in words."""
    engines = ", ".join(sorted({found.engine for found in passes}))
    return f"a small sweep under random faults, engines {engines}, seed {seed}"


def summary(passes: Sequence[Pass], *, work: str) -> CaseRecord:
    """Return the figures of all passes; those that must be zero have this as their goal."""
    launches = [launch for found in passes for launch in found.launches]
    kinds = Counter(fault.kind for launch in launches for fault in launch.faults)
    codes = Counter(launch.code for launch in launches)
    wrong = {
        "sweeps with another table than an undisturbed one": sum(not found.equal for found in passes),
        "points of MLflow unlike an undisturbed sweep's": sum(found.points_unlike for found in passes),
        "launches that ended badly": sum(bool(launch.trouble) for launch in launches),
    }
    counts = {
        "sweeps": len(passes),
        "launches": len(launches),
        "launches with faults": sum(bool(launch.faults) for launch in launches),
        "faults": kinds.total(),
        **dict(sorted(kinds.items())),
        **{f"exit code {code}": count for code, count in sorted(codes.items())},
    }
    seconds = sum(launch.seconds + launch.leaving for launch in launches)
    return CaseRecord(
        key="chaos",
        work=work,
        unit="",
        figures=(
            *(Figure(name=name, unit="", value=value, goal=_NONE) for name, value in wrong.items()),
            *(Figure(name=name, unit="", value=value) for name, value in counts.items()),
            Figure(
                name="longest from the end of a launch to that of its last process",
                unit="s",
                value=max(launch.leaving for launch in launches),
            ),
            Figure(name="time of all launches", unit="s", value=seconds),
        ),
    )
