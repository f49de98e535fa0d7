"""Power against noncentral t, and against new data with the effect that a pilot has named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from raysweep.report.power import Pilot, beyond
from raysweep.report.ratio import Ratio
from raysweep.report.reference import by_seeds


@pytest.mark.parametrize("dof", [2, 5, 20])
def test_with_one_part_it_is_noncentral_t(dof: int) -> None:
    edge, shifts = stats.t.isf(0.025, dof), np.array([0.0, 0.5, 2.0, 6.0])
    expected = stats.nct.sf(edge, dof, shifts) + stats.nct.cdf(-edge, dof, shifts)
    many, one = (np.full(dof, 1 / dof), np.ones(dof)), (np.ones(1), np.array([float(dof)]))
    for means, dofs in (many, one):
        assert beyond(edge, means, dofs)(shifts) == pytest.approx(expected, abs=1e-4)


def test_with_unequal_parts_it_is_the_share_of_draws() -> None:
    generator = np.random.default_rng(0)
    means, dofs = np.array([0.6, 0.3, 0.2]), np.array([1.0, 2.5, 7.0])
    v = (means / dofs * generator.chisquare(dofs, size=(400_000, 3))).sum(axis=1)
    normal = generator.standard_normal(len(v))
    for edge, shift in ((1.5, 0.0), (2.5, 2.0), (2.5, 5.0)):
        share = (np.abs(shift + normal) > edge * np.sqrt(v)).mean()
        assert beyond(edge, means, dofs)(np.array([shift]))[0] == pytest.approx(share, abs=0.004)


@pytest.mark.parametrize(
    ("means", "dofs", "edge"),
    [([0.42, 0.58], [7.0, 1.0], 4.0), ([1.0], [1.0], 12.7), ([1.0], [1.0], 636.0), ([1.0], [1000.0], 1.96)],
)
def test_larger_effects_are_seen_by_more_however_large(
    means: list[float], dofs: list[float], edge: float
) -> None:
    generator, w, d = np.random.default_rng(0), np.array(means), np.array(dofs)
    v = (w / d * generator.chisquare(d, size=(200_000, len(d)))).sum(axis=1)
    normal = generator.standard_normal(len(v))
    shifts = np.array([0.0, 1.0, 3.0, 8.0, 20.0, 29.0, 31.0, 60.0, 200.0, 1e3, 1e4, 1e6])
    found = beyond(edge, w, d)(shifts)
    shares = [(np.abs(shift + normal) > edge * np.sqrt(v)).mean() for shift in shifts]
    assert found == pytest.approx(shares, abs=0.004)
    assert np.all(np.diff(found) > -1e-9)
    assert found.max() <= 1 + 1e-9


@pytest.mark.parametrize("n", [4, 9])
def test_new_data_see_the_effect_that_a_pilot_names(n: int) -> None:
    """Pilots and new data are samples of n; each pilot names an effect of its own."""
    generator = np.random.default_rng(1)
    pilots, later = generator.standard_normal((2, 100_000, n))
    error, later_error = (one.std(axis=1, ddof=1) / math.sqrt(n) for one in (pilots, later))
    named = Pilot(1.0, Ratio.student(n - 1), n).detectable() * error
    seen = np.abs(later.mean(axis=1) + named) / later_error > stats.t.isf(0.025, n - 1)
    assert seen.mean() == pytest.approx(0.8, abs=0.01)
    known = Pilot(1.0, Ratio.student(n - 1), n)
    assert known.power(known.detectable()) == pytest.approx(0.8, abs=1e-4)
    # Half as large an effect is seen by fewer.
    half = np.abs(later.mean(axis=1) + named / 2) / later_error > stats.t.isf(0.025, n - 1)
    assert known.power(known.detectable() / 2) == pytest.approx(half.mean(), abs=0.01)


def test_as_many_samples_as_a_pilot_asks_for_see_the_effect() -> None:
    generator, n, effect = np.random.default_rng(2), 10, 0.9
    errors = generator.standard_normal((60, n)).std(axis=1, ddof=1) / math.sqrt(n)
    seen = []
    for error in errors:
        count = Pilot(error, Ratio.student(n - 1), n).needed(effect)
        assert count is not None
        samples = effect + generator.standard_normal((400, count))
        seen.append((stats.ttest_1samp(samples, 0.0, axis=1).pvalue <= 0.05).mean())
    assert np.mean(seen) == pytest.approx(0.8, abs=0.05)


def test_what_no_number_of_clusters_sees_has_no_number() -> None:
    pilot = Pilot(1.0, Ratio.student(8), 9)
    assert pilot.needed(0.0) is None
    assert pilot.needed(math.nan) is None
    assert pilot.needed(1e-6) is None
    assert pilot.power(0.0) == pytest.approx(0.05, abs=1e-3)


def test_more_clusters_see_more() -> None:
    moments = np.diag([1.0, 0.7, 0.2, 0.1])
    pilot = Pilot(0.4, Ratio(moments), 3)
    powers = [pilot.power(1.0, clusters=count) for count in (2, 3, 4, 6, 12, 48)]
    assert powers == sorted(powers)
    assert pilot.power(1.0, clusters=pilot.needed(1.0)) >= 0.8  # type: ignore[arg-type]
    assert pilot.power(1.0, clusters=pilot.needed(1.0) - 1) < 0.8  # type: ignore[operator]
    assert pilot.detectable(level=0.01) > pilot.detectable()


def test_runs_and_seeds_have_power_too() -> None:
    generator = np.random.default_rng(3)
    tables = generator.standard_normal((300, 8, 1)) + generator.standard_normal((300, 8, 5))
    tables = tables + generator.standard_normal((300, 1, 5))
    pilots, later = by_seeds(tables[:150]), tables[150:]
    seen = []
    for k in range(150):
        own = by_seeds(tables[k])
        assert own.standard_error == pytest.approx(pilots.standard_error[k])
        named = Pilot(float(own.standard_error), own.ratio, 8).detectable()
        seen.append((by_seeds(later + named).p <= 0.05).mean())
    assert np.mean(seen) == pytest.approx(0.8, abs=0.06)
