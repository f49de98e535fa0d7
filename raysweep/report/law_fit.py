"""A power law fitted to curves, and what follows from it with intervals: exponents, floors, equal losses.

The law is that of `raysweep.report.powerlaw`, and the intervals are those of `raysweep.report.law_intervals`.
The interval of the step of equal loss is the set of steps at which the test does not tell the two losses
apart, as in E. C. Fieller, "Some problems in interval estimation", 1954; so "never" may be in it.

>>> steps = np.array([250.0, 500, 1000, 2000, 4000])
>>> logs = [[np.log(floor + 2.0 * steps**-0.5)] * 2 for floor in (0.02, 0.01)]  # two sizes of two equal runs
>>> fitted = Fit(Curves.of(steps, logs))
>>> round(fitted.meeting(0, 0.03).step, -2)  # (2 / (0.03 − 0.02))²
40000.0
>>> fitted.meeting(0, 0.015).step  # its floor lies above
inf
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raysweep.report.law_intervals import EXPONENT, Quantity, Scores, Term
from raysweep.report.powerlaw import Curves, fit
from raysweep.report.regression import Array

#: Fewest degrees of freedom of an interval.
LEAST_DOF = 2
#: Steps of equal loss are looked for up to this multiple of the last milestone, at so many places.
FAR, _PLACES = 100.0, 101
#: Largest logarithm of a step.
_FARTHEST = 700.0
#: Shares of an exponent, and of its interval, up to which a change of it does not matter; and the confidence
#: of its test.
DRIFT, _SURE = (0.01, 0.05), 0.9


@dataclass(frozen=True)
class Meeting:
    """The step at which a value is reached, with its interval; `inf` is never.

    An end of the interval is never where it lies beyond `FAR` times the last milestone.
    """

    step: float
    low: float
    high: float


class Fit:
    """The law of curves, and the intervals of what follows from it.

    `earlier` is a fit that was given up for this one because of what the same runs have shown.  The choice is
    as uncertain as they are, so an interval reaches over that of the earlier fit, too.
    """

    def __init__(self, curves: Curves, *, earlier: Fit | None = None) -> None:
        self.curves, self.earlier = curves, earlier
        self.law = fit(curves.means, curves)

    @cached_property
    def scores(self) -> Scores:
        """The tests of quantities by these runs alone."""
        return Scores(self.curves)

    @property
    def sure(self) -> bool:
        """Whether there are enough runs for intervals."""
        return self.curves.dof >= LEAST_DOF

    def drifts(self) -> bool:
        """Return whether the exponent is another one without the milestones below twice the first.

        It is where the 90 % interval of the change leaves out zero, and the change is more than the shares
        `DRIFT` of the exponent and of its interval.  False where a size has fewer than three left.
        """
        first = self.curves.log_steps[self.curves.known].min()
        curves = self.curves.since(first + np.log(2))
        if curves.known.sum(axis=1).min() < 3:
            return False
        now, late = self.scores, Scores(curves)
        found, later = (one.at(EXPONENT, *one.estimate) for one in (now, late))
        # The same runs are in both, so what the weights differ by is what their deviations add to the change.
        error = float(now.error(later.weights - found.weights)[0])
        low, high = now.exponent
        least = max(now.critical(_SURE) * error, DRIFT[0], DRIFT[1] * (high - low))
        return abs(float((later.value - found.value)[0])) > least

    def interval(self, quantity: Quantity) -> tuple[Array, Array]:
        """Return the ends [m] of the 95 % interval of a quantity; nan with too few runs."""
        if not self.sure:
            nothing = np.full(quantity[0].log_steps.shape, np.nan)
            return nothing, nothing
        low, high = self.scores.interval(quantity)
        if self.earlier is not None:
            first, last = self.earlier.interval(quantity)
            low, high = np.minimum(low, first), np.maximum(high, last)
        return low, high

    @property
    def exponent(self) -> tuple[float, float, float]:
        """β with its interval; 0 and infinity where the runs do not bound it."""
        low = high = np.nan
        if self.sure:
            low, high = (float(end) for end in np.exp(self.scores.exponent))
            if self.earlier is not None:
                _, first, last = self.earlier.exponent
                low, high = min(low, first), max(high, last)
        return float(self.law.exponent), low, high

    def floors(self) -> tuple[Array, Array, Array]:
        """Return the floors [k] with their intervals."""
        floor = self.law.floor
        intervals = [self.interval([Term(1.0, size, np.array([np.inf]))]) for size in range(len(floor))]
        low, high = (np.concatenate(ends) for ends in zip(*intervals, strict=True))
        # The interval is that of floors without a bound; where the bound acts it may leave out this one.
        return floor, np.minimum(np.maximum(low, 0), floor), np.maximum(high, floor)

    def at(self, size: int, log_steps: Array) -> tuple[Array, Array]:
        """Return the ends [m] of the intervals of the values of a size at the logarithms of steps [m]."""
        return self.interval([Term(1.0, size, log_steps)])

    def misfit(self) -> Array:
        """Return log L less the mean over runs, [k, T]; 0 where nothing is known."""
        steps = enumerate(self.curves.log_steps)
        fitted = np.log(np.stack([self.law.at(size, row) for size, row in steps]))
        return np.where(self.curves.known, fitted - self.curves.means, 0.0)

    def meeting(self, size: int, value: float) -> Meeting:
        """Return the step at which a size reaches a value that is known."""
        return self._meeting(size, value)

    def equal(self, smaller: int, larger: int) -> Meeting:
        """Return the step at which one size reaches the value of another at that one's last milestone."""
        last = self.curves.last[larger : larger + 1]
        return self._meeting(smaller, float(self.law.at(larger, last)[0]), larger)

    def _meeting(self, size: int, value: float, other: int | None = None) -> Meeting:
        """Return the step at which a size reaches a value, which is that of `other` at its last milestone."""
        law, known = self.law, self.curves.known[size]
        start, last = self.curves.log_steps[size][known].min(), self.curves.last[size]
        gap, scale = value - float(law.floor[size]), float(law.scale[size])
        step = np.inf
        if gap > 0:
            with np.errstate(divide="ignore"):
                # At most a number, however far: infinity is for a floor above.
                step = float(np.exp(min(law.origin + np.log(scale / gap) / float(law.exponent), _FARTHEST)))
        if not self.sure:
            return Meeting(step, np.nan, np.nan)
        places = np.linspace(start, last + np.log(FAR), _PLACES)
        quantity, target = [Term(1.0, size, places)], value
        if other is not None:
            there = np.full(places.shape, self.curves.last[other])
            quantity, target = [*quantity, Term(-1.0, other, there)], 0.0
        low, high = self.interval(quantity)
        return Meeting(step, _first(places, low - target), _last(places, high - target))


def _first(places: Array, low: Array) -> float:
    """Return the first step from which the lower ends [m] at logarithms of steps are not above zero."""
    below = np.flatnonzero(low <= 0)
    if not len(below):
        return np.inf
    return float(np.exp(_between(places, low, below[0] - 1))) if below[0] else float(np.exp(places[0]))


def _last(places: Array, high: Array) -> float:
    """Return the last step up to which the upper ends [m] at logarithms of steps are not below zero."""
    above = np.flatnonzero(high >= 0)
    if not len(above):
        return float(np.exp(places[0]))
    return float(np.exp(_between(places, high, above[-1]))) if above[-1] < len(places) - 1 else np.inf


def _between(places: Array, ends: Array, index: int) -> float:
    """Return the place of zero between an end and the next one; where one is infinite, outward."""
    here, there = ends[index], ends[index + 1]
    if not np.isfinite(here) or not np.isfinite(there):
        return float(places[index] if np.isfinite(there) else places[index + 1])
    return float(places[index] + (places[index + 1] - places[index]) * here / (here - there))
