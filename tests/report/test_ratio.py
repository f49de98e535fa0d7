"""The distribution of a ratio against Student's t, against draws, and against itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raysweep.report.ratio import Ratio


@pytest.mark.parametrize("dof", [2, 3, 7, 20])
def test_with_equal_independent_parts_it_is_student_s_t(dof: int) -> None:
    found = Ratio(np.diag([1.0] + [1 / dof] * dof))
    sizes = np.array([0.1, 1.0, 3.0, 12.0])
    assert found.dof == pytest.approx(dof)
    for size in sizes:
        assert found.tail(np.array(size)) == pytest.approx(2 * stats.t.sf(size, dof), abs=2e-5)
    for level in (0.05, 0.01):
        assert found.quantile(level) == pytest.approx(stats.t.isf(level / 2, dof), rel=2e-3)


def test_it_is_the_share_of_draws_beyond() -> None:
    """Parts of V of unequal size, correlated with each other and with the estimate."""
    generator = np.random.default_rng(0)
    forms = generator.normal(size=(3, 6, 9)) * np.array([3.0, 1.0, 0.5, 2.0, 0.1, 1.0])[:, None]
    sizes = np.array([0.3, 1.0, 2.0])
    found = Ratio(forms @ np.swapaxes(forms, -1, -2)).tail(sizes)
    errors = generator.normal(size=(400_000, 9))
    for k, size in enumerate(sizes):
        own, *parts = forms[k] @ errors.T
        share = (np.abs(own) > size * np.sqrt(np.square(parts).sum(axis=0))).mean()
        assert found[k] == pytest.approx(share, abs=4 * np.sqrt(0.25 / len(errors)))


def test_the_quantile_has_its_tail() -> None:
    generator = np.random.default_rng(1)
    forms = generator.normal(size=(40, 7, 12)) * generator.lognormal(sigma=1.5, size=(40, 7, 1))
    found = Ratio(forms @ np.swapaxes(forms, -1, -2))
    for level in (0.2, 0.05, 0.001):
        assert found.tail(found.quantile(level)) == pytest.approx(np.full(40, level), rel=1e-4)


def test_it_is_the_integral_over_the_eigenvalues_of_the_matrix() -> None:
    """As the module defines it, matrix by matrix and point by point."""
    generator = np.random.default_rng(3)
    forms = generator.normal(size=(20, 6, 8)) * generator.lognormal(sigma=1.5, size=(20, 6, 1))
    forms[:10, 0] += 3 * forms[:10, 1:].sum(axis=1)
    sizes = np.linspace(0.0, 6.0, 20)
    found = Ratio(forms @ np.swapaxes(forms, -1, -2)).tail(sizes)
    squares = np.sin((np.arange(64) + 0.5) / 64 * np.pi / 2) ** 2
    for k, size in enumerate(sizes):
        own, parts = forms[k, 0], forms[k, 1:]
        *others, positive = np.linalg.eigvalsh(np.outer(own, own) - size**2 * parts.T @ parts)
        b = np.maximum(-np.array(others) / positive, 0.0)
        points = [np.prod(1 + b / square) ** -0.5 for square in squares]
        assert found[k] == pytest.approx(np.mean(points), rel=1e-9)


@pytest.mark.parametrize("variances", [(1.0, 1.0), (1.0, 16.0, 256.0), (1.0, 10.0, 100.0)])
def test_an_estimate_that_its_parts_bound_has_no_ratio_beyond(variances: tuple[float, ...]) -> None:
    """The estimate is the sum of G parts, which is at most √G times the root of their squares."""
    forms = np.vstack([np.sqrt(variances), np.diag(np.sqrt(variances))])
    found, bound = Ratio(forms @ forms.T), len(variances) ** 0.5
    errors = np.random.default_rng(4).normal(size=(400_000, len(variances)))
    own, *parts = forms @ errors.T
    for size in (0.5 * bound, 0.8 * bound, 0.97 * bound):
        share = (np.abs(own) > size * np.sqrt(np.square(parts).sum(axis=0))).mean()
        assert found.tail(np.array(size)) == pytest.approx(share, abs=4 * np.sqrt(0.25 / len(errors)))
    assert found.tail(np.array([1.1, 100.0]) * bound) == pytest.approx(np.zeros(2), abs=1e-6)
    quantile = found.quantile(0.05)
    assert quantile < bound
    assert found.tail(quantile) == pytest.approx(0.05, rel=1e-3)


def test_what_does_not_vary_is_never_beyond() -> None:
    assert Ratio(np.diag([0.0, 1.0, 1.0])).tail(np.array(1.0)) == 0.0


def test_a_factor_of_all_moments_changes_nothing() -> None:
    forms = np.random.default_rng(2).normal(size=(5, 8))
    moments = forms @ forms.T
    one, other = Ratio(moments), Ratio(1e-6 * moments)
    assert one.quantile(0.05) == pytest.approx(other.quantile(0.05))
    assert one.dof == pytest.approx(other.dof)


def test_without_a_spread_there_is_no_ratio() -> None:
    nothing = Ratio(np.zeros((3, 3)))
    assert np.isnan(nothing.dof)
    assert np.isnan(nothing.quantile(0.05))
