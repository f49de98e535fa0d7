"""More data: how many runs an effect would take, and how long they would train."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysweep.report.verdict import ALPHA, Verdict
from raysweep.sweep.estimate import History
from raysweep.sweep.missing import Missing
from raysweep.sweep.survey import survey

if TYPE_CHECKING:
    from raysweep.sweep import Sweep


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A claim in a design of `clusters`, judged by the errors that a pilot has shown.

    `effect` is the effect that is asked about, on the scale of the claim: a given one, or that which the
    pilot has seen, or the least one worth mentioning where that is larger.  `power` is the probability that
    the design sees it, `detectable` the effect that it sees with 80 %.  `needed` clusters, `runs` in all, see
    the effect with 80 %; `seconds` is the work of the runs that the design lacks for that.  All of it is at
    `level`, which is smaller than 5 % where the pilot's claim was tested among several; `alone` is what is
    detectable at 5 %.  Numbers that are not known are None.
    """

    claim: str
    unit: str
    units: str
    clusters: int
    level: float
    effect: float | None
    power: float | None
    detectable: float | None
    alone: float | None
    needed: int | None
    runs: int | None
    seconds: float | None

    def encode(self) -> dict[str, Any]:
        """Return plain data for a program."""
        return dict(vars(self))


def plans(
    verdicts: Sequence[Verdict], sweep: Sweep, pilot: Sweep, *, effect: float | None = None
) -> list[Plan]:
    """Return a plan for each verdict of a pilot, in the design of a sweep, which may be the pilot."""
    seconds = run_seconds(pilot)
    trained = [spec for spec in sweep.runs if spec.trains]
    design = {
        "runs": len(trained),
        "configurations": len({spec.configuration for spec in trained}),
    }
    return [_plan(verdict, design, seconds, effect) for verdict in verdicts]


def _plan(verdict: Verdict, design: dict[str, int], seconds: float | None, effect: float | None) -> Plan:
    main, clusters = verdict.main, design[verdict.units]
    seen_there = verdict.least if abs(main.value) < verdict.least else main.value
    asked = seen_there if effect is None else effect
    empty = Plan(
        claim=f"{verdict.about}{verdict.says}", unit=verdict.unit, units=verdict.units, clusters=clusters,
        level=verdict.level, effect=None if math.isnan(asked) else asked, power=None, detectable=None,
        alone=None, needed=None, runs=None, seconds=None,
    )  # fmt: skip
    pilot = main.pilot
    if pilot is None or clusters < 2:
        return empty
    # A reference that was measured once has its error with any number of runs.
    tested = clusters if main.shrinks else main.clusters
    scaled = math.atanh(max(-1 + 1e-9, min(1 - 1e-9, asked))) if verdict.unit == "ρ" else asked
    seen, alone = (pilot.detectable(clusters=tested, level=level) for level in (verdict.level, ALPHA))
    count = pilot.needed(scaled, level=verdict.level) if main.shrinks else None
    runs = None if count is None else math.ceil(count * design["runs"] / clusters)
    return Plan(
        claim=empty.claim, unit=verdict.unit, units=verdict.units, clusters=clusters,
        level=verdict.level, effect=empty.effect,
        power=pilot.power(scaled, clusters=tested, level=verdict.level),
        detectable=math.tanh(seen) if verdict.unit == "ρ" else seen,
        alone=math.tanh(alone) if verdict.unit == "ρ" else alone,
        needed=count, runs=runs,
        seconds=None if runs is None or seconds is None else max(runs - design["runs"], 0) * seconds,
    )  # fmt: skip


def run_seconds(sweep: Sweep) -> float | None:
    """Return the mean seconds of work of a whole run of a sweep; None where nothing has been timed."""
    trained = [spec for spec in sweep.runs if spec.trains]
    history = History(sweep, survey(sweep.ledger(), trained, verify=True), {})
    found = []
    for spec in trained:
        evaluations = tuple((step, kind) for step in spec.milestones for kind in spec.evaluations)
        whole = Missing(checkpoints=spec.milestones, evaluations=evaluations)
        found.append(history.cost(spec, whole).seconds)
    known = [seconds for seconds in found if seconds is not None]
    return statistics.fmean(known) if known else None
