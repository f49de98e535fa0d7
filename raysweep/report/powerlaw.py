"""Power laws of training: a loss that falls with the steps to a floor of its model's size.

The law of size c at step S is

    L_c(S) = F_c + B_c S^−β,    F_c ≥ 0,  B_c ≥ 0,

with one exponent β for all sizes, as in the laws of Kaplan et al. (their equation 1.6, after an initial
transient) and Hoffmann et al. (approach 3).  These also say how F and B depend on the number of parameters;
here each size has its own, since models of different shape need not lie on one curve.

Fit: the sum over sizes and milestones of (L_c(S) / Y_c(S) − 1)² is least, where Y is the geometric mean over
the runs of the size.  Given β this is linear in F and B and has a closed solution, so the whole search is for
one number, on a grid that is made finer.  There is nothing to start from and no local minimum to end in;
loosely converged fits were a fault of published laws (Besiroglu et al.).

Intervals: the unit of replication is the run.  The deviations of log L of a run from the mean of its size are
taken to be alike in all sizes, whatever their correlation along training.  With ν = runs − sizes, means are
drawn again from a multivariate t distribution with their pooled covariance and ν degrees of freedom, and
fitted again without the bounds on F and B.  The interval of g is [2 ĝ − q₀.₉₇₅, 2 ĝ − q₀.₀₂₅] with the
quantiles q of the draws.  Where g is linear in the logarithms, that is Student's interval.  The interval of
the step of equal loss is the set of steps at which the interval of the difference of losses contains zero, as
in E. C. Fieller, "Some problems in interval estimation", 1954; so "never" may be in it.  `raysweep bench
statistics` measures the coverage.

Sources: J. Kaplan et al., "Scaling laws for neural language models", arXiv:2001.08361, 2020; J. Hoffmann et
al., "Training compute-optimal large language models", arXiv:2203.15556, 2022; T. Besiroglu et al.,
"Chinchilla scaling: a replication attempt", arXiv:2404.10102, 2024.

>>> steps = np.array([250.0, 500, 1000, 2000, 4000])
>>> logs = [[np.log(floor + 2.0 * steps**-0.5)] * 2 for floor in (0.02, 0.01)]  # two sizes of two equal runs
>>> fitted = Fit(Curves.of(steps, logs))
>>> round(float(fitted.law.exponent), 4), fitted.law.floor.round(4).tolist()
(0.5, [0.02, 0.01])
>>> round(fitted.meeting(0, 0.03).step, -2)  # (2 / (0.03 − 0.02))²
40000.0
>>> fitted.meeting(0, 0.015).step  # its floor lies above
inf
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from raysweep.report.regression import Array

#: Exponents that are searched, the numbers of the first and of each finer grid, and the finer ones: more with
#: bounds, where the sum of squares may have a bend.
EXPONENTS, _COARSE, _FINE, _FINER = (0.02, 6.0), 49, 9, {True: 6, False: 2}
#: Draws for an interval, and fewest degrees of freedom of one.
DRAWS, LEAST_DOF = 1000, 2
#: Steps of equal loss are looked for up to this multiple of the last milestone, at so many places.
FAR, _PLACES = 100.0, 401
#: Largest logarithm of a step.
_FARTHEST = 700.0
#: Ends of a 95 % and of a 90 % interval among the draws.
_ENDS, _SHORTER = (0.975, 0.025), (0.95, 0.05)
#: Shares of an exponent, and of its interval, up to which a change of it does not matter.
DRIFT = 0.01, 0.05


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The curves of k sizes along T milestones, in logarithms.

    `log_steps`, `means` (over the runs of a size) and `known` are [k, T]; what is not known is padding.
    `deviations` [n, k, T] are those of each run from the mean of its own size, at the milestones of every
    size, and `runs` [k] counts the runs of a size.
    """

    log_steps: Array
    means: Array
    known: Array
    deviations: Array
    runs: Array

    @classmethod
    def of(cls, steps: Array | Sequence[Array], logs: Sequence[Array]) -> Curves:
        """Arrange the logarithms [runs, T_c] of each size at its `steps` [T_c], which ascend.

        Milestones [T] are those of all sizes.  Deviations are interpolated between other milestones.
        """
        own = [
            np.log(np.asarray(s, dtype=float)) for s in (steps if np.ndim(steps[0]) else [steps] * len(logs))
        ]
        logs = [np.asarray(one, dtype=float) for one in logs]
        shape = len(logs), max(len(one) for one in own)
        log_steps, means, known = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
        for place, (x, y) in enumerate(zip(own, logs, strict=True)):
            known[place, : len(x)] = True
            log_steps[place] = x[-1]
            log_steps[place, : len(x)], means[place, : len(x)] = x, y.mean(axis=0)
        deviations = [
            [np.interp(row, x, one) for row in log_steps]
            for x, y in zip(own, logs, strict=True)
            for one in y - y.mean(axis=0)
        ]
        runs = np.array([len(y) for y in logs])
        return cls(log_steps=log_steps, means=means, known=known, deviations=np.array(deviations), runs=runs)

    @property
    def dof(self) -> int:
        """The degrees of freedom of the spread between runs of a size."""
        return int(self.runs.sum()) - len(self.runs)

    @property
    def last(self) -> Array:
        """The logarithm of the last milestone of each size [k]."""
        return self.log_steps.max(axis=1)

    def since(self, log_step: float) -> Curves:
        """Return the same curves without the milestones before a step."""
        return replace(self, known=self.known & (self.log_steps >= log_step - 1e-9))

    def draws(self, count: int, generator: np.random.Generator) -> Array:
        """Return means [count, k, T] as other runs might have had them, less those that these runs have."""
        size = count, len(self.runs), len(self.deviations)
        normal = generator.standard_normal(size) / np.sqrt(self.dof * self.runs[:, None])
        wide = np.sqrt(self.dof / generator.chisquare(self.dof, count))
        return np.einsum("dkn,nkt->dkt", normal * wide[:, None, None], self.deviations, optimize=True)


@dataclass(frozen=True)
class Law:
    """Fitted laws: `exponent` [...], `floor` and `scale` [..., k]; the step of `scale` is exp(`origin`)."""

    exponent: Array
    floor: Array
    scale: Array
    origin: float

    def at(self, size: int, log_steps: Array) -> Array:
        """Return the values [..., t] of a size at the logarithms of steps [t]."""
        power = np.exp(-self.exponent[..., None] * (log_steps - self.origin))
        return self.floor[..., size, None] + self.scale[..., size, None] * power


@dataclass(frozen=True)
class Meeting:
    """The step at which a value is reached, with its interval; `inf` is never.

    An end of the interval is never where it lies beyond `FAR` times the last milestone.
    """

    step: float
    low: float
    high: float


def fit(means: Array, curves: Curves, *, bounded: bool = True) -> Law:
    """Return the laws of logarithms [..., k, T] at the milestones of `curves`.

    Without bounds, floors and scales may be negative: an interval needs estimates that a bound does not bend.
    """
    shape = means.shape[:-2]
    inverse = np.exp(-means.reshape(-1, *means.shape[-2:])) * curves.known
    origin = float(curves.last.max())
    away = curves.log_steps - origin
    rows = np.arange(len(inverse))
    grid = np.linspace(math.log(EXPONENTS[0]), math.log(EXPONENTS[1]), _COARSE)[None]
    for finer in range(_FINER[bounded] + 1):
        cost = _solved(inverse, away, np.exp(grid), bounded)[2]
        grid = np.broadcast_to(grid, cost.shape)
        place = np.clip(cost.argmin(axis=1), 1, grid.shape[1] - 2)
        if finer < _FINER[bounded]:
            grid = np.linspace(grid[rows, place - 1], grid[rows, place + 1], _FINE, axis=-1)
    below, here, above = (cost[rows, place + shift] for shift in (-1, 0, 1))
    bend = below - 2 * here + above
    # The vertex of the parabola through the last three places.
    shift = np.where(bend > 0, (below - above) / (2 * np.where(bend > 0, bend, 1.0)), 0.0)
    step = grid[:, 1] - grid[:, 0]
    exponent = np.exp(grid[rows, place] + np.clip(shift, -1, 1) * step)
    floor, scale, _ = _solved(inverse, away, exponent[:, None], bounded)
    return Law(
        exponent.reshape(shape), floor[:, 0].reshape(*shape, -1), scale[:, 0].reshape(*shape, -1), origin
    )


def _solved(inverse: Array, away: Array, exponent: Array, bounded: bool) -> tuple[Array, Array, Array]:
    """Return floors and scales [d, g, k] and costs [d, g] of exponents [1 or d, g].

    `inverse` [d, k, t] are one by the values, and `away` [k, t] the logarithms of steps from the origin.
    """
    power = np.exp(-exponent[..., None, None] * away)
    square = inverse**2
    shared = len(power) == 1

    def sums(weights: Array, terms: Array) -> Array:
        if shared:
            return np.einsum("dkt,gkt->dgk", weights, terms[0], optimize=True)
        return np.einsum("dkt,dgkt->dgk", weights, terms)

    a, p = square.sum(axis=-1)[:, None], inverse.sum(axis=-1)[:, None]
    b, c, q = sums(square, power), sums(square, power**2), sums(inverse, power)
    across = a * c - b**2
    floor, scale = (p * c - q * b) / across, (a * q - b * p) / across
    if bounded:
        flat, falling = scale < 0, floor < 0
        floor, scale = (
            np.where(flat, p / a, np.where(falling, 0.0, floor)),
            np.where(flat, 0.0, np.where(falling, q / c, scale)),
        )
    # The least sum of squares, less that of no law, which is the number of milestones.
    return floor, scale, -(floor * p + scale * q).sum(axis=-1)


class Fit:
    """The law of curves, and the intervals of what follows from it.

    `earlier` is a fit that was given up for this one because of what the same runs have shown.  The choice is
    as uncertain as they are, so an interval reaches over that of the earlier fit, too.
    """

    def __init__(
        self, curves: Curves, *, earlier: Fit | None = None, draws: int = DRAWS, seed: int = 0
    ) -> None:
        self.curves, self.earlier = curves, earlier
        self.law = fit(curves.means, curves)
        self._draws, self._seed = draws, seed

    @property
    def sure(self) -> bool:
        """Whether there are enough runs for intervals."""
        return self.curves.dof >= LEAST_DOF

    def drifts(self) -> bool:
        """Return whether the exponent is another one without the milestones below twice the first.

        It is where the change has a 90 % interval, by the same draws, without zero, and is more than the
        shares `DRIFT` of the exponent and of its interval.  False where a size has fewer than three left.
        """
        first = self.curves.log_steps[self.curves.known].min()
        curves = self.curves.since(first + np.log(2))
        if curves.known.sum(axis=1).min() < 3:
            return False
        later = Fit(curves, draws=self._draws, seed=self._seed)
        (free, drawn), (late, late_drawn) = self._free, later._free
        change = float(np.log(late.exponent / free.exponent))
        ends = np.quantile(np.log(late_drawn.exponent / drawn.exponent), _SHORTER)
        low, high = self._interval(lambda law: np.log(law.exponent))
        apart = not 2 * change - ends[0] <= 0 <= 2 * change - ends[1]
        return apart and abs(change) > max(DRIFT[0], DRIFT[1] * float(high - low))

    @cached_property
    def _free(self) -> tuple[Law, Law]:
        """The law without bounds, and those of the draws."""
        drawn = self.curves.draws(self._draws, np.random.default_rng(self._seed))
        free = fit(self.curves.means, self.curves, bounded=False)
        return free, fit(self.curves.means + drawn, self.curves, bounded=False)

    def interval(self, quantity: Callable[[Law], Array]) -> tuple[Array, Array]:
        """Return the ends [...] of the 95 % interval of a quantity of a law; nan with too few runs."""
        if not self.sure:
            nothing = np.full(np.shape(quantity(self.law)), np.nan)
            return nothing, nothing
        low, high = self._interval(quantity)
        if self.earlier is not None:
            first, last = self.earlier.interval(quantity)
            low, high = np.minimum(low, first), np.maximum(high, last)
        return low, high

    def _interval(self, quantity: Callable[[Law], Array]) -> tuple[Array, Array]:
        """Return the ends [...] of the interval by these milestones alone."""
        free, drawn = self._free
        centre, among = quantity(free), quantity(drawn)
        ends = np.quantile(among, _ENDS, axis=0)
        return 2 * centre - ends[0], 2 * centre - ends[1]

    @property
    def exponent(self) -> tuple[float, float, float]:
        """β with its interval."""
        low, high = np.exp(self.interval(lambda law: np.log(law.exponent)))
        return float(self.law.exponent), float(low), float(high)

    def floors(self) -> tuple[Array, Array, Array]:
        """Return the floors [k] with their intervals."""
        low, high = self.interval(lambda law: law.floor)
        floor = self.law.floor
        # The interval is that of floors without a bound; where the bound acts it may leave out this one.
        return floor, np.minimum(np.maximum(low, 0), floor), np.maximum(high, floor)

    def misfit(self) -> Array:
        """Return log L less the mean over runs, [k, T]; 0 where nothing is known."""
        steps = enumerate(self.curves.log_steps)
        fitted = np.log(np.stack([self.law.at(size, row) for size, row in steps]))
        return np.where(self.curves.known, fitted - self.curves.means, 0.0)

    def meeting(self, size: int, value: float) -> Meeting:
        """Return the step at which a size reaches a value that is known."""
        return self._meeting(size, lambda law: np.full(np.shape(law.exponent), value))

    def equal(self, smaller: int, larger: int) -> Meeting:
        """Return the step at which one size reaches the value of another at that one's last milestone."""
        last = self.curves.last[larger : larger + 1]
        return self._meeting(smaller, lambda law: law.at(larger, last)[..., 0])

    def _meeting(self, size: int, target: Callable[[Law], Array]) -> Meeting:
        law, known = self.law, self.curves.known[size]
        start, last = self.curves.log_steps[size][known].min(), self.curves.last[size]
        gap, scale = float(target(law) - law.floor[size]), float(law.scale[size])
        step = np.inf
        if gap > 0:
            with np.errstate(divide="ignore"):
                # At most a number, however far: infinity is for a floor above.
                step = float(np.exp(min(law.origin + np.log(scale / gap) / float(law.exponent), _FARTHEST)))
        if not self.sure:
            return Meeting(step, np.nan, np.nan)
        places = np.linspace(start, last + np.log(FAR), _PLACES)
        low, high = self.interval(lambda law: law.at(size, places) - target(law)[..., None])
        near, far = np.flatnonzero(low <= 0), np.flatnonzero(high >= 0)
        # Outward to the next place, so that no rounding makes an interval too short.
        first = float(np.exp(places[max(near[0] - 1, 0)])) if len(near) else np.inf
        if len(far) and far[-1] == _PLACES - 1:
            return Meeting(step, first, np.inf)
        return Meeting(step, first, float(np.exp(places[far[-1] + 1] if len(far) else start)))
