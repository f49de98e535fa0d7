"""Matched pairs: the association of two quantities over pairs of checkpoints at equal loss.

Two checkpoints are of equal loss up to δ if the 95 % interval of the difference of their losses lies within
±2δ and the difference itself within ±δ.  With w_ij = 1 for such pairs and Δ their differences,

    β = Σ w Δx Δy / Σ w Δx²,        ρ = Σ w Δx Δy / √(Σ w Δx² · Σ w Δy²).

No function of the loss is fitted.  Pairs of one checkpoint, and of one cluster, resemble each other.  So the
standard error is that of the jackknife, which leaves out one cluster with all its pairs at a time (J. G.
MacKinnon, M. Ø. Nielsen and M. D. Webb, "Fast and reliable jackknife and bootstrap methods for cluster-robust
inference", Journal of Applied Econometrics 38, 2023).  For ρ it is taken of Fisher's z.

β, and each β_(g) without the cluster g of G, is linear in y.  With L the matrix of
Σ_i<j w (y_i − y_j)² = yᵀLy,

    β = wᵀy,  w = Lx / xᵀLx;    β_(g) = w_(g)ᵀy;    V = (G − 1)/G Σ_g (β_(g) − mean of the β_(g))².

So, with errors of y that are normal and alike and correlated within clusters by r, the distribution of
(β̂ − β)/√V is known, and its quantiles make the interval (`raysweep.report.ratio`): neither the bias of the
jackknife nor the ties between clusters of common pairs count twice.  It is assumed that losses that count as
equal are, and, for ρ, that ranks may stand for such errors.

r is the one of `SHARED` with the widest interval, so that the interval holds whatever r is (R. L. Berger and
D. D. Boos, "P values maximized over a confidence set for the nuisance parameter", Journal of the American
Statistical Association 89, 1994).  Pairs hardly tell r, and what they tell is not apart from V: an r that is
estimated from them makes intervals that are too narrow, above all where it decides which sweeps have one.
Here x and the pairs alone decide that.
"""

from __future__ import annotations

import numpy as np

from raysweep.report.association import CONFIDENCE, Estimate, ends, ranks
from raysweep.report.ratio import Array, Ratio

#: Correlations of errors within clusters: the one with the widest interval is taken.
SHARED = (0.0, 0.3, 0.6, 0.9)


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
    with np.errstate(invalid="ignore", divide="ignore"):
        if correlation:
            value, each = (np.clip(b / np.sqrt(a * c), -1, 1) for a, b, c in zip(xx, xy, yy, strict=True))
            inside, rest = (np.arctanh(np.clip(v, -1 + 1e-9, 1 - 1e-9)) for v in (value, each))
        else:
            value, each = xy[0] / xx[0], xy[1] / xx[1]
            inside, rest = value, each
        spread = ((rest - rest.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
        error = np.sqrt((count - 1) / count * spread)
        forms = _forms(x, pairs, member)
    known = np.isfinite(error) & np.isfinite(forms).all(axis=(-2, -1))
    ratio = _careful(np.where(known[..., None, None], forms, 0.0), member)
    low, high, p = ends(inside, np.where(known, error, np.nan), ratio, count)
    if correlation:
        low, high = np.tanh(low), np.tanh(high)
    return Estimate(value=value, low=low, high=high, p=p, standard_error=error, ratio=ratio, clusters=count)


def _forms(x: Array, pairs: Array, member: Array) -> Array:
    """Return w and the terms of V [..., 1 + clusters, n], each as a linear form in y; nan without pairs."""
    count = member.shape[1]
    # What the partners of each checkpoint in each cluster [..., n, clusters] give to Lx.
    parts = x[..., None] * (pairs @ member) - pairs @ (x[..., None] * member)
    whole = parts.sum(axis=-1)
    rest = np.swapaxes((whole[..., None] - parts) * (1 - member), -1, -2)
    forms = np.concatenate([whole[..., None, :], rest], axis=-2)
    forms = forms / (forms * x[..., None, :]).sum(axis=-1, keepdims=True)
    own, each = forms[..., :1, :], forms[..., 1:, :]
    each = (each - each.mean(axis=-2, keepdims=True)) * np.sqrt((count - 1) / count)
    return np.concatenate([own, each], axis=-2)


def _careful(forms: Array, member: Array) -> Ratio:
    """Return the ratio of linear forms [..., 1 + clusters, n] for the r with the largest quantile."""
    each = [Ratio.of(forms, np.full(forms.shape[:-2], r), member) for r in SHARED]
    sizes = np.stack([np.nan_to_num(ratio.quantile(1 - CONFIDENCE)) for ratio in each])
    chosen = sizes.argmax(axis=0)[None, ..., None, None]
    return Ratio(np.take_along_axis(np.stack([ratio.moments for ratio in each]), chosen, axis=0)[0])
