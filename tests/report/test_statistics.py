"""Means with their errors, against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raysweep.report.statistics import mean_and_error


def test_mean_and_error() -> None:
    values = np.array([1.0, 2.0, 4.0])
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(7 / 3)
    assert error == pytest.approx(stats.sem(values))
    assert mean_and_error(np.array([2.0])) == (2.0, None)
