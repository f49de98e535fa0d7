"""Values of inputs less their regression on statistics of known mean zero: the mean stays, the spread falls.

With x_i the value of input i, m_i its masked positions and f_i its statistics
(raysweep.flatness.trace.control and .places), the values x_i − β·f_i have the mean of x_i for every β that
does not depend on f_i, and the smallest variance for β of least squares.  The source is the regression
estimator of a mean (Cochran, "Sampling techniques", 1977, chapter 7); coefficients from other inputs remove
its bias.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Fewest inputs for each coefficient.
CONTROL_INPUTS = 50
#: Parts of the inputs; each takes its coefficients from the others.
FOLDS = 8
#: Share of the largest eigenvalue of the statistics' products below which they say the same.
SINGULAR = 1e-12


def coefficients(values: Tensor, weights: Tensor, control: Tensor | None) -> Tensor | None:
    """Return β [FOLDS, K, C] of `adjusted`, None without a control or with too few inputs for it."""
    if control is None or control.shape[1] == 0:
        return None
    n, size = control.shape
    if n < CONTROL_INPUTS * (1 + size):
        return None
    columns = torch.cat([weights.double()[:, None], control.double()], dim=1)
    # One statistic may be a multiple of another, or zero throughout: the smallest β of the best is taken.
    scale = columns.square().mean(dim=0).sqrt()
    scale = scale.where(scale > 0, 1.0)
    columns, values = columns / scale, values.double().view(n, -1)
    folds = [(columns[k::FOLDS], values[k::FOLDS]) for k in range(FOLDS)]
    # The normal equations of all folds are sums over them: every input is read once.
    squares = torch.stack([c.T @ c for c, _ in folds])
    products = torch.stack([c.T @ x for c, x in folds])
    inverse = torch.linalg.pinv(squares.sum(dim=0) - squares, rtol=SINGULAR, hermitian=True)
    solutions = inverse @ (products.sum(dim=0) - products)
    return solutions[:, 1:] / scale[1:, None]


def adjusted(values: Tensor, weights: Tensor, control: Tensor | None) -> Tensor:
    """Return `values` [n] or [n, C] less their regression on `control` [n, K], of known mean zero.

    The regression is that of x_i on m_i and f_i, m_i being `weights` [n].  Input i is in fold i mod `FOLDS`,
    and its β is that of the other folds' inputs: so β is independent of f_i, the mean keeps its expectation
    whatever the number of inputs, and β was not fitted to the inputs whose spread is taken.  It is
    linear in the values, so that parts add up to the whole as they did.  Single values may become negative.
    Without a control, or with fewer than `CONTROL_INPUTS` inputs for each coefficient, values are returned as
    they are.
    """
    beta = coefficients(values, weights, control)
    if beta is None or control is None:
        return values
    known, found = control.double(), values.double().view(len(values), -1).clone()
    for k in range(FOLDS):
        found[k::FOLDS] -= known[k::FOLDS] @ beta[k]
    return found.view_as(values)


def pool_variance(spread: Tensor, beta: Tensor | None) -> float:
    """Return the variance of Σ x by test vectors alone, from `spread` [n, 1+K, 1+K] of (x, f) by input.

    Statistics after the first K of `beta` do not depend on test vectors.
    """
    if beta is None:
        return float(spread[:, 0, 0].sum())
    total = 0.0
    for k in range(FOLDS):
        by = torch.cat([torch.ones(1, dtype=torch.float64), -beta[k, : spread.shape[1] - 1, 0]])
        total += float(by @ spread[k::FOLDS].sum(dim=0) @ by)
    return total
