"""Regressions of many observations: the numbers of those that have all matrices."""

from __future__ import annotations

import numpy as np
import pytest

from raysweep.report import association, many
from raysweep.report.association import Estimate, at_level, coefficient, smooth, strata
from raysweep.report.ratio import Student
from raysweep.report.regression import slope
from raysweep.sweep.claims import Level

#: Runs of each configuration, and checkpoints of each run: not all alike.
RUNS = (3, 1, 4, 2, 3, 5, 2, 1, 3, 4)


def drawn(seed: int) -> tuple[np.ndarray, ...]:
    """Return flatness, accuracy, loss, run, configuration and variant of checkpoints in a mixed order."""
    rng = np.random.default_rng(seed)
    configuration = np.repeat(np.arange(len(RUNS)), RUNS)
    times = rng.integers(1, 6, size=len(configuration))
    run = np.repeat(np.arange(len(configuration)), times)
    configuration = configuration[run]
    order = rng.permutation(len(run))
    run, configuration = run[order], configuration[order]
    loss = rng.exponential(size=len(run))
    x = loss + rng.normal(size=len(RUNS))[configuration] + rng.normal(size=len(run))
    y = x - loss + rng.normal(size=len(times))[run] + rng.normal(size=len(run))
    return x, y, loss, run, configuration, configuration % 4


def same(one: Estimate, other: Estimate) -> None:
    for name in ("value", "low", "high", "p", "standard_error"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6, nan_ok=True), name
    assert one.clusters == other.clusters


def with_few_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(association, "DENSE", 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["smooth", "strata"])
@pytest.mark.parametrize("level", ["all", "configurations", "seeds", "steps"])
def test_associations(monkeypatch: pytest.MonkeyPatch, level: Level, way: str, seed: int) -> None:
    x, y, loss, run, configuration, _ = drawn(seed)
    dense = at_level(x, y, loss, run, configuration, level, way=way)
    assert not np.isnan(dense.p)
    with_few_matrices(monkeypatch)
    same(at_level(x, y, loss, run, configuration, level, way=way), dense)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by", [smooth, strata])
@pytest.mark.parametrize("kind", ["runs", "variants", "none"])
def test_coefficients(monkeypatch: pytest.MonkeyPatch, kind: str, by: object, seed: int) -> None:
    x, y, loss, run, _, variant = drawn(seed)
    groups = {"runs": run, "variants": variant, "none": None}[kind]
    design = (smooth if by is smooth else strata)(loss)
    dense = coefficient(x, y, design, run, groups)
    assert not np.isnan(dense.p)
    with_few_matrices(monkeypatch)
    same(coefficient(x, y, design, run, groups), dense)


def test_what_does_not_vary_beside_the_groups_has_no_coefficient(monkeypatch: pytest.MonkeyPatch) -> None:
    _, y, loss, run, _, variant = drawn(0)
    with_few_matrices(monkeypatch)
    found = coefficient(variant.astype(float), y, smooth(loss), run, variant)
    assert np.isnan(found.value)
    assert np.isnan(found.p)


def test_groups_that_cross_clusters_are_an_error() -> None:
    x, y, loss, run, _, _ = drawn(0)
    with pytest.raises(ValueError, match="must lie within"):
        many.slope(y, x, smooth(loss), run, np.arange(len(x)) % 7)


@pytest.mark.parametrize("kind", ["none", "coarse", "fine"])
def test_with_many_clusters_the_ratio_is_nearly_student_s(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The distribution of t has the mean of V, and about its degrees of freedom, of the exact moments."""
    rng = np.random.default_rng(2)
    cluster = np.repeat(np.arange(150), 4)
    groups = {"none": None, "coarse": cluster // 10, "fine": np.arange(600) // 2}[kind]
    x, loss = rng.normal(size=(2, 600))
    y = x + rng.normal(size=150)[cluster] + rng.normal(size=600)
    exact = many.slope(y, x, smooth(loss / 3), cluster, groups)
    monkeypatch.setattr(many, "EXACT", 100)
    found = many.slope(y, x, smooth(loss / 3), cluster, groups)
    assert isinstance(found.ratio, Student)
    moments = exact.ratio.moments  # type: ignore[union-attr]
    assert found.ratio.mean == pytest.approx(np.trace(moments[1:, 1:]) / moments[0, 0])
    variances = np.diag(moments)[1:]
    assert found.ratio.degrees == pytest.approx(variances.sum() ** 2 / (variances**2).sum())
    assert found.ratio.degrees == pytest.approx(exact.ratio.dof, rel=0.12)
    assert found.ratio.quantile(0.05) == pytest.approx(exact.ratio.quantile(0.05), rel=5e-3)
    assert found.ratio.tail(np.array(2.5)) == pytest.approx(exact.ratio.tail(np.array(2.5)), rel=0.06)


@pytest.mark.parametrize("kind", ["none", "coarse", "fine"])
def test_large_clusters_take_no_matrices_of_their_size(kind: str) -> None:
    rng = np.random.default_rng(4)
    cluster = np.repeat(np.arange(5), [30, 41, 30, 25, 38])
    groups = {"none": None, "coarse": cluster // 2, "fine": np.arange(len(cluster)) // 4 + 100 * cluster}[
        kind
    ]
    x, loss = rng.normal(size=(2, len(cluster)))
    y = x + rng.normal(size=5)[cluster] + rng.normal(size=len(cluster))
    design = smooth(loss / 3)
    controls = design if groups is None else association.beside(design, association.indicators(groups))
    dense = slope(y, x, controls, cluster)
    found = many.slope(y, x, design, cluster, groups)
    assert found.scores == pytest.approx(dense.scores)
    assert found.ratio.moments == pytest.approx(dense.ratio.moments)  # type: ignore[union-attr]


def test_moments_are_those_of_whole_matrices() -> None:
    x, y, loss, run, configuration, _ = drawn(1)
    controls = np.concatenate([smooth(loss), (run[:, None] == np.arange(1, run.max() + 1)) * 1.0], axis=1)
    dense = slope(y, x, controls, configuration)
    found = many.slope(y, x, smooth(loss), configuration, run)
    assert found.scores == pytest.approx(dense.scores)
    assert found.ratio.moments == pytest.approx(dense.ratio.moments)  # type: ignore[union-attr]
