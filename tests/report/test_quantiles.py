"""Quantiles and ranks are those of scipy.stats, to the last digit."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from raysweep.report.quantiles import chi2_quantile, mean_ranks, places, t_quantile, t_tail

DOFS = np.array([0.3, 1.0, 2.5, 8.0, 40.0, 1e3, 1e6, np.inf])


def test_quantiles_and_tails_are_those_of_scipy_stats() -> None:
    for level in (1e-9, 0.001, 0.025, 0.3):
        np.testing.assert_array_equal(-t_quantile(level, DOFS), stats.t.isf(level, DOFS))
        np.testing.assert_array_equal(t_quantile(1 - level, DOFS), stats.t.ppf(1 - level, DOFS))
        np.testing.assert_array_equal(chi2_quantile(np.array(level), DOFS), stats.chi2.ppf(level, DOFS))
    sizes = np.array([-2.0, 0.0, 1e-9, 1.0, 7.0, 1e4, np.inf, np.nan])
    for dof in DOFS:
        np.testing.assert_array_equal(t_tail(sizes, dof), stats.t.sf(sizes, dof))
    assert math.isnan(t_quantile(0.025, float("nan")))


@pytest.mark.parametrize("shape", [(1,), (9,), (3, 40), (2, 3, 17)])
def test_ranks_are_those_of_scipy_stats(shape: tuple[int, ...]) -> None:
    chance = np.random.default_rng(0)
    for values in (chance.normal(size=shape), chance.integers(0, 4, size=shape).astype(float)):
        np.testing.assert_array_equal(mean_ranks(values), stats.rankdata(values, axis=-1))
        np.testing.assert_array_equal(places(values) + 1, stats.rankdata(values, axis=-1, method="ordinal"))
    values[..., 0] = np.nan
    np.testing.assert_array_equal(mean_ranks(values), stats.rankdata(values, axis=-1))


def test_a_report_needs_no_scipy_stats() -> None:
    code = "import sys, raysweep.report.write; print({'scipy.stats'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
