"""The spectrum of a symmetric operator: its extreme eigenvalues, and the density of all.

Extreme eigenvalues come from the implicitly restarted Lanczos method (Lehoucq, Sorensen and Yang, "ARPACK
users' guide", SIAM 1998, through scipy).  The density

    φ(λ) = (1/P) Σ_j δ(λ − λ_j)

comes from stochastic Lanczos quadrature: m steps of the Lanczos method from a random vector v of P signs give
a tridiagonal matrix with eigenvalues x_k, and weights w_k, the squared first entries of its eigenvectors, for
which

    (1/P) vᵀ f(A) v = Σ_k w_k f(x_k)    for every polynomial f of degree 2m − 1 and less.

Its mean over v is ∫f dφ.  Sources: Golub and Welsch, "Calculation of Gauss quadrature rules" (Mathematics of
Computation 23, 1969); Ubaru, Chen and Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature"
(SIAM J. Matrix Analysis 38, 2017); Ghorbani, Krishnan and Xiao, "An investigation into neural net
optimization via Hessian eigenvalue density" (ICML 2019).

>>> import numpy as np
>>> from scipy.sparse.linalg import aslinearoperator
>>> matrix = aslinearoperator(np.diag(np.arange(10.0)))
>>> extreme_eigenvalues(matrix, 2).round(6).tolist()
[9.0, 8.0]
>>> round(density(matrix, steps=10).trace.value, 6)
45.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from raysweep import seeding
from raysweep.errors import ConfigError, RunFailedError
from raysweep.languages.base import Estimate

#: Vectors whose spread tells their standard error.
_MANY = 16


@dataclass(frozen=True, kw_only=True)
class Density:
    """A spectral density as weighted points: `nodes` and `weights` [vectors, steps], each row's sum 1.

    Rows are independent estimates; `size` is P.  Rows that end early, their space being exhausted, are filled
    with points of weight zero.
    """

    nodes: np.ndarray
    weights: np.ndarray
    size: int

    @property
    def trace(self) -> Estimate:
        """The trace Σ_j λ_j."""
        return self._sum(self.nodes)

    @property
    def squares(self) -> Estimate:
        """The squared Frobenius norm Σ_j λ_j²."""
        return self._sum(self.nodes**2)

    def below(self, level: float) -> Estimate:
        """The share of eigenvalues below `level`."""
        return self._mean((self.nodes < level).astype(np.float64))

    def _sum(self, values: np.ndarray) -> Estimate:
        """Return Σ_j f(λ_j) from f at the nodes.

        The variance of vᵀ f(A) v over signs v is 2 Σ_j f(λ_j)² less 2 Σ_i f(A)_ii² (Hutchinson, 1990).  The
        spread of few vectors says little, so their standard error comes from the first term, its upper bound.
        That is at least the sum over one vector's nodes, each for an eigenvalue, by Cauchy's interlacing.
        """
        found = self._mean(values * self.size)
        if found.n >= _MANY:
            return found
        squares = self.size * float((self.weights * values**2).sum(axis=1).mean())
        least = float(np.where(self.weights > 0, values**2, 0.0).sum(axis=1).max())
        error = math.sqrt(2 * max(squares, least) / found.n)
        return Estimate(value=found.value, standard_error=error, n=found.n)

    def _mean(self, values: np.ndarray) -> Estimate:
        return Estimate.of(torch.from_numpy((self.weights * values).sum(axis=1)))

    def at(self, grid: np.ndarray, width: float) -> np.ndarray:
        """Return the density at the points of `grid`, nodes widened to Gaussians of deviation `width`."""
        distance = (np.asarray(grid)[:, None] - self.nodes.ravel()) / width
        bumps = np.exp(-0.5 * distance**2) / (width * np.sqrt(2 * np.pi))
        found: np.ndarray = bumps @ self.weights.ravel() / len(self.weights)
        return found


def extreme_eigenvalues(
    operator: LinearOperator,
    count: int,
    *,
    end: Literal["largest", "smallest"] = "largest",
    seed: int = 0,
    tolerance: float = 1e-4,
    restarts: int = 300,
) -> np.ndarray:
    """Return the `count` largest eigenvalues, descending, or smallest, ascending, to a relative `tolerance`.

    Raises `ConfigError` for more eigenvalues than an iterative method can give, and `RunFailedError` where
    the method does not converge.
    """
    size = operator.shape[0]
    if not 1 <= count < size:
        raise ConfigError(f"{count} eigenvalues of a matrix of {size} rows: ask for 1 to {size - 1}")
    which, sign = ("LA", -1) if end == "largest" else ("SA", 1)
    try:
        found = eigsh(
            operator,
            k=count,
            which=which,
            v0=_signs(size, seed, "eigenvalues", 0),
            tol=tolerance,
            maxiter=restarts,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence as error:
        raise RunFailedError(
            f"{len(error.eigenvalues)} of {count} {end} eigenvalues were found in {restarts} restarts; "
            "ask for fewer, or allow a larger tolerance"
        ) from error
    return np.sort(found)[::sign]


def density(operator: LinearOperator, *, steps: int = 64, vectors: int = 1, seed: int = 0) -> Density:
    """Return the spectral density by `steps` of the Lanczos method from each of `vectors` random vectors.

    Vectors are orthogonalised against all before them, so memory is `steps` vectors of the operator's size.
    Raises `ConfigError` for steps or vectors below 1.
    """
    size = operator.shape[0]
    if steps < 1 or vectors < 1:
        raise ConfigError(f"steps={steps}, vectors={vectors}: both must be at least 1")
    steps = min(steps, size)
    nodes, weights = np.zeros((vectors, steps)), np.zeros((vectors, steps))
    for k in range(vectors):
        diagonal, beside = _lanczos(operator, _signs(size, seed, "density", k), steps)
        x, states = eigh_tridiagonal(diagonal, beside)
        nodes[k, : len(x)], weights[k, : len(x)] = x, states[0] ** 2
    return Density(nodes=nodes, weights=weights, size=size)


def _lanczos(operator: LinearOperator, start: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return diagonal [m] and off-diagonal [m-1] of the tridiagonal matrix, m at most `steps`."""
    basis = np.zeros((steps, len(start)))
    basis[0] = start / np.linalg.norm(start)
    diagonal, beside = [], []
    for k in range(steps):
        image = operator.matvec(basis[k])
        diagonal.append(float(basis[k] @ image))
        if k + 1 == steps:
            break
        scale = float(np.linalg.norm(image))
        # Twice is enough (Parlett, "The symmetric eigenvalue problem", 1980, section 6.9).
        for _ in range(2):
            image = image - basis[: k + 1].T @ (basis[: k + 1] @ image)
        length = float(np.linalg.norm(image))
        if length <= 1e-12 * scale:
            break
        beside.append(length)
        basis[k + 1] = image / length
    return np.array(diagonal), np.array(beside)


def _signs(size: int, seed: int, purpose: str, number: int) -> np.ndarray:
    drawn = seeding.signs(seed, f"spectrum/{purpose}", torch.tensor([number]), size)[0]
    found: np.ndarray = drawn.double().numpy()
    return found
