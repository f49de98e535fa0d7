"""Means with their errors, intervals, and p-values of several tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval; `low` and `high` are None where there is too little data.

    `n` counts observations.
    """

    value: float
    low: float | None
    high: float | None
    n: int


def mean_and_error(values: Array) -> tuple[float, float | None]:
    """Return the mean of independent values [n] and its standard error; None for fewer than two.

    >>> mean_and_error(np.array([1.0, 3.0]))
    (2.0, 1.0)
    """
    values = np.asarray(values, dtype=float)
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return float(values.mean()), error


def normal_p(value: float, standard_error: float) -> float:
    """Return the two-sided probability of so large a normal deviate; 1 where nothing can be said.

    >>> round(normal_p(1.96, 1.0), 3), normal_p(0.0, 0.0), normal_p(1.0, math.nan)
    (0.05, 1.0, 1.0)
    """
    if value == 0 or math.isnan(standard_error):
        return 1.0
    return math.erfc(abs(value) / standard_error / math.sqrt(2)) if standard_error > 0 else 0.0


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number: those at most α are significant together at level α.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics,
    1979.  It holds whatever the dependence between the tests.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [1.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda k: p[k])):
        least = max(least, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = least
    return corrected
