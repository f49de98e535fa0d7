"""The distribution of an estimate divided by its standard error, where few clusters give both.

With errors e ~ N(0, Ω), an estimate that is off by wᵀe and its squared standard error V = Σ_g (P_gᵀe)²,

    Pr(|wᵀe| > c √V) = Pr(eᵀ(w wᵀ − c² Σ_g P_g P_gᵀ) e > 0) = (2/π) ∫ Π_k (1 + b_k / sin² φ)^(−1/2) dφ

over 0 < φ < π/2.  The matrix, between two roots of Ω, has one positive eigenvalue, and b_k are the others
divided by it, with their sign turned.  The integral is the mean, over V, of Craig's form of the normal
distribution's tails.  It is exact: nothing takes V for a χ² or for independent of the estimate.  With
independent P_gᵀe of one size, apart from wᵀe, it is Student's t.

Source: J. W. Craig, "A new, simple and exact result for calculating the probability of error for
two-dimensional signal constellations", IEEE Military Communications Conference, 1991.

>>> equal = Ratio(np.diag([1.0, 0.25, 0.25, 0.25, 0.25]))  # V is a mean of four squares
>>> float(equal.dof), round(float(equal.tail(np.array(2.776))), 4), round(float(equal.quantile(0.05)), 3)
(4.0, 0.05, 2.776)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from raysweep.report.quantiles import t_quantile, t_tail

Array = np.ndarray

#: Points of the integral; its integrand is periodic, so that the midpoint rule is good to some 1e-5 and
#: better.
_SQUARES = np.sin((np.arange(64) + 0.5) / 64 * np.pi / 2) ** 2
#: The least eigenvalue by the largest that is more than rounding, a change that is no more, and the most
#: steps of Newton's method to a root.  Where that is almost a double one, a step only halves the distance.
_RANK, _EXACT, _HALVINGS = 1e-13, 1e-14, 80
#: Of Newton's method, in logarithms: most steps, the farthest of one and that of the last one, the distance
#: that gives a slope, and the least slope.
_STEPS, _FARTHEST, _NEAR, _APART, _FLAT = 20, 1.5, 1e-5, 1e-4, 1e-3


class Distribution(Protocol):
    """The distribution of an estimate's error divided by its standard error, for a test and for its power."""

    @property
    def dof(self) -> Array:
        """Degrees of freedom of the squared standard error [...]."""

    @property
    def parts(self) -> tuple[Array, Array]:
        """The means [..., P] and degrees of freedom [P] of what adds up to the squared standard error.

        The means are by the variance of the estimate.
        """

    def one(self, place: int) -> Distribution:
        """Return that of a single data set, where there are many [n]."""

    def tail(self, size: Array) -> Array:
        """Return the p-value [...] of a ratio of ±`size`."""

    def quantile(self, level: float) -> Array:
        """Return the size [...] of a ratio from which on a test at a level rejects."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of an estimate's error to its standard error.

    `moments` [..., 1 + G, 1 + G] is the covariance, up to a factor, of wᵀe and P_1ᵀe, ..., P_Gᵀe.
    """

    moments: Array

    @classmethod
    def of(cls, forms: Array, shared: Array, member: Array) -> Ratio:
        """Return the ratio of linear forms [..., 1 + G, n] in errors, w first, then P_1, ..., P_G.

        The errors are normal, alike, and correlated by `shared` [...] within clusters; `member` [n, clusters]
        is 1 where an error is of a cluster, else 0.
        """
        sums, r = forms @ member, shared[..., None, None]
        own, alike = (one @ np.swapaxes(one, -1, -2) for one in (forms, sums))
        return cls((1 - r) * own + r * alike)

    @classmethod
    def student(cls, dof: int) -> Ratio:
        """Return the ratio that has Student's t distribution.

        >>> round(float(Ratio.student(8).quantile(0.05)), 3)
        2.306
        """
        return cls(np.diag([1.0, *[1 / dof] * dof]))

    @property
    def dof(self) -> Array:
        """The degrees of freedom of the χ² with the mean and the variance of V (Satterthwaite) [...]."""
        of_v = self.moments[..., 1:, 1:]
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Array = np.trace(of_v, axis1=-2, axis2=-1) ** 2 / (of_v**2).sum(axis=(-2, -1))
        return found

    def one(self, place: int) -> Ratio:
        """Return the ratio of a single data set, where there are many [n]."""
        return Ratio(self.moments[place])

    def tail(self, size: Array) -> Array:
        """Return the probability of a ratio beyond ±`size` [...].

        The eigenvalues λ of the matrix solve 1 = Σ_k u_k² / (λ + d_k), with d_k = c² times those of
        Σ_g P_g P_gᵀ and u_k the coordinates of w along its eigenvectors.  The positive one gives the product
        Π_k (1 + b_k / s) = t Σ_k u_k² / ((λ + d_k)(t + d_k)) Π_k (1 + d_k / t), where s = sin² φ and
        t = λ s: the determinant of the matrix less t can be written in both ways.  So the moments are
        decomposed once, and a size takes O(G) operations.
        """
        squares, values = self._spectrum
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            d = np.asarray(size)[..., None] ** 2 * values
            root = _positive_root(squares, d)[..., None]
            total = np.zeros(root.shape[:-1])
            shares = squares / (root + d)
            for square in _SQUARES:
                t = root * square
                product = np.log1p(d / t).sum(axis=-1) + np.log((t * shares / (t + d)).sum(axis=-1))
                total = total + np.exp(-0.5 * product)
        # Without a positive λ, no error of the estimate is beyond that size.
        never = np.where((d > 0).any(axis=-1), 0.0, np.nan)
        return np.where(root[..., 0] > 0, total / len(_SQUARES), never)

    def quantile(self, level: float) -> Array:
        """Return the size [...] that a ratio exceeds with probability `level`; nan where nothing varies."""
        spread = np.trace(self.moments[..., 1:, 1:], axis1=-2, axis2=-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            start = np.sqrt(self.moments[..., 0, 0] / spread) * -t_quantile(level / 2, self.dof)
        return solved(self.tail, start, level)

    @property
    def parts(self) -> tuple[Array, Array]:
        """The independent parts of V: their means [..., G] by the variance of wᵀe, and degrees of freedom."""
        own, of_v = self.moments[..., 0, 0], self.moments[..., 1:, 1:]
        means = np.maximum(np.linalg.eigvalsh(of_v), 0.0) / own[..., None]
        return means, np.ones(means.shape[-1])

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        """The squared coordinates u_k² of w along the eigenvectors of Σ_g P_g P_gᵀ, and the eigenvalues.

        Both are [..., 1 + G].  The first is of the part of w that is along none of P_g, with eigenvalue 0.
        """
        moments = np.nan_to_num(self.moments)
        values, vectors = np.linalg.eigh(moments[..., 1:, 1:])
        sure = values > _RANK * values[..., -1:]
        crossed = (moments[..., :1, 1:] @ vectors)[..., 0, :]
        along = np.where(sure, crossed**2 / np.where(sure, values, 1.0), 0.0)
        free = np.maximum(moments[..., 0, 0] - along.sum(axis=-1), 0.0)[..., None]
        return (
            np.concatenate([free, along], axis=-1),
            np.concatenate([0 * free, np.where(sure, values, 0.0)], axis=-1),
        )


def _positive_root(squares: Array, d: Array) -> Array:
    """Return the positive λ [...] with 1 = Σ_k squares_k / (λ + d_k); 0 where there is none.

    The reciprocal of the sum is a concave function of λ, so Newton's method comes to the root from below.
    """
    whole = squares.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nan_to_num((squares * d).sum(axis=-1) / whole)
        # The sum is at least each of its terms, and at least that of all squares at the mean of the d_k.
        root = np.maximum(np.maximum((squares - d).max(axis=-1), whole - mean), 0.0)
        for _ in range(_HALVINGS):
            each = np.where(squares > 0, 1 / (root[..., None] + d), 0.0)
            sums = (squares * each).sum(axis=-1)
            step = (sums - 1) * sums / (squares * each**2).sum(axis=-1)
            step = np.where(np.isfinite(step) & ((root > 0) | (sums > 1)), step, 0.0)
            root = root + step
            if not (np.abs(step) > _EXACT * root).any():
                break
    return np.maximum(root, 0.0)


@dataclass(frozen=True)
class Student:
    """Student's t for the ratio of an estimate's error to its standard error, of many clusters.

    `mean` is that of the squared standard error by the variance of the estimate.

    >>> round(float(Student(8.0, 1.0).quantile(0.05)), 3), round(float(Student(8.0, 4.0).quantile(0.05)), 3)
    (2.306, 1.153)
    """

    degrees: float
    mean: float

    @property
    def dof(self) -> Array:
        """Degrees of freedom of the squared standard error []."""
        return np.array(self.degrees)

    @property
    def parts(self) -> tuple[Array, Array]:
        """The mean [1] and the degrees of freedom [1] of the squared standard error."""
        return np.array([self.mean]), np.array([self.degrees])

    def one(self, place: int) -> Student:
        """Return this distribution, which is of a single data set."""
        return self

    def tail(self, size: Array) -> Array:
        """Return the probability of a ratio beyond ±`size` [...]."""
        return np.asarray(2 * t_tail(size * np.sqrt(self.mean), self.degrees))

    def quantile(self, level: float) -> Array:
        """Return the size [] that a ratio exceeds with probability `level`."""
        return np.asarray(-t_quantile(level / 2, self.degrees) / np.sqrt(self.mean))


def solved(tail: Callable[[Array], Array], start: Array, level: float) -> Array:
    """Return the size [...] at which a tail is `level`, from a `start` on; nan where that is not positive."""
    known = np.isfinite(start) & (start > 0)
    at, low = np.log(np.where(known, start, 1.0)), np.full(np.shape(start), -np.inf)
    for _ in range(_STEPS):
        # The logarithm of the tail is a concave function of that of the size: Newton's method goes to it.
        with np.errstate(divide="ignore", invalid="ignore"):
            short, slope = (np.log(tail(np.exp(at + further))) - np.log(level) for further in (0.0, _APART))
            slope = (slope - short) / _APART
            step = np.where(known & (slope < 0), -short / np.minimum(slope, -_FLAT), 0.0)
            # Beyond a bound the tail is zero, and has no slope.
            beyond = known & (short < 0) & ~np.isfinite(slope)
            step = np.where(beyond, np.where(np.isfinite(low), (low - at) / 2, -_FARTHEST), step)
        low = np.where(short > 0, at, low)
        at = at + np.clip(step, -_FARTHEST, _FARTHEST)
        if not (np.abs(step) > _NEAR).any():
            break
    return np.where(known, np.exp(at), np.nan)
