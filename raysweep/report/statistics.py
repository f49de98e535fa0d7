"""Rank correlations and their uncertainty when checkpoints of one run resemble each other.

Spearman's rho (C. Spearman, 1904) is the Pearson correlation of ranks, ties sharing their mean rank:

    rho(x, y) = cov(r(x), r(y)) / sqrt(var r(x) * var r(y))

The partial correlation given z is that of the ranks once their linear dependence on the ranks of z is taken
out (Kendall, "Partial rank correlation", Biometrika 1942, in its product-moment form):

    rho(x, y | z) = (rho_xy - rho_xz rho_yz) / sqrt((1 - rho_xz^2)(1 - rho_yz^2))

Checkpoints of a run share weights, so they are not independent draws.  Intervals come from the cluster
bootstrap (Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8): whole runs are
drawn with replacement, and the interval is between percentiles of the statistic over the draws.

>>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
0.5
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Array = np.ndarray

#: Relative size below which a variance is rounding, not variation.
_TINY = 1e-12


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval; `low` and `high` are None where there is too little data.

    `n` counts observations.
    """

    value: float
    low: float | None
    high: float | None
    n: int


def spearman(x: Array, y: Array) -> float:
    """Return Spearman's rho of two samples [n]; nan where one of them does not vary or n < 2."""
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} values and y has {len(y)}; they must be paired")
    return _pearson(stats.rankdata(x), stats.rankdata(y))


def partial_spearman(x: Array, y: Array, z: Array) -> float:
    """Return Spearman's rho of x and y given z, all [n]; nan where it is not defined.

    It is not defined where x, y or z does not vary, and where z orders x or y completely.
    """
    return partial(spearman(x, y), spearman(x, z), spearman(y, z))


def partial(xy: float, xz: float, yz: float) -> float:
    """Return the correlation of x and y given z from the three correlations; nan where it is not defined."""
    left = (1 - xz * xz) * (1 - yz * yz)
    # Written so that nan fails it too.
    if not left > _TINY:
        return math.nan
    return float(np.clip((xy - xz * yz) / math.sqrt(left), -1.0, 1.0))


def _pearson(x: Array, y: Array) -> float:
    if len(x) < 2:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(np.clip((x @ y) / scale, -1.0, 1.0)) if scale > _TINY else math.nan


def cluster_bootstrap(
    statistic: Callable[..., Sequence[float]],
    columns: Sequence[Array],
    clusters: Array,
    *,
    seed: int,
    replicates: int = 2000,
    confidence: float = 0.95,
    least_clusters: int = 3,
    least_defined: float = 0.9,
) -> list[Interval]:
    """Return an interval for each number that `statistic(*columns)` returns.

    `columns` are arrays [n] and `clusters` [n] says which group each observation belongs to; `replicates`
    times, groups are drawn with replacement and the statistic is taken of all their observations.  A number
    gets no interval from fewer than `least_clusters` groups, or where it is undefined (nan) in more than
    `1 - least_defined` of the draws: what is left would be a selection.  The same seed, the same intervals.
    """
    values = np.asarray(statistic(*columns), dtype=float)
    _, inverse = np.unique(np.asarray(clusters), return_inverse=True)
    count = int(inverse.max()) + 1 if len(inverse) else 0
    if count < least_clusters:
        return [Interval(float(v), None, None, len(inverse)) for v in values]
    members = [np.flatnonzero(inverse == c) for c in range(count)]
    generator = np.random.default_rng(seed)
    draws = np.empty((replicates, len(values)))
    for replicate in range(replicates):
        chosen = np.concatenate([members[c] for c in generator.integers(count, size=count)])
        draws[replicate] = statistic(*(column[chosen] for column in columns))
    tail = (1 - confidence) / 2
    intervals = []
    for value, column in zip(values, draws.T, strict=True):
        defined = column[~np.isnan(column)]
        low = high = None
        if len(defined) >= least_defined * replicates and not math.isnan(value):
            low, high = (float(q) for q in np.quantile(defined, [tail, 1 - tail]))
        intervals.append(Interval(float(value), low, high, len(inverse)))
    return intervals


def mean_and_error(values: Array) -> tuple[float, float | None]:
    """Return the mean of independent values [n] and its standard error; None for fewer than two.

    >>> mean_and_error(np.array([1.0, 3.0]))
    (2.0, 1.0)
    """
    values = np.asarray(values, dtype=float)
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return float(values.mean()), error


def normal_p(value: float, standard_error: float) -> float:
    """Return the two-sided probability of so large a normal deviate; 1 where nothing can be said.

    >>> round(normal_p(1.96, 1.0), 3), normal_p(0.0, 0.0), normal_p(1.0, math.nan)
    (0.05, 1.0, 1.0)
    """
    if value == 0 or math.isnan(standard_error):
        return 1.0
    return math.erfc(abs(value) / standard_error / math.sqrt(2)) if standard_error > 0 else 0.0


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number: those at most α are significant together at level α.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics,
    1979.  It holds whatever the dependence between the tests.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [1.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda k: p[k])):
        least = max(least, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = least
    return corrected
