"""Runs beside a reference: the table of runs and seeds against sums written out, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raysweep.report.reference import by_numbers, by_seeds


def slow(table: np.ndarray) -> tuple[float, float]:
    """Variance of the mean from loops over runs and seeds, and the p-value from many draws of χ²."""
    runs, seeds = table.shape
    mean = sum(float(v) for row in table for v in row) / (runs * seeds)
    rows = [sum(row) / seeds for row in table]
    columns = [sum(column) / runs for column in table.T]
    of_runs = seeds * sum((v - mean) ** 2 for v in rows)
    of_seeds = runs * sum((v - mean) ** 2 for v in columns)
    rest = sum((table[r, s] - rows[r] - columns[s] + mean) ** 2 for r in range(runs) for s in range(seeds))
    dofs = runs - 1, seeds - 1, (runs - 1) * (seeds - 1)

    def whole(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.where(c <= np.minimum(a, b), a + b - c, np.maximum(a, b)) / (runs * seeds)

    squares = (np.array(s / dof) for s, dof in zip((of_runs, of_seeds, rest), dofs, strict=True))
    draws = np.random.default_rng(1)
    drawn = (s / draws.chisquare(d, 400_000) for s, d in zip((of_runs, of_seeds, rest), dofs, strict=True))
    return float(whole(*squares)), float(2 * stats.norm.sf(abs(mean) / np.sqrt(whole(*drawn))).mean())


@pytest.mark.parametrize(("of_run", "of_seed"), [(1.0, 1.0), (0.01, 1.0), (1.0, 0.01), (0.01, 0.01)])
def test_the_table_is_that_of_loops_and_draws(of_run: float, of_seed: float) -> None:
    draws = np.random.default_rng(0)
    tables = of_run * draws.normal(size=(6, 6, 1)) + of_seed * draws.normal(size=(6, 1, 5))
    tables = tables + 0.3 * draws.normal(size=(6, 6, 5))
    found = by_seeds(tables)
    for k in range(6):
        variance, p = slow(tables[k])
        assert found.standard_error[k] ** 2 == pytest.approx(variance)
        assert found.p[k] == pytest.approx(p, rel=0.02, abs=1e-4)
    # An interval ends where the p-value is that of the level.
    for ends in (found.low, found.high):
        assert by_seeds(tables - ends[:, None, None]).p == pytest.approx(np.full(6, 0.05), rel=1e-3)


@pytest.mark.parametrize("mean", [0.2, 3.0])
def test_where_runs_alone_differ_it_is_their_t_test(mean: float) -> None:
    own = np.random.default_rng(1).normal(mean, 1.0, size=8)
    found, plain = by_seeds(np.repeat(own[:, None], 4, axis=1)), stats.ttest_1samp(own, 0.0)
    assert found.p == pytest.approx(plain.pvalue, rel=1e-3)
    assert found.ratio.dof == pytest.approx(7)


def test_means_of_runs_and_seeds_hold_their_level() -> None:
    """The case in which Satterthwaite's t test exceeds its level: 20 runs, as apart as 5 seeds."""
    draws = np.random.default_rng(2)
    tables = draws.normal(size=(4000, 20, 1)) + draws.normal(size=(4000, 1, 5))
    p = by_seeds(tables + draws.normal(size=(4000, 20, 5))).p
    assert (p <= 0.05).mean() <= 0.05 + 2.58 * np.sqrt(0.05 * 0.95 / 4000)
    assert (p <= 0.05).mean() > 0.02


def test_independent_numbers_have_both_errors() -> None:
    values = np.array([0.5, 0.7, 0.6])
    alone, with_error = by_numbers(values, 0.4, 0.0), by_numbers(values, 0.4, 0.1)
    assert alone.p == pytest.approx(stats.ttest_1samp(values, 0.4).pvalue)
    assert with_error.standard_error == pytest.approx(np.hypot(alone.standard_error, 0.1))


def test_without_any_spread_the_value_is_certain() -> None:
    found = by_seeds(np.full((2, 3, 2), [[[0.5]], [[0.0]]]))
    assert found.p.tolist() == [0.0, 1.0]
    assert found.low.tolist() == found.high.tolist() == [0.5, 0.0]
