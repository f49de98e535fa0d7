"""Intervals of power laws: score tests by run, along the curve on which they are hardest to reject.

A quantity q of a law is its exponent, a floor, a loss at a step, or a difference of losses.  The test that
the law θ is true asks of the remainders r [sizes, T] whether they lean towards another q.  With the
derivatives J of the law, relative to the means, and the gradient h of q, both at θ, the statistic is

    s = w'r,    w = J (J'J)⁻¹ h,

which is the change of q by one step of Gauss and Newton.  It is a sum over runs: each run adds w'd with its
deviation d [T] from the mean of its size.  So milestones of a run count as one, however they are correlated.
With ν = runs − sizes,

    t = s / e,    e² = Σ_c w_c' Σ̂ w_c / n_c,    Σ̂ = Σ_runs d d' / ν,

is compared with Student's t of ν degrees of freedom.  To first order s does not depend on the other numbers
of the law.  These follow q as they do in estimates: from the best law on, θ moves along

    dθ/dτ = (J'J)⁻¹ J' (Σ̂ w / n) / e,

by which q grows by e, until t is rejected; the q there is the end of the interval.  As w and e are taken at
each θ anew, no law is taken to be straight, and where the runs do not bound q, neither does the interval.

Sources: D. D. Boos, "On generalized score tests", The American Statistician 46(4), 1992; D. M. Bates and
D. G. Watts, "Nonlinear regression analysis and its applications", 1988, chapter 6 (profiles); C. Stein,
"Efficient nonparametric testing and estimation", 1956 (the curve); E. C. Fieller, "Some problems in interval
estimation", 1954.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raysweep.report.powerlaw import Curves, Law, fit
from raysweep.report.quantiles import t_quantile
from raysweep.report.regression import TINY, Array

#: Steps to where a straight law is rejected, and most of them: from there on nothing bounds a quantity.
_STEPS, _MOST = 8, 40
#: Ends of the logarithm of an exponent.
_FARTHEST = -6.0, 3.0


@dataclass(frozen=True)
class Term:
    """A summand: `factor` times the loss of `size` at the logarithms of steps [m]; at infinity, its floor.

    With a size of None it is the logarithm of the exponent.
    """

    factor: float
    size: int | None
    log_steps: Array


Quantity = Sequence[Term]
EXPONENT: Quantity = (Term(1.0, None, np.zeros(1)),)


@dataclass(frozen=True)
class Score:
    """A test at laws [...]: the quantity, t, its error e, and the weights w [..., k, T].

    `along` is the move of the logarithm of the exponent [...], of floors and of scales [..., k] by which t
    falls by about one.
    """

    value: Array
    t: Array
    error: Array
    weights: Array
    along: tuple[Array, Array, Array]


class Scores:
    """The tests of quantities by the runs of curves, and their intervals."""

    def __init__(self, curves: Curves) -> None:
        self.curves = curves
        self.law: Law = fit(curves.means, curves, bounded=False)
        self._inverse = np.exp(-curves.means) * curves.known
        self._origin = float(curves.last.max())
        self._away = curves.log_steps - self._origin
        #: [k, T, n], and [k, n, T] by the runs of a size
        self._across = curves.deviations.transpose(1, 2, 0)
        self._most = (curves.deviations**2).sum() / max(curves.dof, 1) / curves.runs.min()
        self._along = curves.deviations.transpose(1, 0, 2) / curves.runs[:, None, None]

    def critical(self, confidence: float = 0.95) -> float:
        """Return the quantile of Student's t for a two-sided interval."""
        return float(t_quantile((1 + confidence) / 2, self.curves.dof))

    @property
    def estimate(self) -> tuple[Array, Array, Array]:
        """The logarithm of the best exponent [1], and the best floors and scales [1, k]."""
        law = self.law
        return np.log(law.exponent)[None], law.floor[None], law.scale[None]

    @cached_property
    def exponent(self) -> tuple[float, float]:
        """The ends of the interval of the logarithm of the exponent."""
        low, high = self.interval(EXPONENT)
        return float(low[0]), float(high[0])

    def interval(self, quantity: Quantity) -> tuple[Array, Array]:
        """Return the ends [m] of the 95 % interval of a quantity; infinite where the runs do not bound it."""
        sides = np.array([[-1.0], [1.0]])
        shape = 2, *np.broadcast_shapes(*(term.log_steps.shape for term in quantity))
        exponent, floor, scale = self.estimate
        sizes = (*shape, floor.shape[-1])
        state = np.broadcast_to(exponent, shape), np.broadcast_to(floor, sizes), np.broadcast_to(scale, sizes)
        critical = self.critical()
        here = self.at(quantity, *state)
        straight = here.value + sides * critical * here.error
        # Without spread among the runs there is nowhere to go.
        ends = np.where(here.error > 0, sides * np.inf, straight)
        open_ = here.error > 0
        for _ in range(_MOST):
            if not open_.any():
                break
            half = self.at(quantity, *_moved(state, here.along, sides * critical / _STEPS / 2))
            state = _moved(state, half.along, sides * critical / _STEPS)
            there = self.at(quantity, *state)
            before, after = -sides * here.t, -sides * there.t
            met = open_ & (after >= critical)
            share = np.clip((critical - before) / np.where(met, after - before, 1.0), 0.0, 1.0)
            ends = np.where(met, here.value + share * (there.value - here.value), ends)
            open_ = open_ & ~met & np.isfinite(there.t)
            here = there
        return ends[0], ends[1]

    def at(self, quantity: Quantity, log_exponent: Array, floor: Array, scale: Array) -> Score:
        """Return the test of a quantity at laws: logarithms of exponents [...], floors, scales [..., k]."""
        inverse, exponent = self._inverse, np.exp(log_exponent)
        power = np.exp(-exponent[..., None, None] * self._away)
        turned = inverse * power
        slope = -self._away * exponent[..., None, None] * scale[..., None] * turned
        square = _Square(inverse, turned)
        first, second = square.solved((slope * inverse).sum(-1), (slope * turned).sum(-1))
        rest = slope - first[..., None] * inverse - second[..., None] * turned
        lean = rest / (rest**2).sum(axis=(-1, -2), keepdims=True)
        value, of_exponent, of_floor, of_scale = self._gradient(quantity, log_exponent, floor, scale)
        low, high = square.solved(of_floor, of_scale)
        onto = of_exponent - (of_floor * first + of_scale * second).sum(-1)
        weights = low[..., None] * inverse + high[..., None] * turned + onto[..., None, None] * lean
        error, shift = self._spread(weights)
        left = self.curves.known - floor[..., None] * inverse - scale[..., None] * turned
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(error > 0, (weights * left).sum(axis=(-1, -2)) / error, 0.0)
            shift = np.where(error[..., None, None] > 0, shift / error[..., None, None], 0.0)
        move = (lean * shift).sum(axis=(-1, -2))
        shift = shift - slope * move[..., None, None]
        along = move, *square.solved((shift * inverse).sum(-1), (shift * turned).sum(-1))
        return Score(value, t, error, weights, along)

    def error(self, weights: Array) -> Array:
        """Return the standard error [...] of the sum of means with `weights` [..., k, T]."""
        return self._spread(weights)[0]

    def _spread(self, weights: Array) -> tuple[Array, Array]:
        """Return the standard error [...] of a sum of means, and their covariances [..., k, T] with it."""
        by_size = np.moveaxis(weights, -2, 0).reshape(len(self._inverse), -1, weights.shape[-1])
        shift = np.moveaxis(by_size @ self._across @ self._along, 0, 1).reshape(weights.shape)
        shift = shift / self.curves.dof
        found = (weights * shift).sum(axis=(-1, -2))
        # Runs that differ in their level alone say all the same of an exponent, but for rounding.
        most = (weights**2).sum(axis=(-1, -2)) * self._most
        return np.sqrt(np.where(found > TINY * most, found, 0.0)), shift

    def _gradient(
        self, quantity: Quantity, log_exponent: Array, floor: Array, scale: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Return a quantity with its derivatives by the logarithm of the exponent, floors and scales."""
        exponent, value = np.exp(log_exponent), np.zeros(log_exponent.shape)
        of_exponent, of_floor, of_scale = np.zeros_like(value), np.zeros_like(floor), np.zeros_like(scale)
        for factor, size, steps in ((term.factor, term.size, term.log_steps) for term in quantity):
            if size is None:
                value, of_exponent = value + factor * log_exponent, of_exponent + factor
                continue
            known = np.isfinite(steps)
            away = np.where(known, steps - self._origin, 0.0)
            reach = factor * np.where(known, np.exp(-exponent * away), 0.0)
            value = value + factor * floor[..., size] + reach * scale[..., size]
            of_exponent = of_exponent - exponent * away * reach * scale[..., size]
            of_floor[..., size] += factor
            of_scale[..., size] += reach
        return value, of_exponent, of_floor, of_scale


class _Square:
    """X'X of each size, where X [T, 2] is one and the power of the step, relative to the means."""

    def __init__(self, inverse: Array, turned: Array) -> None:
        self._a, self._b = (inverse**2).sum(-1), (inverse * turned).sum(-1)
        self._c = (turned**2).sum(-1)
        self._across = self._a * self._c - self._b**2

    def solved(self, first: Array, second: Array) -> tuple[Array, Array]:
        """Return (X'X)⁻¹ times vectors [..., k] and [..., k]."""
        return (
            (self._c * first - self._b * second) / self._across,
            (self._a * second - self._b * first) / self._across,
        )


def _moved(
    state: tuple[Array, Array, Array], along: tuple[Array, Array, Array], by: Array
) -> tuple[Array, Array, Array]:
    """Return a law [...] moved along a direction, with exponents far beyond all that are searched at most."""
    move, of_floor, of_scale = along
    log_exponent, floor, scale = state
    there = np.clip(log_exponent + by * move, *_FARTHEST)
    return there, floor + by[..., None] * of_floor, scale + by[..., None] * of_scale
