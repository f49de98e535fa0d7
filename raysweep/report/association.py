"""The association of two quantities at equal loss: its estimate, interval and test.

Ranks of the checkpoints take the place of values, so nothing depends on whether a loss is that above the
entropy, or a trace is taken as its logarithm.  With r the ranks,

    r_y = f(loss) + β r_x + e,        ρ = β̂ √(x̃ᵀx̃ / ỹᵀỹ)

where f is a smooth function of the rank of the loss (a polynomial of degree `DEGREE`), and x̃ and ỹ are what
f leaves of r_x and r_y: ρ is their correlation, a partial rank correlation.  β̂ has scores s_g of clusters,
and the ratio of its error to its standard error has the quantile c (`raysweep.report.regression`).  With x̂
and ŷ the x̃ and ỹ of length one, the interval is that of Fisher's z = artanh ρ with the first-order (delta)
standard error of z,

    z ± c √(Σ_g ψ_g²) / (1 − ρ²),    ψ_g = s_g √(x̃ᵀx̃ / ỹᵀỹ) + ρ/2 Σ_{i in g} (x̂_i² − ŷ_i²),

which at ρ = 0 is that of β̂, and the p-value is that of the same ratio (R. A. Fisher, "On the probable error
of a coefficient of correlation", Metron 1, 1921).

Checkpoints of a run resemble each other, and so do runs of one configuration that differ in their seed: what
is peculiar to a model size shifts its flatness and its accuracy in all its runs.  Three sizes with many seeds
say three things about sizes, not as many as there are runs.  So clusters are configurations, and the three
parts of the association, which may have opposite signs (E. H. Simpson, "The interpretation of interaction in
contingency tables", 1951), are also estimated apart:

- `configurations`: means of configurations;
- `seeds`: means of runs about that of their configuration; clusters are runs;
- `steps`: checkpoints about the mean of their run.

Of many checkpoints, constants of runs or of configurations are no columns of a design but `groups`, whose
means are taken away (`raysweep.report.many`).

`raysweep bench statistics` measures coverage and level of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from raysweep.report import many
from raysweep.report.many import Parts
from raysweep.report.quantiles import mean_ranks, places
from raysweep.report.ratio import Distribution
from raysweep.report.regression import Array, Slope, residuals, slope
from raysweep.sweep.claims import Level

#: Degree of the polynomial of the rank of the loss.
DEGREE = 3
#: Checkpoints of a stratum of equal loss; most strata, and most cells of strata by checkpoints: of many
#: checkpoints, each stratum has more.
STRATUM, STRATA, CELLS = 6, 200, 2_000_000
#: Most checkpoints whose regressions have matrices of the size of checkpoints by clusters and by groups.
DENSE = 1000
#: Fewest clusters, and fewest degrees of freedom, of an interval.
LEAST_CLUSTERS, LEAST_DOF = 3, 1.5
#: Least share of the variation of x that the loss must leave: with less, the two are one.
LEAST_LEFT = 0.01
CONFIDENCE = 0.95

LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimates [...] with their 95 % intervals and p-values; nan where they are not defined.

    `standard_error` is that of Fisher's z for a correlation, and that of the value for others.  `ratio` is
    the distribution of the test: that of the error by the standard error.
    """

    value: Array
    low: Array
    high: Array
    p: Array
    standard_error: Array
    ratio: Distribution
    clusters: int


def ranks(values: Array) -> Array:
    """Return the ranks of values [..., n] along the last axis, from just above −1 to just below 1."""
    n = values.shape[-1]
    return (2 * mean_ranks(values) - n - 1) / n


def smooth(place: Array) -> Array:
    """Return the design [..., n, p] of a smooth function of a place [..., n], its constant first.

    The places are of the size of one, such as ranks.
    """
    degree = min(DEGREE, max(1, place.shape[-1] // 4))
    return np.stack([place**power for power in range(degree + 1)], axis=-1)


def strata(loss: Array) -> Array:
    """Return the design [..., n, p] of a level for each stratum of neighbours in loss, the constant first.

    The last column is the rank of the loss: within a stratum, too, a smaller loss is better.
    """
    n = loss.shape[-1]
    count = min(max(2, n // STRATUM), STRATA, max(2, CELLS // n))
    place = np.minimum(places(loss) * count // n, count - 1)
    steps = [place == number for number in range(1, count)]
    return np.stack([np.ones(loss.shape), *steps, ranks(loss)], axis=-1).astype(float)


def indicators(groups: Array) -> Array:
    """Return a column for each group of `groups` [n] but the first: [n, p]."""
    return (groups[:, None] == np.unique(groups)[None, 1:]).astype(float)


def beside(design: Array, columns: Array) -> Array:
    """Return a design [..., n, p] with further columns [n, q]."""
    shape = (*design.shape[:-1], columns.shape[-1])
    return np.concatenate([design, np.broadcast_to(columns, shape)], axis=-1)


def left_by(design: Array, groups: Array | None, *values: Array) -> tuple[Array, ...]:
    """Return what a design [..., n, p] and the constants of `groups` [n] leave of each of values [..., n]."""
    if _dense(values[0]):
        return tuple(residuals(one, _with(design, groups)) for one in values)
    return many.residuals(design, groups, *values)


def correlation(x: Array, y: Array, design: Array, clusters: Array, groups: Array | None = None) -> Estimate:
    """Return the correlation of x and y [..., n] given a design [..., n, p], with clusters [n].

    `groups` [n], if any, have constants of their own beside the design; see `raysweep.report.many`.
    """
    found = _slope(x, y, design, clusters, groups)
    left_x, left_y = found.rests
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.sqrt((left_x**2).sum(axis=-1) / (left_y**2).sum(axis=-1))
        value = np.clip(found.value * scale, -1, 1)
        value = np.where(found.left >= LEAST_LEFT, value, np.nan)
        inside = np.clip(value, -1 + 1e-9, 1 - 1e-9)
        members = Parts(clusters)
        lengths = _of_clusters(_shares(left_x), members) - _of_clusters(_shares(left_y), members)
        scores = found.scores * scale[..., None] + value[..., None] / 2 * lengths
        error = np.sqrt((scores**2).sum(axis=-1)) / (1 - inside**2)
    low, high, p = ends(np.arctanh(inside), error, found.ratio, len(members))
    return Estimate(
        value=value, low=np.tanh(low), high=np.tanh(high), p=p, standard_error=error, ratio=found.ratio,
        clusters=len(members),
    )  # fmt: skip


def _dense(values: Array) -> bool:
    """Return whether values [..., n] are so few, or of so many data sets, that all matrices are made."""
    return values.ndim > 1 or values.shape[-1] <= DENSE


def _with(design: Array, groups: Array | None) -> Array:
    return design if groups is None else beside(design, indicators(groups))


def _slope(x: Array, y: Array, design: Array, clusters: Array, groups: Array | None) -> Slope | many.Fitted:
    if _dense(y):
        return slope(y, x, _with(design, groups), clusters)
    return many.slope(y, x, design, clusters, groups)


def _of_clusters(values: Array, members: Parts) -> Array:
    """Return the sums [..., clusters] of values [..., n]."""
    if not _dense(values):
        return members.sums(values)
    return values @ (members.of[:, None] == np.arange(len(members))[None, :]).astype(float)


def _shares(values: Array) -> Array:
    """Return the share of each of values [..., n] in the sum of their squares."""
    return values**2 / (values**2).sum(axis=-1, keepdims=True)


def coefficient(x: Array, y: Array, design: Array, clusters: Array, groups: Array | None = None) -> Estimate:
    """Return the slope of y over x [..., n] given a design [..., n, p], with clusters [n].

    `groups` are as in `correlation`.
    """
    found = _slope(x, y, design, clusters, groups)
    value = np.where(found.left >= LEAST_LEFT, found.value, np.nan)
    count = len(np.unique(clusters))
    low, high, p = ends(value, found.standard_error, found.ratio, count)
    return Estimate(
        value=value, low=low, high=high, p=p, standard_error=found.standard_error,
        ratio=found.ratio, clusters=count,
    )  # fmt: skip


def ends(value: Array, error: Array, ratio: Distribution, clusters: int) -> tuple[Array, Array, Array]:
    """Return the ends of the 95 % interval and the p-value; nan with too few degrees of freedom."""
    with np.errstate(invalid="ignore", divide="ignore"):
        known = (ratio.dof >= LEAST_DOF) & (error > 0) & (clusters >= LEAST_CLUSTERS)
        margin = np.where(known, ratio.quantile(1 - CONFIDENCE) * error, np.nan)
        size = np.where(known & ~np.isnan(value), np.abs(value) / error, 0.0)
    return value - margin, value + margin, np.where(known, ratio.tail(size), np.nan) + 0 * value


def at_level(
    x: Array, y: Array, loss: Array, runs: Array, configurations: Array, level: Level, *, way: str = "smooth"
) -> Estimate:
    """Return the rank correlation of x and y [..., n] at equal loss, in one part of their variation.

    `runs` and `configurations` [n] are whole numbers.  `way` is how the loss is held: by a "smooth" function
    of it or by "strata".
    """
    return correlation(*_regressed(x, y, loss, runs, configurations, level, way))


def adjusted(
    x: Array, y: Array, loss: Array, runs: Array, configurations: Array, level: Level
) -> tuple[Array, Array, Array]:
    """Return what is left of the ranks of x and y [..., m] at equal loss, and the first of each group [m].

    These are the numbers whose correlation `at_level` estimates, by a smooth function of the loss.  Each is
    of one checkpoint, or of the mean over a configuration or a run that begins with that checkpoint.
    """
    left_x, left_y, design, _, held = _regressed(x, y, loss, runs, configurations, level, "smooth")
    groups = {"configurations": configurations, "seeds": runs}.get(level)
    first = np.arange(len(runs)) if groups is None else np.unique(groups, return_index=True)[1]
    left_x, left_y = left_by(design, held, left_x, left_y)
    return left_x, left_y, first


def _regressed(
    x: Array, y: Array, loss: Array, runs: Array, configurations: Array, level: Level, way: str
) -> tuple[Array, Array, Array, Array, Array | None]:
    """Return x, y and the design whose correlation is a part of the association, clusters, and groups."""
    x, y = ranks(x), ranks(y)
    design = smooth(ranks(loss)) if way == "smooth" else strata(loss)
    match level:
        case "all":
            return x, y, design, configurations, None
        case "steps":
            return x, y, design, configurations, runs
        case "seeds":
            first = np.unique(runs, return_index=True)[1]
            return *_means(x, y, design, runs, configurations), configurations[first]
        case "configurations":
            return *_means(x, y, design, configurations, None), None


def _means(
    x: Array, y: Array, design: Array, parts: Array, groups: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Return means over `parts` [n] of what a design and the constants of `groups` [n] leave."""
    members = Parts(parts)
    x, y = (_means_of(left, members) for left in left_by(design, groups, x, y))
    return x, y, np.ones((*x.shape, 1)), np.arange(len(members))


def _means_of(values: Array, members: Parts) -> Array:
    """Return the means [..., clusters] of values [..., n]."""
    if not _dense(values):
        return members.means(values)
    member = (np.arange(len(members))[:, None] == members.of[None, :]).astype(float)
    return values @ (member / member.sum(axis=1, keepdims=True)).T
