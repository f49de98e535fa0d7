"""Rank correlations at equal loss, with their levels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raysweep.report import matching
from raysweep.report.association import (
    LEVELS,
    adjusted,
    at_level,
    coefficient,
    correlation,
    indicators,
    ranks,
    smooth,
    strata,
)
from raysweep.report.matching import by_pairs, equal
from raysweep.report.ratio import Ratio


def test_ranks_are_those_of_scipy_around_zero() -> None:
    x = np.array([[3.0, 1.0, 1.0, 9.0]])
    assert ranks(x)[0] == pytest.approx([0.25, -0.5, -0.5, 0.75])


def test_without_controls_it_is_spearman_s_rho_and_fisher_s_interval_is_near() -> None:
    x, noise = np.random.default_rng(0).normal(size=(2, 400))
    y = x + noise
    found = correlation(ranks(x), ranks(y), np.ones((400, 1)), np.arange(400))
    rho = stats.spearmanr(x, y).statistic
    assert found.value == pytest.approx(rho)
    assert np.arctanh(found.high) - np.arctanh(rho) == pytest.approx(1.96 / np.sqrt(397), rel=0.1)


def test_a_smooth_function_of_the_loss_is_taken_out() -> None:
    draws = np.random.default_rng(1)
    loss = draws.uniform(size=60)
    x, y = loss**2 + 0.1 * draws.normal(size=60), np.exp(-loss) + 0.1 * draws.normal(size=60)
    runs = np.repeat(np.arange(20), 3)
    apart = correlation(ranks(x), ranks(y), np.ones((60, 1)), runs)
    for way in ("smooth", "strata"):
        found = at_level(x, y, loss, runs, runs, "all", way=way)
        assert apart.value < -0.8
        assert abs(found.value) < 0.45
        assert found.low < 0 < found.high


def test_strata_are_neighbours_in_loss() -> None:
    loss = np.array([5.0, 1.0, 2.0, 6.0, 3.0, 4.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0])
    design = strata(loss)
    assert design.shape == (12, 3)
    assert design[:, 2].tolist() == pytest.approx(ranks(loss))
    assert design[:, 0].tolist() == [1.0] * 12
    assert design[:, 1].tolist() == [0.0] * 6 + [1.0] * 6
    assert smooth(loss).shape == (12, 4)
    assert indicators(np.array([0, 2, 2, 1])).tolist() == [[0, 0], [0, 1], [0, 1], [1, 0]]


def simpson(sizes: int = 8, seeds: int = 3, steps: int = 5) -> tuple[np.ndarray, ...]:
    """Between sizes flatness goes with worse, between seeds and along steps with better."""
    draws = np.random.default_rng(3)
    configuration = np.repeat(np.arange(sizes), seeds * steps)
    run = np.repeat(np.arange(sizes * seeds), steps)
    of_size, of_seed = draws.normal(size=sizes)[configuration], draws.normal(size=sizes * seeds)[run]
    own, loss = draws.normal(size=len(run)), draws.normal(size=len(run))
    x = loss + 3 * of_size + of_seed + own
    y = -loss + 3 * of_size - of_seed - own + 0.2 * draws.normal(size=len(run))
    return x, y, loss, run, configuration


def test_opposite_signs_at_opposite_levels_are_found() -> None:
    x, y, loss, run, configuration = simpson()
    signs = {"configurations": 1, "seeds": -1, "steps": -1}
    for level in LEVELS:
        found = at_level(x, y, loss, run, configuration, level)
        if level in signs:
            assert found.value * signs[level] > 0.6, level
            assert found.p < 0.05, level
            assert found.clusters == (24 if level == "seeds" else 8)


def test_what_is_left_of_both_has_the_correlation_of_the_verdict() -> None:
    x, y, loss, run, configuration = simpson()
    for level in LEVELS:
        left_x, left_y, first = adjusted(x, y, loss, run, configuration, level)
        found = at_level(x, y, loss, run, configuration, level)
        assert np.corrcoef(left_x, left_y)[0, 1] == pytest.approx(float(found.value)), level
        groups = {"configurations": configuration, "seeds": run}.get(level, np.arange(len(run)))
        assert len(left_x) == len(first) == len(np.unique(groups))
        assert groups[first].tolist() == sorted(set(groups))
    # Without blocks, as by hand: the residuals of ranks by a cubic of the rank of the loss.
    left, _, _ = adjusted(x, y, loss, run, configuration, "all")
    place, ranked = (stats.rankdata(values) for values in (loss, x))
    cubic = np.polynomial.Polynomial.fit(place, ranked, 3)
    assert left * len(x) / 2 == pytest.approx(ranked - cubic(place))


def test_seeds_are_no_further_clusters() -> None:
    """An effect that all seeds of a configuration share leaves as little as a single seed."""
    draws = np.random.default_rng(4)
    x, y, loss = draws.normal(size=(3, 5))
    many = [np.repeat(v, 20) for v in (x, y, loss)]
    configuration, run = np.repeat(np.arange(5), 20), np.arange(100)
    found = at_level(*many, run, configuration, "all")
    assert found.ratio.dof < 4
    naive = at_level(*many, run, run, "all")
    assert naive.ratio.dof > 10


def test_too_few_clusters_have_no_interval() -> None:
    x, y, loss = np.random.default_rng(5).normal(size=(3, 20))
    two = np.repeat([0, 1], 10)
    found = at_level(x, y, loss, np.arange(20), two, "all")
    assert np.isfinite(found.value)
    assert np.isnan(found.low)
    assert np.isnan(found.p)
    nothing = at_level(np.ones(20), y, loss, np.arange(20), np.arange(20), "all")
    assert np.isnan(nothing.value)


def test_batches_are_data_sets_of_their_own() -> None:
    x, y, loss = np.random.default_rng(6).normal(size=(3, 4, 24))
    runs, configurations = np.repeat(np.arange(12), 2), np.repeat(np.arange(6), 4)
    for level in LEVELS:
        together = at_level(x, y, loss, runs, configurations, level)
        for k in range(4):
            alone = at_level(x[k], y[k], loss[k], runs, configurations, level)
            for name in ("value", "low", "high", "p", "standard_error"):
                one, other = getattr(together, name)[k], getattr(alone, name)
                assert one == pytest.approx(other, nan_ok=True), (level, name)


def test_a_coefficient_has_the_units_of_its_values() -> None:
    draws = np.random.default_rng(7)
    x, runs = np.tile([0.0, 1.0, 2.0], 10), np.repeat(np.arange(10), 3)
    y = 0.5 * x + 0.01 * draws.normal(size=30)
    found = coefficient(x, y, np.ones((30, 1)), runs)
    assert found.low < 0.5 < found.high
    assert found.high - found.low < 0.03


def slow_pairs(x: np.ndarray, y: np.ndarray, pairs: np.ndarray, left: set[int]) -> tuple[float, float]:
    """Correlation and slope over the pairs of the checkpoints that are `left`."""
    xx = xy = yy = 0.0
    for i in left:
        for j in left:
            if pairs[i, j]:
                xx += (x[i] - x[j]) ** 2
                xy += (x[i] - x[j]) * (y[i] - y[j])
                yy += (y[i] - y[j]) ** 2
    return xy / np.sqrt(xx * yy), xy / xx


def test_pairs_against_a_loop_over_them() -> None:
    x, y, loss = np.random.default_rng(8).normal(size=(3, 20))
    clusters = np.repeat(np.arange(5), 4)
    pairs = equal(loss, np.zeros((20, 20)), 0.5)
    for is_rank in (True, False):
        a, b = (ranks(x), ranks(y)) if is_rank else (x, y)
        found = by_pairs(x, y, pairs, clusters, correlation=is_rank)
        whole = slow_pairs(a, b, pairs, set(range(20)))[not is_rank]
        each = [slow_pairs(a, b, pairs, set(np.flatnonzero(clusters != c)))[not is_rank] for c in range(5)]
        each = list(np.arctanh(each)) if is_rank else each
        error = np.sqrt(4 / 5 * sum((v - np.mean(each)) ** 2 for v in each))
        assert found.value == pytest.approx(whole)
        assert found.standard_error == pytest.approx(error)


def test_intervals_of_pairs_have_the_distribution_of_draws() -> None:
    """Errors of clusters that pairs tie unevenly, with the correlation that the test takes."""
    generator = np.random.default_rng(10)
    clusters = np.repeat(np.arange(6), 4)
    x = generator.normal(size=24) + 2 * generator.normal(size=6)[clusters]
    loss = np.linspace(0, 1, 24) + generator.normal(size=24)
    pairs = equal(loss, np.zeros((24, 24)), 0.6)
    normal = generator.standard_normal
    for r in (0.0, 0.6):
        y = np.sqrt(r) * normal((4000, 6))[:, clusters] + np.sqrt(1 - r) * normal((4000, 24))
        found = by_pairs(np.broadcast_to(x, y.shape), y, pairs, clusters, correlation=False)
        ratio = np.abs(found.value) / found.standard_error
        member = (clusters[:, None] == np.arange(6)).astype(float)
        exact = Ratio.of(matching._forms(x, pairs, member), np.array(r), member)
        for level in (0.2, 0.05):
            assert (ratio > exact.quantile(level)).mean() == pytest.approx(level, abs=0.012)
        # The most careful correlation makes the test reject no more often, and hardly less.
        assert 0.02 < (found.p <= 0.05).mean() < 0.055


def test_forms_of_pairs_are_the_slopes_without_each_cluster() -> None:
    x, y, loss = np.random.default_rng(11).normal(size=(3, 20))
    clusters = np.repeat(np.arange(5), 4)
    pairs = equal(loss, np.zeros((20, 20)), 0.5)
    member = (clusters[:, None] == np.arange(5)).astype(float)
    own, *parts = matching._forms(x, pairs, member) @ y
    each = [slow_pairs(x, y, pairs, set(np.flatnonzero(clusters != c)))[1] for c in range(5)]
    assert own == pytest.approx(slow_pairs(x, y, pairs, set(range(20)))[1])
    assert parts == pytest.approx((np.array(each) - np.mean(each)) * np.sqrt(4 / 5))


def test_pairs_take_the_most_careful_correlation_and_x_alone_decides_it() -> None:
    generator = np.random.default_rng(12)
    clusters = np.repeat(np.arange(6), 4)
    member = (clusters[:, None] == np.arange(6)).astype(float)
    x, y, loss = generator.normal(size=(3, 40, 24))
    pairs = equal(loss, np.zeros((24, 24)), 0.5)
    found = by_pairs(x, y, pairs, clusters, correlation=False)
    assert isinstance(found.ratio, Ratio)
    taken = set()
    for k in range(40):
        forms = matching._forms(x[k], pairs[k], member)
        each = {r: Ratio.of(forms, np.array(r), member) for r in matching.SHARED}
        most = max(each, key=lambda r: float(each[r].quantile(0.05)))
        assert found.ratio.moments[k] == pytest.approx(each[most].moments)
        taken.add(most)
    assert len(taken) > 1
    other = by_pairs(x, generator.normal(size=(40, 24)), pairs, clusters, correlation=False)
    assert isinstance(other.ratio, Ratio)
    assert np.array_equal(other.ratio.moments, found.ratio.moments)
    assert np.array_equal(np.isnan(other.p), np.isnan(found.p))


def test_equal_loss_is_near_and_known_to_be_near() -> None:
    loss = np.array([0.100, 0.101, 0.103, 0.200])
    sure = equal(loss, np.zeros((4, 4)), 0.002)
    assert np.argwhere(sure).tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert not equal(loss, np.full((4, 4), 0.01), 0.002).any()


def test_pairs_of_few_clusters_have_no_interval() -> None:
    x, y, loss = np.random.default_rng(9).normal(size=(3, 12))
    clusters = np.repeat(np.arange(2), 6)
    found = by_pairs(x, y, equal(loss, np.zeros((12, 12)), 5.0), clusters, correlation=True)
    assert np.isfinite(found.value)
    assert np.isnan(found.p)
