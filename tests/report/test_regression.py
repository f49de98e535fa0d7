"""The cluster-robust coefficient against the formula with whole matrices, and against Welch's test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import linalg, stats

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
    shared = np.mean([error[i] * error[j] for i, j in pairs]) / np.mean(error**2)
    omega = np.eye(n)
    for i, j in pairs:
        omega[i, j] = min(max(shared, 0.0), 1.0)
    forms = np.column_stack([pick, *(rest @ column for column in columns)])
    return float(pick @ y), math.sqrt(variance), forms.T @ omega @ forms


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
        assert found.ratio.moments[k] == pytest.approx(moments)


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
