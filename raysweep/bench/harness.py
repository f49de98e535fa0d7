"""The harness runs cases: equality first, then all contestants in turn, medians of the rounds.

    ratio = median over rounds of (peer's CPU seconds a unit) / (raysweep's CPU seconds a unit)

CPU time is that of all threads of the process, so a contestant that uses more threads than it was given pays
for them.  Where a GPU does the work, wall time counts.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeVar

import numpy as np

from raysweep.bench.record import CaseRecord, Check, Clock, Comparison, Figure, Goal, Peak, Spread, Timing

Say = Callable[[str], None]

W = TypeVar("W")

#: Bytes of a block that glibc takes from its heap, and after which it looks for memory to give back.
_LARGE_BLOCK = 3 * 2**15

#: The devices that suites run on.
Device = Literal["cpu", "cuda"]


class UnavailableError(Exception):
    """A contestant is not installed, or cannot do the work; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The time of work that other processes did, in seconds."""

    cpu: float
    wall: float


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A contestant does `units` units of work in each call of `work`, which returns when they are done.

    The call is timed, unless it returns `Spent`: then this is its time.
    """

    units: float
    work: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The distance of a peer's results from raysweep's, measured as `quantity`."""

    quantity: str
    value: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Tell whether the distance is within the tolerance; NaN is not."""
        return self.value <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A peer that is ready to be checked and timed; `note` is what its preparation found."""

    check: Callable[[], Difference]
    contestant: Contestant
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer does the work of a case too; `prepare` raises `UnavailableError` where it cannot.

    `known_unequal` is the reason why its results are known to differ.  Such a peer is timed all the same.
    """

    name: str
    prepare: Callable[[], Prepared]
    goal: float | None = None
    note: str | None = None
    known_unequal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A piece of work, ready to run.

    `figures` computes further numbers from raysweep's timing and the peak, or measures them.  A case without
    `ours` has nothing but these.  `clock` is the time that counts.
    """

    unit: str
    ours: Contestant | None = None
    peers: Sequence[Peer] = ()
    rounds: int = 7
    clock: Clock = "cpu"
    figures: Callable[[Timing | None, Peak], Sequence[Figure]] = field(default=lambda timing, peak: ())


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A case of a suite: its key, its work in words, and `build(quick)`.

    `build` may raise `UnavailableError`.  The case belongs to runs on `device`; keys are unique on each
    device.
    """

    key: str
    work: str
    build: Callable[[bool], Case]
    device: Device = "cpu"


def cheapest(ways: Sequence[W], cost: Callable[[W], float]) -> W:
    """Return the way of least cost; the cost of each is measured once."""
    costs = [cost(way) for way in ways]
    return ways[costs.index(min(costs))]


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the seconds of a second call by a clock, by default that of the CPU; the first fills caches."""
    work()
    started = clock()
    work()
    return clock() - started


def paired_ratio(one: Callable[[], object], other: Callable[[], object], rounds: int = 5) -> float:
    """Return the median over rounds of the CPU seconds of `one`, divided by those of `other`."""
    one(), other()
    ratios = []
    for _ in range(rounds):
        spent = []
        for work in (one, other):
            _settle()
            began = time.process_time()
            work()
            spent.append(time.process_time() - began)
        ratios.append(spent[0] / spent[1])
    return median(ratios)


def shares(
    parts: Mapping[str, tuple[object, Sequence[str]]],
    work: Callable[[], object],
    by_parts: Callable[[], object] | None = None,
) -> list[Figure]:
    """Return the share of the CPU time of one call of `work` that each part takes, as figures by name.

    A part is some functions, given as their owner, a module or a class, and their names there.  No function
    given may call another one given.  Where `work` does not call them, `by_parts` does the same work by calls
    of them: a part's time is taken there, with what the calls cost, and the whole is that of `work`.
    """
    spent = dict.fromkeys(parts, 0.0)

    def timed(part: str, original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            began = time.process_time()
            try:
                return original(*arguments, **options)
            finally:
                spent[part] += time.process_time() - began

        return call

    def taken_by(call: Callable[[], object]) -> float:
        began = time.process_time()
        call()
        return time.process_time() - began

    whole = None if by_parts is None else taken_by(work)
    functions = [(part, owner, name) for part, (owner, names) in parts.items() for name in names]
    originals = [getattr(owner, name) for _, owner, name in functions]
    try:
        for (part, owner, name), original in zip(functions, originals, strict=True):
            setattr(owner, name, timed(part, original))
        found = taken_by(by_parts or work)
    finally:
        for (_, owner, name), original in zip(functions, originals, strict=True):
            setattr(owner, name, original)
    base = found if whole is None else whole
    return [Figure(name=part, unit="", value=taken / base) for part, taken in spent.items()]


def run_case(entry: Entry, peak: Peak, *, quick: bool, say: Say) -> CaseRecord:
    """Build, check and time a case; a case that cannot be built is recorded with the reason."""
    key = entry.key
    try:
        case = entry.build(quick)
    except UnavailableError as error:
        say(f"{key}: cannot be run: {error}")
        return CaseRecord(key=key, work=entry.work, unit="", reason=str(error))
    rows: dict[str, Comparison] = {}
    timing = None
    if case.ours is not None:
        # Keyed by the name of the peer; the empty name is raysweep.
        contestants = {"": case.ours}
        # The first call compiles and caches; for a peer, its check does.
        case.ours.work()
        for peer in case.peers:
            rows[peer.name], contestant = _checked(peer, key, say)
            if contestant is not None:
                contestants[peer.name] = contestant
        cpu, wall = _rounds(contestants, case.rounds)
        timings = {
            name: _timing(c.units, cpu[name], wall[name], case.clock) for name, c in contestants.items()
        }
        timing = timings.pop("")
        for name, found in timings.items():
            rows[name] = rows[name].model_copy(
                update={
                    "timing": found,
                    "cpu_ratio": Spread.of([a / b for a, b in zip(cpu[name], cpu[""], strict=True)]),
                    "wall_ratio": Spread.of([a / b for a, b in zip(wall[name], wall[""], strict=True)]),
                }
            )
        say(f"{key}: timed in {case.rounds} rounds")
    return CaseRecord(
        key=key,
        work=entry.work,
        unit=case.unit,
        timing=timing,
        comparisons=tuple(rows.values()),
        figures=tuple(case.figures(timing, peak)),
    )


def _checked(peer: Peer, key: str, say: Say) -> tuple[Comparison, Contestant | None]:
    goal = None if peer.goal is None else Goal(sense="at least", value=peer.goal)
    row = Comparison(peer=peer.name, status="absent", note=peer.note, goal=goal)
    try:
        prepared = peer.prepare()
    except UnavailableError as error:
        say(f"{key}: {peer.name}: absent: {error}")
        return row.model_copy(update={"reason": str(error)}), None
    if prepared.note is not None:
        row = row.model_copy(update={"note": "; ".join(filter(None, (peer.note, prepared.note)))})
    found = prepared.check()
    check = Check(
        quantity=found.quantity,
        value=found.value if math.isfinite(found.value) else None,
        tolerance=found.tolerance,
        passed=found.passed,
    )
    status = "equal" if found.passed else "failed" if peer.known_unequal is None else "unequal"
    reason = peer.known_unequal if status == "unequal" else None
    say(f"{key}: {peer.name}: {status}: {found.quantity} {found.value:.2g} (tolerance {found.tolerance:.2g})")
    row = row.model_copy(update={"check": check, "status": status, "reason": reason})
    return row, None if status == "failed" else prepared.contestant


def _rounds(
    contestants: dict[str, Contestant], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return CPU and wall seconds a unit of each contestant in each round."""
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for k in range(rounds):
        # The order rotates, so that no contestant always follows the same other one.
        for name in names[k % len(names) :] + names[: k % len(names)]:
            contestant = contestants[name]
            _settle()
            began, started = time.perf_counter(), time.process_time()
            done = contestant.work()
            spent = Spent(cpu=time.process_time() - started, wall=time.perf_counter() - began)
            spent = done if isinstance(done, Spent) else spent
            cpu[name].append(spent.cpu / contestant.units)
            wall[name].append(spent.wall / contestant.units)
    return cpu, wall


def _settle() -> None:
    """Clean up behind the contestant before, outside the time of the next one.

    glibc gives freed memory beyond what it keeps back to the system when the next large block is freed.
    After a contestant with gigabytes, that takes a tenth of a second.
    """
    gc.collect()
    np.empty(_LARGE_BLOCK, dtype=np.uint8)


def _timing(units: float, cpu: list[float], wall: list[float], clock: Clock) -> Timing:
    return Timing(
        units=units,
        repeats=len(cpu),
        cpu_seconds=Spread.of(cpu),
        wall_seconds=Spread.of(wall),
        clock=clock,
    )
