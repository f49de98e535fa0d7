"""Rank statistics against scipy, and against slow definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from raysweep.report import cluster_bootstrap, partial_spearman, spearman
from raysweep.report.statistics import mean_and_error


def slow_ranks(x: np.ndarray) -> np.ndarray:
    """Rank of each value: one more than the number below it, plus half of its ties."""
    return np.array([1 + sum(o < v for o in x) + (sum(o == v for o in x) - 1) / 2 for v in x])


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_equals_scipy(ties: bool) -> None:
    generator = np.random.default_rng(1)
    for n in (3, 10, 57):
        x, y = generator.normal(size=(2, n))
        if ties:
            x, y = np.round(x), np.round(x + y)
        expected = stats.spearmanr(x, y).statistic
        assert spearman(x, y) == pytest.approx(expected, abs=1e-12, nan_ok=True)
        assert spearman(x, y) == pytest.approx(
            np.corrcoef(slow_ranks(x), slow_ranks(y))[0, 1], abs=1e-12, nan_ok=True
        )


def test_spearman_sees_order_alone() -> None:
    x = np.array([0.1, 5.0, 2.0, 9.0, 3.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1.0)
    assert spearman(x, -(x**3)) == pytest.approx(-1.0)


def test_spearman_without_variation_or_data_is_nan() -> None:
    assert math.isnan(spearman(np.array([1.0, 2.0]), np.array([3.0, 3.0])))
    assert math.isnan(spearman(np.array([1.0]), np.array([3.0])))
    assert math.isnan(spearman(np.array([]), np.array([])))
    with pytest.raises(ValueError, match="paired"):
        spearman(np.array([1.0]), np.array([1.0, 2.0]))


def test_partial_spearman_is_the_correlation_of_residual_ranks() -> None:
    generator = np.random.default_rng(2)
    for _ in range(5):
        z = generator.normal(size=40)
        x, y = z + generator.normal(size=40), -z + generator.normal(size=40)
        ranks = [slow_ranks(v) for v in (x, y, z)]
        design = np.column_stack([np.ones(40), ranks[2]])
        left = [r - design @ np.linalg.lstsq(design, r, rcond=None)[0] for r in ranks[:2]]
        assert partial_spearman(x, y, z) == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-10)


def test_partial_spearman_is_nan_where_z_orders_x_completely() -> None:
    z = np.arange(6.0)
    assert math.isnan(partial_spearman(z**2, np.array([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]), z))
    assert math.isnan(partial_spearman(z, z, np.ones(6)))


def test_bootstrap_of_a_mean_has_the_exact_quantiles() -> None:
    values, clusters = np.array([0.0, 1.0, 4.0, 6.0, 6.0]), np.array(["a", "a", "b", "c", "c"])
    [found] = cluster_bootstrap(lambda v: [v.mean()], [values], clusters, seed=0, replicates=20_000)
    # All 27 equally likely draws of three clusters, whole.
    exact = [
        np.concatenate([values[clusters == c] for c in draw]).mean()
        for draw in itertools.product("abc", repeat=3)
    ]
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(np.quantile(exact, 0.025, method="inverted_cdf"), abs=1e-9)
    assert found.high == pytest.approx(np.quantile(exact, 0.975, method="inverted_cdf"), abs=1e-9)
    assert found.n == 5


def test_bootstrap_intervals_cover_as_they_say_and_ignoring_clusters_does_not() -> None:
    """Mean of 12 clusters of 8 equal values: the true interval must know that n is 12, not 96."""
    generator = np.random.default_rng(3)
    covered = {"clusters": 0, "rows": 0}
    trials = 200
    for trial in range(trials):
        values = np.repeat(generator.normal(size=12), 8)
        for name, groups in (("clusters", np.repeat(np.arange(12), 8)), ("rows", np.arange(96))):
            [i] = cluster_bootstrap(lambda v: [v.mean()], [values], groups, seed=trial, replicates=200)
            covered[name] += i.low <= 0 <= i.high
    # A percentile interval of 12 draws covers about 0.91; four standard errors of 200 trials are 0.08.
    assert 0.83 < covered["clusters"] / trials < 0.99
    assert covered["rows"] / trials < 0.7


def test_bootstrap_is_a_function_of_its_seed() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(2, 30))
    clusters = np.repeat(np.arange(6), 5)

    def run(seed: int) -> tuple[float | None, float | None]:
        [i] = cluster_bootstrap(lambda a, b: [spearman(a, b)], [x, y], clusters, seed=seed, replicates=300)
        return i.low, i.high

    assert run(0) == run(0)
    assert run(0) != run(1)


def test_bootstrap_says_when_there_is_too_little() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    [few] = cluster_bootstrap(lambda v: [v.mean()], [x], np.array([0, 0, 1, 1]), seed=0)
    assert (few.value, few.low, few.high) == (2.5, None, None)
    # Only one cluster varies, so most draws have no correlation.
    y = np.array([1.0, 1.0, 1.0, 5.0])
    [undefined] = cluster_bootstrap(
        lambda a, b: [spearman(a, b)], [x, y], np.array([0, 1, 2, 3]), seed=0, replicates=200
    )
    assert undefined.low is None
    [nothing] = cluster_bootstrap(lambda v: [math.nan], [np.array([])], np.array([]), seed=0)
    assert (nothing.n, nothing.low) == (0, None)


def test_mean_and_error() -> None:
    values = np.array([1.0, 2.0, 4.0])
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(7 / 3)
    assert error == pytest.approx(stats.sem(values))
    assert mean_and_error(np.array([2.0])) == (2.0, None)
