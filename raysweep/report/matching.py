"""Matched pairs: the association of two quantities over pairs of checkpoints at equal loss.

Two checkpoints are of equal loss up to δ if the 95 % interval of the difference of their losses lies within
±2δ and the difference itself within ±δ.  With w_ij = 1 for such pairs and Δ their differences,

    β = Σ w Δx Δy / Σ w Δx²,        ρ = Σ w Δx Δy / √(Σ w Δx² · Σ w Δy²).

No function of the loss is fitted.  Pairs of one checkpoint, and of one cluster, resemble each other.  So the
standard error is that of the jackknife, which leaves out one cluster with all its pairs at a time (J. G.
MacKinnon, M. Ø. Nielsen and M. D. Webb, "Fast and reliable jackknife and bootstrap methods for cluster-robust
inference", Journal of Applied Econometrics 38, 2023).  For ρ it is taken of Fisher's z.

Pairs tie clusters together.  Differences within a group of s clusters that pairs tie say s − 1 things, and
pairs within one cluster that is tied to no other say one.  Student's t has the sum of these less one, for the
association itself, as its degrees of freedom.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from raysweep.report.association import CONFIDENCE, Estimate, ranks
from raysweep.report.regression import Array

#: Fewest degrees of freedom of an interval.
LEAST_TIED = 2


def equal(loss: Array, errors: Array, tolerance: float) -> Array:
    """Return which pairs [..., n, n] are of equal loss, given losses [..., n] and their differences' errors.

    No checkpoint pairs with itself.
    """
    apart = np.abs(loss[..., :, None] - loss[..., None, :])
    near = (apart <= tolerance) & (apart + 1.96 * errors <= 2 * tolerance)
    return near & ~np.eye(loss.shape[-1], dtype=bool)


def by_pairs(x: Array, y: Array, pairs: Array, clusters: Array, *, correlation: bool) -> Estimate:
    """Return the association of x and y [..., n] over pairs [..., n, n], with clusters [n].

    It is a correlation of ranks, or else the slope of y over x.
    """
    if correlation:
        x, y = ranks(x), ranks(y)
    apart_x, apart_y = (v[..., :, None] - v[..., None, :] for v in (x, y))
    member = (clusters[:, None] == np.unique(clusters)[None, :]).astype(float)
    count = member.shape[1]

    def without(products: Array) -> tuple[Array, Array]:
        """Return the sum over all pairs [...], and those over pairs without each cluster [..., clusters]."""
        blocks = member.T @ (products * pairs) @ member
        whole = blocks.sum(axis=(-2, -1))
        own = np.diagonal(blocks, axis1=-2, axis2=-1)
        return whole, whole[..., None] - 2 * blocks.sum(axis=-1) + own

    xx, xy, yy = (without(p) for p in (apart_x**2, apart_x * apart_y, apart_y**2))
    dof = tied(member.T @ pairs @ member > 0) - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        if correlation:
            value, each = (np.clip(b / np.sqrt(a * c), -1, 1) for a, b, c in zip(xx, xy, yy, strict=True))
            inside, rest = (np.arctanh(np.clip(v, -1 + 1e-9, 1 - 1e-9)) for v in (value, each))
        else:
            value, each = (b / a for a, b in zip(xx, xy, strict=True))
            inside, rest = value, each
        spread = ((rest - rest.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
        error = np.sqrt((count - 1) / count * spread)
    enough = (dof >= LEAST_TIED) & (error > 0) & np.isfinite(error)
    error, dof = np.where(enough, error, np.nan), np.where(enough, dof, np.nan)
    margin = stats.t.ppf((1 + CONFIDENCE) / 2, dof) * error
    low, high, p = inside - margin, inside + margin, 2 * stats.t.sf(np.abs(inside) / error, dof)
    if correlation:
        low, high = np.tanh(low), np.tanh(high)
    return Estimate(value=value, low=low, high=high, p=p, standard_error=error, dof=dof, clusters=count)


def tied(links: Array) -> Array:
    """Return the number of independent differences [...] that links [..., clusters, clusters] leave.

    >>> chain, alone = np.eye(3, k=1) + np.eye(3, k=-1), np.eye(3)
    >>> float(tied(chain > 0)), float(tied(alone > 0)), float(tied(alone > 1))
    (2.0, 3.0, 0.0)
    """
    there = links.any(axis=-1)
    reach = (links | np.eye(links.shape[-1], dtype=bool)).astype(float)
    for _ in range(max(1, links.shape[-1].bit_length())):
        reach = (reach @ reach > 0).astype(float)
    size = reach.sum(axis=-1)
    return np.where(there, np.maximum(size - 1, 1) / size, 0.0).sum(axis=-1)
