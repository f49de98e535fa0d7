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
