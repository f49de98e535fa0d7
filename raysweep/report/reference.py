"""The mean over runs of an accuracy less that of a reference, which was measured once for all runs.

Seeds of a probe have the same training sets, projections and test sentences for every run and for the
reference.  With d_rs the difference of run r for seed s, R runs and S seeds, and the sums of squares of runs,
of seeds and of the rest in the table of d, whose mean squares have the expectations θ_R, θ_S and θ_RS,

    Var(d̄) = (θ_R + θ_S − θ_RS) / (R S),    θ_RS ≤ θ_R, θ_S

because the error of the reference for a seed is in the differences of all runs, so that seeds are as much a
sample as runs are.  Effects of runs and of seeds, and the rest, are assumed to be independent and normal.
The interval is the generalised (fiducial) one: each θ has the distribution of its sum of squares divided by a
χ² with its degrees of freedom, and then

    p = E 2 Φ(−|d̄| / √V),    V = max(θ_R, θ_S, θ_R + θ_S − θ_RS) / (R S),

and the interval holds all means with p > 0.05.  Where runs alone differ that is Student's t test, and with
few runs or seeds it holds rather more than it states, as the test of Behrens and Fisher does.  An approximate
t test (Satterthwaite) finds a difference that is not there in up to 5.6 % at 20 runs and 5 seeds.  The
standard error is V with the mean squares themselves.

Sources: S. Weerahandi, "Generalized confidence intervals", Journal of the American Statistical Association
88, 1993; J. Hannig, H. Iyer and P. Patterson, "Fiducial generalized confidence intervals", ibid. 101, 2006.

>>> found = by_seeds(np.array([[0.1, 0.3], [0.3, 0.5], [0.2, 0.4]]))
>>> float(found.value), round(float(found.standard_error), 4)  # seeds differ by 0.2, in all runs
(0.3, 0.1155)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from raysweep.report.association import CONFIDENCE, Estimate
from raysweep.report.quantiles import chi2_quantile, t_quantile
from raysweep.report.ratio import Array, Distribution, Ratio, solved

#: Points of the integrals over the χ² of runs, seeds and the rest.
_POINTS = 16, 16, 8


@dataclass(frozen=True)
class Crossed:
    """The distribution of a mean over runs and seeds by its standard error.

    `sums` [..., 3] are the sums of squares of runs, seeds and the rest by R S, and `dofs` their degrees of
    freedom.
    """

    sums: Array
    dofs: tuple[int, int, int]

    @property
    def variance(self) -> Array:
        """The squared standard error [...]."""
        return _whole(*np.moveaxis(self.sums / self.dofs, -1, 0))

    @property
    def parts(self) -> tuple[Array, Array]:
        """The shares of runs and of seeds in the squared standard error, and their degrees of freedom."""
        squares = self.sums[..., :2] / self.dofs[:2]
        with np.errstate(invalid="ignore"):
            return squares / squares.sum(axis=-1, keepdims=True), np.array(self.dofs[:2], dtype=float)

    @property
    def dof(self) -> Array:
        """The degrees of freedom of a χ² like the squared standard error (Satterthwaite) [...]."""
        shares, dofs = self.parts
        return np.asarray(1 / (shares**2 / dofs).sum(axis=-1))

    def one(self, place: int) -> Crossed:
        """Return the distribution of a single data set, where there are many [n]."""
        return Crossed(self.sums[place], self.dofs)

    def tail(self, size: Array) -> Array:
        """Return the p-value [...] of a mean that is `size` standard errors away."""
        spread, weights = self._variances
        with np.errstate(invalid="ignore", divide="ignore"):
            each = special.erfc(np.abs(size)[..., None] * np.sqrt(self.variance[..., None] / 2 / spread))
        return np.asarray((each * weights).sum(axis=-1))

    def quantile(self, level: float) -> Array:
        """Return the number of standard errors [...] at which the p-value is `level`."""
        return solved(self.tail, -t_quantile(level / 2, self.dof), level)

    @property
    def _variances(self) -> tuple[Array, Array]:
        """V [..., points] and the weights [points] of the integral over it."""
        axes, weights = [], np.ones(1)
        for place, (points, dof) in enumerate(zip(_POINTS, self.dofs, strict=True)):
            at, weight = np.polynomial.legendre.leggauss(points)
            at, weight = (at + 1) / 2, weight / 2
            # Probabilities at⁴: a small χ² has little probability, and all of a small p-value.
            axes.append(self.sums[..., place, None] / chi2_quantile(at**4, dof))
            weights = np.multiply.outer(weights, weight * 4 * at**3)
        runs, seeds, rest = axes
        spread = _whole(runs[..., :, None, None], seeds[..., None, :, None], rest[..., None, None, :])
        return spread.reshape(*spread.shape[:-3], -1), weights.ravel()


def _whole(runs: Array, seeds: Array, rest: Array) -> Array:
    """Return the variance of a mean, of mean squares or of what they are expected to be."""
    # Where runs, or seeds, differ by less than chance would have it, the other is all that is seen.
    return np.maximum(np.maximum(runs, seeds), runs + seeds - rest)


def by_seeds(apart: Array) -> Estimate:
    """Return the mean of differences [..., runs, seeds]: runs and seeds are samples, two at least of each."""
    runs, seeds = apart.shape[-2:]
    value = apart.mean(axis=(-2, -1))
    of_run, of_seed = (apart.mean(axis=axis, keepdims=True) for axis in (-1, -2))
    rest = apart - of_run - of_seed + value[..., None, None]
    sums = [of_run.var(axis=(-2, -1)), of_seed.var(axis=(-2, -1)), (rest**2).mean(axis=(-2, -1))]
    found = Crossed(np.stack(sums, axis=-1), (runs - 1, seeds - 1, (runs - 1) * (seeds - 1)))
    return _tested(value, np.sqrt(found.variance), found, runs)


def by_numbers(values: Array, reference: Array | float, reference_error: Array | float) -> Estimate:
    """Return the mean of values [..., runs] less that of a reference that is independent of them.

    The reference counts as known as well as its error says, and the values as normal: Student's t.
    """
    runs = values.shape[-1]
    own = values.std(axis=-1, ddof=1) / np.sqrt(runs)
    error = np.hypot(own, reference_error)
    return _tested(values.mean(axis=-1) - reference, error, Ratio.student(runs - 1), runs)


def _tested(value: Array, error: Array, found: Distribution, runs: int) -> Estimate:
    """Return an estimate with its interval; without any spread its value is certain."""
    sure = error == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        margin = np.where(sure, 0.0, found.quantile(1 - CONFIDENCE) * error)
        p = np.where(sure, (value == 0).astype(float), found.tail(np.abs(value) / np.where(sure, 1, error)))
    return Estimate(
        value=value, low=value - margin, high=value + margin, p=p, standard_error=error, ratio=found,
        clusters=runs,
    )  # fmt: skip
