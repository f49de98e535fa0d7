"""`raysweep bench growth`: time and memory against the size of the work.

An axis is a size, such as the words of a vocabulary; the other sizes stay.  Each of its values is measured in
a process of its own: the median CPU time of a call, and by how much the call raises the most memory that the
process holds.  An exponent is the slope of the least-squares line through the logarithms.  That of time is
beside that of the necessary operations, counted by formula at the same values: what grows faster than these
by more than `SLACK` is a defect.  So is memory that grows faster than the axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import TypeAdapter

from raysweep.bench.growth.axes import AXES, Axis
from raysweep.bench.harness import Case, Entry, UnavailableError
from raysweep.bench.process import call
from raysweep.bench.record import Figure, Goal, Peak, Record, Timing

#: An exponent may be higher by so much: times of few sizes vary by this.
SLACK = 0.15
#: Less memory than this says nothing about its growth: the system hands it out in such pieces.
_LEAST_BYTES = 16e6


class Point(NamedTuple):
    """A measured value of an axis: operations, CPU seconds of a call, and bytes that it takes meanwhile."""

    value: int
    operations: float
    seconds: float
    bytes: float


def measured(axis: Axis, quick: bool) -> list[Point]:
    """Measure the values of an axis, each in a process of its own."""
    found = []
    for value in axis.values[:2] if quick else axis.values:
        request = {"key": axis.key, "value": value, "seconds": 0.1 if quick else 2.0}
        found.append(TypeAdapter(Point).validate_json(call("raysweep.bench.growth", request, threads=1)))
    return found


def exponent(values: Sequence[float], sizes: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the logarithms.

    >>> round(exponent([1, 2, 4], [5, 20, 80]), 6)
    2.0
    """
    return float(np.polyfit([math.log(v) for v in values], [math.log(s) for s in sizes], 1)[0])


def figures(points: Sequence[Point]) -> list[Figure]:
    """Return exponents with their goals, and what the largest value takes."""
    values = [float(point.value) for point in points]
    theory = exponent(values, [point.operations for point in points])
    last = points[-1]
    slope = exponent(values, [point.seconds for point in points])
    slack = Goal(sense="at most", value=SLACK)
    found = [
        Figure(name="exponent of time", unit="", value=round(slope, 3)),
        Figure(name="of operations", unit="", value=round(theory, 3)),
        Figure(name="above these", unit="", value=round(slope - theory, 3), goal=slack),
        Figure(name="CPU time at the largest", unit="s", value=last.seconds),
        Figure(name="memory at the largest", unit="GiB", value=last.bytes / 2**30),
    ]
    large = [point for point in points if point.bytes >= _LEAST_BYTES]
    if len(large) > 1:
        slope = exponent([float(point.value) for point in large], [point.bytes for point in large])
        goal = Goal(sense="at most", value=1 + SLACK)
        found.append(Figure(name="exponent of memory", unit="", value=round(slope, 3), goal=goal))
    return found


def introduction(record: Record) -> str:
    """Return sentences that say what the table of a record shows, and the result."""
    works = "; ".join(f"`{case.key}` {case.work}" for case in record.cases)
    judged = [figure.met for case in record.cases for figure in case.figures if figure.met is not None]
    return (
        f"Sizes that grow while the others stay: {works}. Exponents of memory are of what calls take, where "
        f"they take {_LEAST_BYTES / 1e6:g} MB or more. {sum(judged)} of {len(judged)} goals are met."
    )


def _case(axis: Axis, quick: bool) -> Case:
    if not Path("/proc/self/clear_refs").exists():
        raise UnavailableError("the most memory of a call is read from Linux's /proc")

    def found(timing: Timing | None, peak: Peak) -> list[Figure]:
        return figures(measured(axis, quick))

    return Case(unit="", figures=found)


def _numbers(axis: Axis) -> str:
    return ", ".join(f"{value:,}" for value in axis.values)


ENTRIES = tuple(
    Entry(key=axis.key, work=f"{axis.work}: {_numbers(axis)}", build=partial(_case, axis)) for axis in AXES
)
