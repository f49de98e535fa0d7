"""Power: the smallest effect that a design would see, and the number of clusters that an effect would take.

A test rejects where |estimate| > c √V, with V the squared standard error and c the quantile of the test
(`raysweep.report.ratio`, `raysweep.report.reference`).  With an effect δ, the estimate normal with the
variance σ² and V = σ² Σ_i w_i χ²(d_i)/d_i apart from it, by parts i, the power is

    Pr(|δ + σ z| > c √V) = 1/2 + 1/π ∫ Im φ(t) dt/t,    over t > 0,
    φ(t) = (1 − 2it)^(−1/2) exp(it δ²/σ² / (1 − 2it)) Π_i (1 + 2it c² w_i/d_i)^(−d_i/2).

k clusters like the G of the design at hand have σ² G/k for σ² and d_i k/G degrees of freedom, and c is the
quantile of that ratio.

σ is not known, and V of few clusters is small at times by chance.  So σ² is V / Σ w_i divided by χ²(ν)/ν,
with the degrees of freedom ν of V (Satterthwaite), and the power is the mean over it.  Over many pilots, a
new sweep then sees the effect that its pilot has named in 80 %.  With V taken for σ² Σ w_i that would be 68 %
at 3 degrees of freedom.

Sources: J. Gil-Pelaez, "Note on the inversion theorem", Biometrika 38, 1951; J. P. Imhof, "Computing the
distribution of quadratic forms in normal variables", Biometrika 48, 1961; H. S. Bloom, "Minimum detectable
effects", Evaluation Review 19, 1995.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from raysweep.report.quantiles import chi2_quantile
from raysweep.report.ratio import Array, Distribution

#: Probability of a false positive of one test (α), and of seeing an effect that is there.
LEVEL, POWER = 0.05, 0.8
#: Most clusters that are worth a number.
MOST = 10_000
#: Standard errors σ beyond which an effect counts as infinitely many: z is nothing beside it.
_FAR = 30.0
#: Points of the integral over t, evenly in its logarithm.  A step of 1/100 follows the waves of every effect
#: up to `_FAR`: they turn by at most 0.3 where they have not yet died away, at t = σ/δ.
_PLACES = np.linspace(-30, 20, 5001)
#: Points of the means over σ² and over the angle of Craig's form of the tail.
_SPREADS, _SQUARES = 32, np.sin((np.arange(64) + 0.5) / 64 * np.pi / 2) ** 2


@dataclass(frozen=True)
class Pilot:
    """The facts about a test that data give: standard error, its distribution, and number of clusters."""

    standard_error: float
    ratio: Distribution
    clusters: int

    def power(self, effect: float, *, clusters: int | None = None, level: float = LEVEL) -> float:
        """Return the probability that a test of so many clusters sees an effect, on either side.

        >>> from raysweep.report.ratio import Ratio
        >>> many = Pilot(1.0, Ratio.student(1000), 1001)
        >>> round(many.power(2.8), 2), round(many.power(0.0), 2)
        (0.8, 0.05)
        """
        return self._seen(clusters or self.clusters, level)(effect)

    def detectable(self, *, clusters: int | None = None, level: float = LEVEL) -> float:
        """Return the smallest effect that is seen with 80 %."""
        seen, high = self._seen(clusters or self.clusters, level), self.standard_error
        while seen(high) < POWER:
            high *= 2
        return float(brentq(lambda effect: seen(effect) - POWER, 0.0, high, rtol=1e-6))

    def needed(self, effect: float, *, level: float = LEVEL) -> int | None:
        """Return the number of clusters that see an effect with 80 %; None beyond `MOST`."""
        if not math.isfinite(effect) or effect == 0:
            return None

        def seen(count: int) -> bool:
            return self._seen(count, level)(effect) >= POWER

        if not seen(MOST):
            return None
        low, high = 2, MOST
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if seen(middle) else (middle + 1, high)
        return high

    def _seen(self, clusters: int, level: float) -> Callable[[float], float]:
        """Return the power of an effect with so many clusters."""
        means, dofs = self.ratio.parts
        times = clusters / self.clusters
        edge = float(self.ratio.quantile(level)) if times == 1 else _edge(means, dofs * times, level)
        dof = means.sum() ** 2 / (means**2 / dofs).sum()
        spreads = chi2_quantile((np.arange(_SPREADS) + 0.5) / _SPREADS, dof) / dof
        sigma = self.standard_error / np.sqrt(means.sum() * times * spreads)
        seen = beyond(edge, means, dofs * times)
        return lambda effect: float(seen(effect / sigma).mean())


def beyond(edge: float, means: Array, dofs: Array) -> Callable[[Array], Array]:
    """Return the function of δ/σ that is the power of a test with the quantile `edge`.

    `means` [P] are w and `dofs` [P] are d; δ/σ is [any number].
    """
    t = np.exp(_PLACES)

    def fixed(edges: Array) -> tuple[Array, Array]:
        """Return log |φ(t)| and the angle of φ(t), with δ = 0, for quantiles [n]: [n, number of t]."""
        size, angle = -np.log1p(np.square(2 * t)) / 4, np.arctan(2 * t) / 2
        for mean, dof in zip(means, dofs, strict=True):
            y = np.square(edges)[:, None] * (2 * mean / dof) * t
            size = size - dof / 4 * np.log1p(np.square(y))
            angle = angle - dof / 2 * np.arctan(y)
        return size, angle

    near = fixed(np.array([edge]))
    # δ multiplies φ(t) by exp(δ²/σ² · it / (1 − 2it)): the imaginary and the real part of the fraction.
    turning = t / (1 + np.square(2 * t))
    fading = -2 * t * turning

    def power(effect: Array) -> Array:
        size = np.abs(effect)
        far = size > _FAR
        waves = np.empty(len(size))
        for which, (sizes, angles) in ((~far, near), (far, fixed(edge * _FAR / size[far]))):
            # Beyond `_FAR`, only the ratio of effect and quantile counts.
            square = np.square(np.minimum(size[which], _FAR))[:, None]
            waves[which] = (np.exp(sizes + square * fading) * np.sin(angles + square * turning)).sum(axis=-1)
        return np.asarray(0.5 + waves * (_PLACES[1] - _PLACES[0]) / np.pi)

    return power


def _edge(means: Array, dofs: Array, level: float) -> float:
    """Return the quantile of the ratio of independent parts."""

    def above(logarithm: float) -> float:
        parts = np.exp(2 * logarithm) * means / dofs / _SQUARES[:, None]
        return float(np.exp(-0.5 * (dofs * np.log1p(parts)).sum(axis=-1)).mean()) - level

    return math.exp(brentq(above, -10.0, 40.0))
