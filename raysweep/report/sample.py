"""Samples of thousands of checkpoints: the same ones each time, evenly spaced, and of whole groups.

>>> evenly(10, 4).tolist(), evenly(3, 4).tolist()
([0, 3, 6, 9], [0, 1, 2])
>>> of_whole_groups(6, np.repeat(np.arange(30), 2), least=3).tolist()
[0, 1, 28, 29, 58, 59]
"""

from __future__ import annotations

import numpy as np

from raysweep.report.many import Parts
from raysweep.report.regression import Array

#: Fewest groups of a sample; where so many do not fit, it is of smaller ones.
LEAST_GROUPS = 10


def evenly(count: int, most: int) -> Array:
    """Return at most `most` of the places 0 to count − 1, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


def of_whole_groups(most: int, *levels: Array, least: int = LEAST_GROUPS) -> Array:
    """Return the places of about `most` of n observations, ascending, as whole groups.

    Each of `levels` [n] has the group of each observation, and they go from large groups to small ones.  The
    first level is taken whose groups fit at least `least` times, or else the last one.
    """
    for place, groups in enumerate(levels):
        parts = Parts(groups)
        fit = int(most / parts.sizes.mean())
        if fit >= least or place == len(levels) - 1:
            break
    return np.flatnonzero(np.isin(parts.of, evenly(len(parts), max(1, fit))))
