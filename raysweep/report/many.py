"""The coefficient of `raysweep.report.regression` for many observations, in memory that grows with them.

Nothing here is of the size of observations by clusters, or by groups.  With the design X = [F Z x], F the
constants of groups of observations, Z further controls, and Q an orthonormal basis of what F leaves of Z, x,

    H = F̂ F̂ᵀ + Q Qᵀ,        P_g = a_g − F̂ F̂_gᵀ a_g − Q Q_gᵀ a_g,        a_g = A_g w_g,

where F̂ are the columns of F of length one and a_g is zero outside of the cluster g.  To take F away is to
subtract the mean of each group (R. Frisch and F. V. Waugh, "Partial time regressions as compared with
individual trends", Econometrica 1, 1933).  Each group lies within a cluster, as runs within configurations,
or each cluster within a group.  So the moments of the P_g, and the restricted likelihood of the correlation
within clusters, are sums over clusters and groups.

With more than `EXACT` clusters, the distribution of the ratio is taken for Student's t with the degrees of
freedom that V has (Satterthwaite), from the variances of the P_gᵀe alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raysweep.report.ratio import Array, Distribution, Ratio, Student
from raysweep.report.regression import SHARED, TINY, WEIGHTS

#: Most clusters of a ratio whose distribution is the exact one.
EXACT = 200


class Parts:
    """Observations [n] in parts, such as clusters; `of` [n] is the number of each one's part."""

    def __init__(self, names: Array) -> None:
        self.first, self.of, self.sizes = np.unique(
            names, return_index=True, return_inverse=True, return_counts=True
        )[1:]
        self._order = np.argsort(self.of, kind="stable")
        self._begins = np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def sums(self, values: Array) -> Array:
        """Return the sums [parts, ...] of values [n, ...] of each part."""
        return np.add.reduceat(values[self._order], self._begins, axis=0)

    def means(self, values: Array) -> Array:
        """Return the means [parts, ...] of values [n, ...] of each part."""
        return self.sums(values) / self.sizes.reshape(-1, *[1] * (values.ndim - 1))

    def centred(self, values: Array) -> Array:
        """Return values [n, ...] less the mean of their part."""
        return values - self.means(values)[self.of]

    def within(self, others: Parts) -> bool:
        """Return whether each part lies within one of the others."""
        return bool((others.of == others.of[self.first][self.of]).all())

    def alike(self) -> list[tuple[Array, Array]]:
        """Return, for each size of parts, the parts [k] of that size and their observations [k, size]."""
        found = []
        for size in np.unique(self.sizes):
            parts = np.flatnonzero(self.sizes == size)
            found.append((parts, self._order[self._begins[parts, None] + np.arange(size)]))
        return found


@dataclass(frozen=True)
class Fitted:
    """A coefficient of one data set, as `raysweep.report.regression.slope` returns it.

    `rests` [n] are apart from the constants of groups, too.
    """

    value: Array
    standard_error: Array
    ratio: Distribution
    scores: Array
    left: Array
    rests: tuple[Array, Array]


def residuals(design: Array, groups: Array | None, *values: Array) -> tuple[Array, ...]:
    """Return what a design [n, p] and the constants of groups [n] leave of each of values [n]."""
    scale = float(np.linalg.norm(design))
    if groups is not None:
        parts = Parts(groups)
        design, values = parts.centred(design), tuple(map(parts.centred, values))
    basis = orthonormal(design, scale)
    return tuple(one - basis @ (basis.T @ one) for one in values)


def orthonormal(design: Array, scale: float) -> Array:
    """Return an orthonormal basis [n, rank] of the columns of a design [n, p] whose numbers had a scale."""
    tall, square = np.linalg.qr(design)
    left, singular, _ = np.linalg.svd(square)
    found: Array = tall @ left[:, singular > TINY * scale]
    return found


def slope(y: Array, x: Array, controls: Array, clusters: Array, groups: Array | None) -> Fitted:
    """Return the coefficient of x [n] beside controls [n, p] and the constants of groups [n].

    Raises `ValueError` for groups that do not lie within clusters, if clusters do not lie within groups.
    """
    members = Parts(clusters)
    held = None if groups is None else Parts(groups)
    total, scale = float(((x - x.mean()) ** 2).sum()), float(np.linalg.norm(controls))
    if held is not None:
        y, x, controls = (held.centred(values) for values in (y, x, controls))
    inner = orthonormal(controls, scale)
    rest, rest_y = (values - inner @ (inner.T @ values) for values in (x, y))
    variation = float((rest**2).sum())
    left = variation / total if total > 0 else 0.0
    if left <= TINY:
        nothing = np.array(np.nan)
        ratio = Ratio(np.zeros((2, 2)))
        return Fitted(nothing, nothing, ratio, np.zeros(len(members)), np.array(left), (rest, rest_y))
    weights = rest / variation
    basis = np.column_stack([inner, rest / np.sqrt(variation)])
    error = y - basis @ (basis.T @ y)
    adjusted = _adjusted(weights, basis, members, held)
    scores = members.sums(adjusted * error)
    crossed = _Crossed.of(members, held, basis)
    shared = _shared(error, members, held, crossed)
    return Fitted(
        value=np.array(weights @ y),
        standard_error=np.array(np.sqrt((scores**2).sum())),
        ratio=_ratio(weights, adjusted, basis, members, held, crossed, shared),
        scores=scores,
        left=np.array(left),
        rests=(rest, rest_y),
    )


def _adjusted(weights: Array, basis: Array, members: Parts, held: Parts | None) -> Array:
    """Return A_g w_g [n], each in its place."""
    found = np.zeros(len(weights))
    coarse = held is not None and members.within(held)
    for _, rows in members.alike():
        own, w = basis[rows], weights[rows][..., None]
        if rows.shape[1] > own.shape[2] + 1:
            if held is not None and coarse:
                column = np.broadcast_to(1 / np.sqrt(held.sizes[held.of[rows]])[..., None], (*rows.shape, 1))
                own = np.concatenate([own, column], axis=-1)
            found[rows] = _by_columns(own, w)[..., 0]
            continue
        block = np.eye(rows.shape[1]) - own @ np.swapaxes(own, -1, -2)
        if held is not None:
            groups = held.of[rows]
            same = groups[:, :, None] == groups[:, None, :]
            block -= same / held.sizes[groups][:, :, None]
        values, vectors = np.linalg.eigh(block)
        roots = _inverse_root(values)
        found[rows] = (vectors @ (roots[..., None] * (np.swapaxes(vectors, -1, -2) @ w)))[..., 0]
    return found


def _by_columns(own: Array, w: Array) -> Array:
    """Return (I − B Bᵀ)^(−1/2) w for B [k, m, p] of fewer columns than rows, by the eigenvalues of BᵀB.

    Constants of groups within a cluster need no columns: w and B are apart from them.
    """
    turned = np.swapaxes(own, -1, -2)
    shares, vectors = np.linalg.eigh(turned @ own)
    shares = np.maximum(shares, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # The limit for a share of zero is one half.
        more = np.where(shares > TINY, (_inverse_root(1 - shares) - 1) / shares, 0.5)
    found: Array = w + own @ (vectors @ (more[..., None] * (np.swapaxes(vectors, -1, -2) @ (turned @ w))))
    return found


def _inverse_root(values: Array) -> Array:
    """Return values^(−1/2), and 0 for those that are rounding."""
    there = values > TINY
    return np.where(there, 1 / np.sqrt(np.where(there, values, 1.0)), 0.0)


@dataclass(frozen=True)
class _Crossed:
    """The products of groups and clusters, where clusters lie within groups; zeros otherwise.

    `group` [G] is the group of each cluster, `share` [G] the part of the group's observations that it has,
    and `root` [G] the product of a cluster's constant with the group's column of length one.
    `sums` [G, p] are those of the basis over clusters.
    """

    coarse: bool
    group: Array
    share: Array
    root: Array
    sums: Array

    @classmethod
    def of(cls, members: Parts, held: Parts | None, basis: Array) -> _Crossed:
        sums = members.sums(basis)
        nothing = np.zeros(len(members))
        if held is None:
            return cls(False, nothing.astype(int), nothing, nothing, sums)
        if held.within(members):
            # Whatever is centred within groups has no sums over clusters but those of rounding.
            return cls(False, nothing.astype(int), nothing, nothing, np.zeros_like(sums))
        if not members.within(held):
            raise ValueError("each group must lie within a cluster, or each cluster within a group")
        group = held.of[members.first]
        of = held.sizes[group]
        return cls(True, group, members.sizes / of, members.sizes / np.sqrt(of), sums)

    def grouped(self, values: Array) -> Array:
        """Return sums [groups, ...] of values [G, ...] over the clusters of each group."""
        return Parts(self.group).sums(values)


def _shared(error: Array, members: Parts, held: Parts | None, crossed: _Crossed) -> float:
    """Return the correlation of errors of the same cluster: its posterior mean, as in `regression`."""
    counts, n = members.sizes.astype(float), len(error)
    ones = crossed.sums
    sums = members.sums(error) if held is None or crossed.coarse else np.zeros(len(members))
    squares = float((error**2).sum())
    columns = ones.shape[1] + (0 if held is None else len(held))
    logs = []
    for r in SHARED:
        # (1 − r) Ω⁻¹ is 1 less `inside` for any two observations of a cluster.
        inside = r / (1 - r + r * counts)
        weighed = np.eye(ones.shape[1]) - ones.T @ (ones * inside[:, None])
        tilt = ones.T @ (inside * sums)
        of_groups, caught = 0.0, 0.0
        if crossed.coarse:
            # The columns of groups are apart from each other, and eliminated first.
            own = 1 - crossed.grouped(inside * crossed.root**2)
            cross = crossed.grouped((inside * crossed.root)[:, None] * ones)
            of_error = crossed.grouped(inside * crossed.root * sums)
            weighed = weighed - cross.T @ (cross / own[:, None])
            tilt = tilt + cross.T @ (of_error / own)
            of_groups, caught = float(np.log(own).sum()), float((of_error**2 / own).sum())
        elif held is not None:
            of_groups = float(np.log1p(-inside * counts).sum())
        caught += float(tilt @ np.linalg.solve(weighed, tilt))
        left = squares - float((inside * sums**2).sum()) - caught
        of_omega = float(((counts - 1) * np.log(1 - r) + np.log(1 - r + r * counts)).sum())
        of_design = float(np.linalg.slogdet(weighed)[1]) + of_groups - columns * np.log(1 - r)
        size = max(left, np.finfo(float).tiny) / (1 - r)
        logs.append(-0.5 * (of_omega + of_design + (n - columns) * np.log(size)))
    likelihood = np.exp(np.array(logs) - max(logs)) * WEIGHTS
    return float(likelihood @ SHARED / likelihood.sum())


def _ratio(
    weights: Array,
    adjusted: Array,
    basis: Array,
    members: Parts,
    held: Parts | None,
    crossed: _Crossed,
    shared: float,
) -> Distribution:
    """Return the distribution of the estimate's error by its standard error."""
    parts = members.sums(basis * adjusted[:, None])
    own = members.sums(adjusted**2)
    centred = held is not None and not crossed.coarse
    sums, of_weights = (
        np.zeros(len(members)) if centred else members.sums(values) for values in (adjusted, weights)
    )
    alone = (1 - shared) * float(weights @ weights) + shared * float(of_weights @ of_weights)
    if len(members) > EXACT:
        of_group = crossed.grouped(crossed.root**2)[crossed.group] if crossed.coarse else 0.0
        # K and K S of the constants of groups: see `_dense`.
        root = crossed.root / members.sizes
        met = (
            crossed.grouped(crossed.root[:, None] * crossed.sums)[crossed.group]
            if crossed.coarse
            else np.zeros_like(parts)
        )
        apart = own - (parts**2).sum(axis=1) - (sums * root) ** 2
        squares = crossed.sums.T @ crossed.sums
        alike = (
            sums**2
            - 2 * sums * (crossed.sums * parts).sum(axis=1)
            - 2 * sums**2 * crossed.share
            + ((parts @ squares) * parts).sum(axis=1)
            + 2 * sums * root * (met * parts).sum(axis=1)
            + (sums * root) ** 2 * of_group
        )
        variances = (1 - shared) * apart + shared * alike
        mean = float(variances.sum())
        return Student(mean**2 / float((variances**2).sum()), mean / alone)
    return Ratio(_dense(weights, adjusted, basis, members, crossed, shared, parts, own, sums, of_weights))


def _dense(
    weights: Array,
    adjusted: Array,
    basis: Array,
    members: Parts,
    crossed: _Crossed,
    shared: float,
    parts: Array,
    own: Array,
    sums: Array,
    of_weights: Array,
) -> Array:
    """Return the moments [1 + G, 1 + G] of wᵀe and the P_gᵀe."""
    count = len(members)
    found, over = np.zeros((1 + count, 1 + count)), np.zeros((1 + count, count))
    found[0, 0], over[0] = weights @ weights, of_weights
    found[0, 1:] = found[1:, 0] = members.sums(weights * adjusted) - parts @ (basis.T @ weights)
    found[1:, 1:] = np.diag(own) - parts @ parts.T
    over[1:] = np.diag(sums) - parts @ crossed.sums.T
    if crossed.coarse:
        same = crossed.group[:, None] == crossed.group[None, :]
        root = crossed.root / members.sizes
        found[1:, 1:] -= same * np.outer(sums * root, sums * root)
        over[1:] -= same * np.outer(sums * root, crossed.root)
    return (1 - shared) * found + shared * (over @ over.T)
