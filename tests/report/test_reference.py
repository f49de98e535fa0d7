"""Runs beside a reference: the table of runs and seeds against sums written out, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raysweep.report.reference import by_numbers, by_seeds


def slow(table: np.ndarray) -> tuple[float, float]:
    """Variance of the mean and its degrees of freedom, from loops over runs and seeds."""
    runs, seeds = table.shape
    mean = sum(float(v) for row in table for v in row) / (runs * seeds)
    rows = [sum(row) / seeds for row in table]
    columns = [sum(column) / runs for column in table.T]
    ms_runs = seeds * sum((v - mean) ** 2 for v in rows) / (runs - 1)
    ms_seeds = runs * sum((v - mean) ** 2 for v in columns) / (seeds - 1)
    rest = sum((table[r, s] - rows[r] - columns[s] + mean) ** 2 for r in range(runs) for s in range(seeds))
    ms_rest = rest / ((runs - 1) * (seeds - 1))
    found = {(ms_runs, runs - 1): 1, (ms_seeds, seeds - 1): 1, (ms_rest, (runs - 1) * (seeds - 1)): -1}
    whole = sum(sign * square for (square, _), sign in found.items())
    if ms_runs >= max(ms_seeds, whole):
        found = {(ms_runs, runs - 1): 1}
    elif ms_seeds >= max(ms_runs, whole):
        found = {(ms_seeds, seeds - 1): 1}
    variance = sum(sign * square for (square, _), sign in found.items()) / (runs * seeds)
    spread = sum((square / (runs * seeds)) ** 2 / dof for square, dof in found)
    return variance, min(variance**2 / spread, runs - 1)


@pytest.mark.parametrize(("of_run", "of_seed"), [(1.0, 1.0), (0.01, 1.0), (1.0, 0.01), (0.01, 0.01)])
def test_the_table_is_that_of_loops(of_run: float, of_seed: float) -> None:
    draws = np.random.default_rng(0)
    tables = of_run * draws.normal(size=(20, 6, 1)) + of_seed * draws.normal(size=(20, 1, 5))
    tables = tables + 0.3 * draws.normal(size=(20, 6, 5))
    found = by_seeds(tables)
    for k in range(20):
        variance, dof = slow(tables[k])
        assert found.standard_error[k] ** 2 == pytest.approx(variance)
        assert found.dof[k] == pytest.approx(dof)
        error = variance**0.5
        assert found.p[k] == pytest.approx(2 * stats.t.sf(abs(tables[k].mean()) / error, dof))
        margin = stats.t.ppf(0.975, dof) * error
        assert (found.low[k], found.high[k]) == pytest.approx(
            (tables[k].mean() - margin, tables[k].mean() + margin)
        )


def test_where_runs_alone_differ_it_is_their_t_test() -> None:
    own = np.random.default_rng(1).normal(0.2, 1.0, size=8)
    found, plain = by_seeds(np.repeat(own[:, None], 4, axis=1)), stats.ttest_1samp(own, 0.0)
    assert found.p == pytest.approx(plain.pvalue)
    assert found.dof == pytest.approx(7)


def test_independent_numbers_have_both_errors() -> None:
    values = np.array([0.5, 0.7, 0.6])
    alone, with_error = by_numbers(values, 0.4, 0.0), by_numbers(values, 0.4, 0.1)
    assert alone.p == pytest.approx(stats.ttest_1samp(values, 0.4).pvalue)
    assert with_error.standard_error == pytest.approx(np.hypot(alone.standard_error, 0.1))


def test_without_any_spread_the_value_is_certain() -> None:
    found = by_seeds(np.full((2, 3, 2), [[[0.5]], [[0.0]]]))
    assert found.p.tolist() == [0.0, 1.0]
    assert found.low.tolist() == found.high.tolist() == [0.5, 0.0]
