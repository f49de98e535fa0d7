"""Goals of a simulation, and what is counted for them.

The goal of a level is what the test states, 5 %, so chance alone would put a test that holds it exactly above
the goal in half of all records.  A level is missed where it is above the goal by more than `SURE` standard
errors, which is 99 % of chance: 0.0047 with `MANY` replicates, so that a true excess of 0.01 is seen in more
than 99 % of records.  The goals of coverage have room on both sides of what intervals state; they are missed
where the share lies outside, as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from raysweep.bench.record import Figure, Goal
from raysweep.report.association import Estimate
from raysweep.report.power import POWER
from raysweep.report.verdict import ALPHA

Array = np.ndarray

#: Replicates of simulations that have a goal for a level, and the normal quantile of 99 %.
MANY, SURE = 14_000, 2.576

LEVEL = Goal(sense="at most", value=ALPHA, errors=SURE)
COVERAGE = Goal(sense="within", value=0.93, upto=0.97)
#: Where the truth is an end of what an interval can say, such as a floor of zero, one of its two ends alone
#: can miss it, so that the interval states 97.5 %; beyond that end, such as a step that is never, at least
#: as much.
AT_AN_END = Goal(sense="within", value=0.955, upto=0.995)
BEYOND_AN_END = Goal(sense="at least", value=0.955)
STATED_POWER = Goal(sense="within", value=POWER - 0.02, upto=POWER + 0.02)


def share(name: str, outcomes: Array, goal: Goal | None = None) -> Figure:
    """Return the share of outcomes that are true, as a figure."""
    return Figure(name=name, unit="", value=float(np.mean(outcomes)), among=outcomes.size, goal=goal)


def kept(name: str, estimate: Estimate) -> dict[str, Array]:
    """Return the ends and p-values of estimates, by names that begin with `name`."""
    return {f"{name}: {end}": np.atleast_1d(getattr(estimate, end)) for end in ("low", "high", "p")}


def rejected(outcomes: Mapping[str, Array], name: str) -> Array:
    """Return which replicates [n] a test rejects; one without an interval is not rejected."""
    found: Array = outcomes[f"{name}: p"] <= ALPHA
    return found


def covered(outcomes: Mapping[str, Array], name: str, truth: float) -> tuple[Array, Array]:
    """Return which of the intervals there are [m] hold the truth, and which replicates [n] have one."""
    low, high = outcomes[f"{name}: low"], outcomes[f"{name}: high"]
    known = ~np.isnan(low)
    return ((low <= truth) & (truth <= high))[known], known


def coverage(
    label: str, outcomes: Mapping[str, Array], name: str, truth: float, *, without: str = ""
) -> list[Figure]:
    """Return the coverage of intervals, if there are any, and the share `without` one if it is asked for."""
    inside, known = covered(outcomes, name, truth)
    figures = [share(label, inside, COVERAGE)] if known.any() else []
    return [*figures, share(without, ~known)] if without else figures
