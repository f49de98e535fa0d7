"""A regression coefficient whose interval holds with few clusters of observations that resemble each other.

The model is y = Z γ + x β + e, with errors e that are independent between clusters and anything within one.
With x̃ what of x the controls Z leave, and w = x̃ / (x̃ᵀ x̃),

    β̂ = wᵀ y,    V = Σ_g (w_gᵀ A_g ê_g)²,    A_g = ((I − H)_gg)^(−1/2),    H = X (XᵀX)⁻¹ Xᵀ,  X = [Z x]

over clusters g with residuals ê.  A_g undoes the shrinking of the residuals, so that V has no bias where
errors are alike and independent ("CR2").  V is not a number: it has a distribution, wide for few clusters,
and wider where few of them have most of the variation of x.  With errors e that are normal and alike, and
correlated within clusters by r,

    β̂ − β = wᵀe,    V = Σ_g (P_gᵀe)²,    P_g = (I − H)_·g A_g w_g,    Ω = (1 − r) I + r · [same cluster],

the distribution of (β̂ − β) / √V is known (`raysweep.report.ratio`), and its quantiles make the interval.  r
is the posterior mean, with all r from 0 to 1 alike beforehand and the restricted likelihood of the data

    L(r) = |Ω|^(−1/2) |XᵀΩ⁻¹X|^(−1/2) (ê_rᵀΩ⁻¹ê_r)^(−(n − p)/2)

with the residuals ê_r of generalised least squares.  Residuals of a fit resemble each other less than errors
do, so the mean product of those of a cluster would be too small: with six clusters and eight columns 0.14 in
place of 0.5.  And few clusters hardly tell r, so that an estimate would often be 0 or 1.

Student's t with the degrees of freedom that V has (Satterthwaite) would make intervals too wide with few of
them, and a usual bootstrap of clusters makes intervals too narrow.

Sources: R. M. Bell and D. F. McCaffrey, "Bias reduction in standard errors for linear regression with
multi-stage samples", Survey Methodology 28, 2002; J. E. Pustejovsky and E. Tipton, "Small-sample methods for
cluster-robust variance estimation and hypothesis testing in fixed effects models", Journal of Business and
Economic Statistics 36, 2018 (the generalised inverse in A_g); G. W. Imbens and M. Kolesár, "Robust standard
errors in small samples: some practical advice", Review of Economics and Statistics 98, 2016 (the errors of a
cluster that resemble each other); D. A. Harville, "Bayesian inference for variance components using only
error contrasts", Biometrika 61, 1974 (the restricted likelihood).

>>> y, x = np.array([1.0, 2.0, 3.0, 5.0]), np.array([0.0, 0.0, 1.0, 1.0])
>>> found = slope(y, x, np.ones((4, 1)), np.arange(4))
>>> float(found.value), round(float(found.dof), 6)  # two means of two: Welch's test
(2.5, 2.0)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raysweep.report.ratio import Array, Ratio

#: Share of a variance below which it is rounding, not variation.
TINY = 1e-9
#: Correlations within clusters and the weights of an integral over them, dense at both ends.
_ANGLES = (np.arange(16) + 0.5) / 16 * np.pi / 2
SHARED, WEIGHTS = np.sin(_ANGLES) ** 2, np.sin(2 * _ANGLES)


@dataclass(frozen=True)
class Slope:
    """Coefficients [...] with standard errors; nan where x does not vary.

    `ratio` is that of the coefficients' errors to the standard errors.  `scores` [..., clusters] are the
    terms w_gᵀ A_g ê_g, in the order of the clusters' names.  `left` is the share of the variance of x that
    the controls leave, and `rests` [..., n] are what they leave of x and of y.
    """

    value: Array
    standard_error: Array
    ratio: Ratio
    scores: Array
    left: Array
    rests: tuple[Array, Array]

    @property
    def dof(self) -> Array:
        """The degrees of freedom of the standard errors [...]."""
        return self.ratio.dof


def residuals(values: Array, design: Array) -> Array:
    """Return what a design [..., n, p] leaves of values [..., n], by least squares."""
    basis = orthonormal(design)
    fitted = basis @ (np.swapaxes(basis, -1, -2) @ values[..., None])
    return values - fitted[..., 0]


def orthonormal(design: Array) -> Array:
    """Return an orthonormal basis [..., n, p] of the columns of a design; dependent columns become zero."""
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    kept = singular > TINY * singular[..., :1]
    return left * kept[..., None, :]


def slope(y: Array, x: Array, controls: Array, clusters: Array) -> Slope:
    """Return the coefficient of x beside `controls`, which hold the constant.

    `y` and `x` are [..., n], `controls` [..., n, p], `clusters` [n] says which cluster an observation is of.
    Leading axes are data sets of the same design.
    """
    rest, rest_y = (residuals(values, controls) for values in (x, y))
    total = x - x.mean(axis=-1, keepdims=True)
    variation, whole = (rest**2).sum(axis=-1), (total**2).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.where(whole > 0, variation / whole, 0.0)
        weights = rest / np.where(left > TINY, variation, np.nan)[..., None]
    value = (weights * y).sum(axis=-1)
    safe = np.nan_to_num(weights)
    basis = orthonormal(np.concatenate([controls, x[..., None]], axis=-1))
    error = residuals(y, basis)
    names, inverse = np.unique(clusters, return_inverse=True)
    adjusted = np.zeros((*y.shape[:-1], len(names), y.shape[-1]))
    for cluster in range(len(names)):
        rows = np.flatnonzero(inverse == cluster)
        own = basis[..., rows, :]
        values, vectors = np.linalg.eigh(np.eye(len(rows)) - own @ np.swapaxes(own, -1, -2))
        there = values > TINY
        roots = np.where(there, 1 / np.sqrt(np.where(there, values, 1.0)), 0.0)
        turned = np.swapaxes(vectors, -1, -2) @ safe[..., rows, None]
        adjusted[..., cluster, rows] = (vectors @ (roots[..., None] * turned))[..., 0]
    scores = (adjusted * error[..., None, :]).sum(axis=-1)
    spread = adjusted - (adjusted @ basis) @ np.swapaxes(basis, -1, -2)
    forms = np.concatenate([safe[..., None, :], spread], axis=-2)
    member = (inverse[:, None] == np.arange(len(names))[None, :]).astype(float)
    known = ~np.isnan(value)
    return Slope(
        value=value,
        standard_error=np.where(known, np.sqrt((scores**2).sum(axis=-1)), np.nan),
        ratio=Ratio.of(np.where(known[..., None, None], forms, 0.0), _shared(error, basis, member), member),
        scores=scores,
        left=left,
        rests=(rest, rest_y),
    )


def _shared(error: Array, basis: Array, member: Array) -> Array:
    """Return the correlation r [...] of errors of the same cluster: its posterior mean.

    `error` [..., n] is what an orthonormal `basis` [..., n, p] leaves; `member` is [n, clusters].
    """
    counts, n = member.sum(axis=0), error.shape[-1]
    turned = np.swapaxes(basis, -1, -2)
    sums, ones = error @ member, turned @ member
    # Columns of zeros stand for dependent ones, and do not count.
    squares, columns = (error**2).sum(axis=-1), (basis**2).sum(axis=(-2, -1))
    found = []
    for r in SHARED:
        # (1 − r) Ω⁻¹ is 1 less `inside` for any two observations of a cluster.
        inside = r / (1 - r + r * counts)
        weighed = np.eye(basis.shape[-1]) - (ones * inside) @ np.swapaxes(ones, -1, -2)
        tilt = ((ones * inside) @ sums[..., None])[..., 0]
        back = np.linalg.solve(weighed, tilt[..., None])[..., 0]
        left = squares - (inside * sums**2).sum(axis=-1) - (tilt * back).sum(axis=-1)
        of_omega = ((counts - 1) * np.log(1 - r) + np.log(1 - r + r * counts)).sum()
        of_design = np.linalg.slogdet(weighed)[1] - columns * np.log(1 - r)
        tiny = np.finfo(float).tiny
        found.append(of_omega + of_design + (n - columns) * np.log(np.maximum(left, tiny) / (1 - r)))
    logs = -0.5 * np.stack(found, axis=-1)
    likelihood = np.exp(logs - logs.max(axis=-1, keepdims=True)) * WEIGHTS
    posterior: Array = (likelihood @ SHARED) / likelihood.sum(axis=-1)
    return posterior
