"""Student's t, χ², ranks and roots as scipy.stats and scipy.optimize have them.

The import of these two takes a second, a twentieth of the report of ten thousand runs; that of scipy.special,
which they compute with, takes a tenth of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

Array = np.ndarray

#: Steps of Brent's method, which needs fewer for every function: bisection halves an interval 64 times.
_STEPS = 100


def t_quantile(probability: float, dof: Array | float) -> Array:
    """Return the value [...] that Student's t with degrees of freedom [...] is below with a probability.

    >>> round(float(t_quantile(0.975, 8)), 3)
    2.306
    """
    return np.asarray(special.stdtrit(dof, probability))


def t_tail(size: Array, dof: float) -> Array:
    """Return the probability [...] that Student's t is above `size` [...].

    >>> round(float(t_tail(np.array(2.306), 8)), 3)
    0.025
    """
    return np.asarray(special.stdtr(dof, -size))


def chi2_quantile(probability: Array, dof: Array | float) -> Array:
    """Return the values [...] that χ² with `dof` degrees of freedom is below with probabilities [...].

    >>> round(float(chi2_quantile(np.array(0.95), 1)), 3)
    3.841
    """
    return np.asarray(2 * special.gammaincinv(dof / 2, probability))


def mean_ranks(values: Array) -> Array:
    """Return the ranks of values [..., n] along the last axis from 1 on; equal ones have the mean of theirs.

    >>> mean_ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    order = np.argsort(values, axis=-1, kind="stable")
    ascending = np.take_along_axis(values, order, axis=-1)
    own = np.arange(values.shape[-1])
    differs = ascending[..., 1:] != ascending[..., :-1]
    edge = np.ones((*values.shape[:-1], 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.concatenate([edge, differs], axis=-1), own, 0), axis=-1)
    last = np.where(np.concatenate([differs, edge], axis=-1), own, len(own))
    last = np.minimum.accumulate(last[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, axis=-1)
    return _where_known(values, ranks)


def places(values: Array) -> Array:
    """Return the places of values [..., n] in their order along the last axis from 0 on, equal ones apart.

    >>> places(np.array([3.0, 1.0, 3.0])).tolist()
    [1.0, 0.0, 2.0]
    """
    order = np.argsort(values, axis=-1, kind="stable")
    found = np.empty(values.shape)
    np.put_along_axis(found, order, np.broadcast_to(np.arange(values.shape[-1]), values.shape), axis=-1)
    return _where_known(values, found)


def _where_known(values: Array, ranks: Array) -> Array:
    """Return ranks, nan beside a value that is not known."""
    return np.where(np.isnan(values).any(axis=-1, keepdims=True), np.nan, ranks)


def root(
    function: Callable[[float], float], low: float, high: float, *, near: float = 4 * np.finfo(float).eps
) -> float:
    """Return where a function is zero between two places at which it has different signs.

    The relative error is at most `near`.  Raises `ValueError` where the signs are the same, and for nan.

    This is Brent's method (R. P. Brent, "Algorithms for Minimization Without Derivatives", 1973, chapter 4)
    as `scipy.optimize.brentq` has it, to the last digit.

    >>> round(root(lambda x: x**2 - 2, 0.0, 2.0), 12)
    1.414213562373
    """
    before, at = low, high
    f_before, f_at = function(before), function(at)
    if 0 in (f_before, f_at):
        return before if f_before == 0 else at
    if math.isnan(f_before) or math.isnan(f_at) or (f_before < 0) == (f_at < 0):
        raise ValueError(f"the function has no two signs at {low:g} and {high:g}")
    # Between `at` and `across`, the function changes its sign.
    across = f_across = step = last = 0.0
    for _ in range(_STEPS):
        if 0 not in (f_before, f_at) and (f_before < 0) != (f_at < 0):
            across, f_across = before, f_before
            last = step = at - before
        if abs(f_across) < abs(f_at):
            before, at, across = at, across, at
            f_before, f_at, f_across = f_at, f_across, f_at
        least, half = (2e-12 + near * abs(at)) / 2, (across - at) / 2
        if f_at == 0 or abs(half) < least:
            return at
        tried = math.inf
        if abs(last) > least and abs(f_at) < abs(f_before):
            if before == across:
                tried = -f_at * (at - before) / (f_at - f_before)
            else:
                here, there = (f_before - f_at) / (before - at), (f_across - f_at) / (across - at)
                tried = -f_at * (f_across * there - f_before * here) / (there * here * (f_across - f_before))
        short = 2 * abs(tried) < min(abs(last), 3 * abs(half) - least)
        last, step = (step, tried) if short else (half, half)
        before, f_before = at, f_at
        at += step if abs(step) > least else math.copysign(least, half)
        f_at = function(at)
    raise ValueError(f"the function has no zero that can be found between {low:g} and {high:g}")
