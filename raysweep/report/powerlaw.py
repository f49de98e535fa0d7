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

Intervals are those of `raysweep.report.law_intervals`.

Sources: J. Kaplan et al., "Scaling laws for neural language models", arXiv:2001.08361, 2020; J. Hoffmann et
al., "Training compute-optimal large language models", arXiv:2203.15556, 2022; T. Besiroglu et al.,
"Chinchilla scaling: a replication attempt", arXiv:2404.10102, 2024.

>>> steps = np.array([250.0, 500, 1000, 2000, 4000])
>>> logs = [[np.log(floor + 2.0 * steps**-0.5)] * 2 for floor in (0.02, 0.01)]  # two sizes of two equal runs
>>> curves = Curves.of(steps, logs)
>>> law = fit(curves.means, curves)
>>> round(float(law.exponent), 4), law.floor.round(4).tolist()
(0.5, [0.02, 0.01])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raysweep.report.regression import Array

#: Exponents that are searched, the numbers of the first and of each finer grid, and the finer ones: with
#: bounds, the sum of squares may have a bend.
EXPONENTS, _COARSE, _FINE, _FINER = (0.02, 6.0), 49, 9, 6


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
    for finer in range(_FINER + 1):
        cost = solved(inverse, away, np.exp(grid), bounded)[2]
        grid = np.broadcast_to(grid, cost.shape)
        place = np.clip(cost.argmin(axis=1), 1, grid.shape[1] - 2)
        if finer < _FINER:
            grid = np.linspace(grid[rows, place - 1], grid[rows, place + 1], _FINE, axis=-1)
    below, here, above = (cost[rows, place + shift] for shift in (-1, 0, 1))
    bend = below - 2 * here + above
    # The vertex of the parabola through the last three places.
    shift = np.where(bend > 0, (below - above) / (2 * np.where(bend > 0, bend, 1.0)), 0.0)
    step = grid[:, 1] - grid[:, 0]
    exponent = np.exp(grid[rows, place] + np.clip(shift, -1, 1) * step)
    floor, scale, _ = solved(inverse, away, exponent[:, None], bounded)
    return Law(
        exponent.reshape(shape), floor[:, 0].reshape(*shape, -1), scale[:, 0].reshape(*shape, -1), origin
    )


def solved(inverse: Array, away: Array, exponent: Array, bounded: bool) -> tuple[Array, Array, Array]:
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
