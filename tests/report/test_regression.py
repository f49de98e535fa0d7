"""The cluster-robust coefficient against the formula with whole matrices, and against Welch's test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import linalg, stats

from raysweep.report import regression
from raysweep.report.regression import residuals, slope


def slow(
    y: np.ndarray, x: np.ndarray, controls: np.ndarray, clusters: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """Coefficient, standard error and moments of their ratio, with every matrix written out."""
    design = np.column_stack([controls, x])
    n = len(y)
    hat = design @ np.linalg.pinv(design)
    rest = np.eye(n) - hat
    pick = np.linalg.pinv(design)[-1]
    error = rest @ y
    columns = []
    for cluster in np.unique(clusters):
        rows = np.flatnonzero(clusters == cluster)
        block = rest[np.ix_(rows, rows)]
        values, vectors = linalg.eigh(block)
        power = np.diag([v**-0.5 if v > 1e-9 else 0.0 for v in values])
        columns.append(np.zeros(n))
        columns[-1][rows] = pick[rows] @ vectors @ power @ vectors.T
    variance = sum(float(column @ error) ** 2 for column in columns)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j and clusters[i] == clusters[j]]
    omega = np.eye(n)
    shared = slow_shared(y, design, clusters)
    for i, j in pairs:
        omega[i, j] = shared
    forms = np.column_stack([pick, *(rest @ column for column in columns)])
    return float(pick @ y), math.sqrt(variance), forms.T @ omega @ forms


def slow_shared(y: np.ndarray, design: np.ndarray, clusters: np.ndarray) -> float:
    """Posterior mean of the correlation within clusters, from the density of what the design leaves of y."""
    contrasts = linalg.null_space(design.T)
    left = contrasts.T @ y
    places, logs = (np.arange(1000) + 0.5) / 1000, []
    for r in places:
        same = (clusters[:, None] == clusters[None, :]).astype(float)
        spread = contrasts.T @ ((1 - r) * np.eye(len(y)) + r * same) @ contrasts
        # A normal density, with the integral over its scale.
        square = left @ np.linalg.solve(spread, left)
        logs.append(-0.5 * np.linalg.slogdet(spread)[1] - 0.5 * len(left) * math.log(square))
    weights = np.exp(np.array(logs) - max(logs))
    return float(weights @ places / weights.sum())


@pytest.mark.parametrize("blocks", [False, True])
def test_it_is_the_formula(blocks: bool) -> None:
    generator = np.random.default_rng(0)
    clusters = np.repeat(np.arange(6), [3, 4, 2, 5, 1, 4])
    n = len(clusters)
    y, x, z = generator.normal(size=(3, 2, n))
    y += generator.normal(size=(2, 6))[:, clusters]
    controls = np.stack([np.ones((2, n)), z], axis=-1)
    if blocks:  # constants of clusters make the blocks of I − H singular
        own = (clusters[:, None] == np.arange(1, 6)).astype(float)
        controls = np.concatenate([controls, np.broadcast_to(own, (2, n, 5))], axis=-1)
    found = slope(y, x, controls, clusters)
    for k in range(2):
        value, error, moments = slow(y[k], x[k], controls[k], clusters)
        assert found.value[k] == pytest.approx(value)
        assert found.standard_error[k] == pytest.approx(error)
        # Two ways to integrate over the correlation.
        assert found.ratio.moments[k] == pytest.approx(moments, rel=2e-3, abs=2e-3 * np.abs(moments).max())


def test_two_groups_of_single_observations_are_welch_s_test() -> None:
    generator = np.random.default_rng(1)
    one, two = generator.normal(size=5), generator.normal(1.0, 3.0, size=5)
    y, x = np.concatenate([one, two]), np.repeat([0.0, 1.0], 5)
    found = slope(y, x, np.ones((10, 1)), np.arange(10))
    welch = stats.ttest_ind(two, one, equal_var=False)
    assert found.value / found.standard_error == pytest.approx(welch.statistic)
    assert found.dof == pytest.approx(8.0)  # as if both groups had one variance


def test_errors_that_clusters_share_leave_fewer_degrees_of_freedom() -> None:
    generator = np.random.default_rng(3)
    clusters = np.repeat(np.arange(8), 6)
    x = generator.normal(size=8)[clusters] + 0.3 * generator.normal(size=48)
    own, of_cluster = generator.normal(size=48), 3 * generator.normal(size=8)[clusters]
    alike, apart = (slope(y, x, np.ones((48, 1)), clusters) for y in (own + of_cluster, own))
    assert alike.dof < apart.dof < 7
    assert alike.ratio.quantile(0.05) > apart.ratio.quantile(0.05)


@pytest.mark.parametrize("r", [0.0, 0.3, 0.8])
def test_many_clusters_tell_their_correlation_and_few_say_less(r: float) -> None:
    generator = np.random.default_rng(4)

    def means(count: int, columns: int) -> np.ndarray:
        clusters = np.repeat(np.arange(count), 4)
        own, of_cluster = generator.normal(size=(200, 4 * count)), generator.normal(size=(200, count))
        y = np.sqrt(1 - r) * own + np.sqrt(r) * of_cluster[:, clusters]
        basis = np.linalg.qr(generator.normal(size=(200, 4 * count, columns)))[0]
        left = regression.residuals(y, basis)
        member = (clusters[:, None] == np.arange(count)).astype(float)
        return regression._shared(left, basis, member)

    many, few = means(100, 8), means(6, 8)
    # Residuals of few clusters resemble each other less than errors; the estimate is nearer to the middle.
    assert many.mean() == pytest.approx(r, abs=0.05)
    assert abs(few.mean() - 0.5) < abs(many.mean() - 0.5)
    assert few.min() > 0.02
    assert few.max() < 0.98


def test_copies_of_observations_within_clusters_say_nothing_new() -> None:
    generator = np.random.default_rng(2)
    y, x = generator.normal(size=(2, 8))
    once = slope(y, x, np.ones((8, 1)), np.arange(8))
    twice = slope(np.tile(y, 2), np.tile(x, 2), np.ones((16, 1)), np.tile(np.arange(8), 2))
    assert twice.standard_error == pytest.approx(once.standard_error)
    assert twice.dof == pytest.approx(once.dof)


def test_without_variation_there_is_no_coefficient() -> None:
    y = np.array([1.0, 2.0, 4.0, 3.0])
    z = np.column_stack([np.ones(4), [0.0, 1.0, 0.0, 1.0]])
    found = slope(y, z[:, 1], z, np.arange(4))
    assert np.isnan(found.value)
    assert np.isnan(found.standard_error)
    assert np.isnan(found.dof)
    assert found.left == pytest.approx(0.0, abs=1e-12)


def test_residuals_do_not_mind_dependent_columns() -> None:
    y = np.array([1.0, 2.0, 4.0])
    design = np.column_stack([np.ones(3), 2 * np.ones(3)])
    assert residuals(y, design) == pytest.approx(y - y.mean())
