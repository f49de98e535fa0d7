"""The mean over runs of an accuracy less that of a reference, which was measured once for all runs.

Seeds of a probe have the same training sets, projections and test sentences for every run and for the
reference.  With d_rs the difference of run r for seed s, R runs and S seeds, and the mean squares of runs, of
seeds and of the rest in the table of d,

    mean = d̄,    V = max(MS_R, MS_S, MS_R + MS_S − MS_RS) / (R S),    ν = V² / Σ ((MS / (R S))² / ν_MS)

where the sum goes over the mean squares that V is made of: the error of the reference for a seed is in the
differences of all runs, so that seeds are as much a sample as runs are (F. E. Satterthwaite, "An approximate
distribution of estimates of variance components", Biometrics Bulletin 2, 1946).  ν is at most R − 1: the mean
square of few runs is small at times by chance, and V would then seem surer than it is.

>>> found = by_seeds(np.array([[0.1, 0.3], [0.3, 0.5], [0.2, 0.4]]))
>>> float(found.value), round(float(found.standard_error), 4)  # seeds differ by 0.2, in all runs
(0.3, 0.1155)
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from raysweep.report.association import CONFIDENCE, Estimate
from raysweep.report.ratio import Array


def by_seeds(apart: Array) -> Estimate:
    """Return the mean of differences [..., runs, seeds]: runs and seeds are samples, two at least of each."""
    runs, seeds = apart.shape[-2:]
    value = apart.mean(axis=(-2, -1))
    of_run, of_seed = (apart.mean(axis=axis, keepdims=True) for axis in (-1, -2))
    rest = apart - of_run - of_seed + value[..., None, None]
    dofs = np.array([runs - 1, seeds - 1, (runs - 1) * (seeds - 1)])
    sums = [
        seeds * of_run.var(axis=(-2, -1)) * runs,
        runs * of_seed.var(axis=(-2, -1)) * seeds,
        (rest**2).sum(axis=(-2, -1)),
    ]
    squares = np.stack(sums, axis=-1) / dofs / (runs * seeds)
    # Where runs, or seeds, differ by less than chance would have it, the other is all that is seen.
    parts = np.where(
        squares[..., 2:] <= squares[..., :2].min(axis=-1, keepdims=True),
        np.array([1.0, 1.0, -1.0]),
        np.eye(3)[squares[..., :2].argmax(axis=-1)],
    )
    variance = (parts * squares).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        dof = np.minimum(variance**2 / (parts**2 * squares**2 / dofs).sum(axis=-1), runs - 1)
    return _tested(value, np.sqrt(variance), dof, runs)


def by_numbers(values: Array, reference: Array | float, reference_error: Array | float) -> Estimate:
    """Return the mean of values [..., runs] less that of a reference that is independent of them."""
    runs = values.shape[-1]
    own = values.std(axis=-1, ddof=1) / np.sqrt(runs)
    error = np.hypot(own, reference_error)
    return _tested(values.mean(axis=-1) - reference, error, np.full(error.shape, runs - 1.0), runs)


def _tested(value: Array, error: Array, dof: Array, runs: int) -> Estimate:
    """Return an estimate with Student's t; without any spread its value is certain."""
    sure = error == 0
    dof = np.where(sure, np.inf, dof)
    margin = stats.t.ppf((1 + CONFIDENCE) / 2, dof) * error
    with np.errstate(invalid="ignore", divide="ignore"):
        p = np.where(sure, (value == 0).astype(float), 2 * stats.t.sf(np.abs(value) / error, dof))
    return Estimate(
        value=value, low=value - margin, high=value + margin, p=p, standard_error=error, dof=dof,
        clusters=runs,
    )  # fmt: skip
