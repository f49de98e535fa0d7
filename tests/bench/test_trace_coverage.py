"""The committed simulation: intervals without a warning hold what they state."""

import math

import numpy as np
import pytest

from raysweep.bench.statistics.trace import STATED, cases, trace_coverage


@pytest.fixture(scope="module")
def rows():
    return trace_coverage(replicates=200, seed=1)


def test_intervals_without_a_warning_cover_what_they_state(rows):
    held = total = 0
    for row in rows:
        # Where many samples are warned of, those without a warning are the ones that lack the tail.
        if row["warned"] < 1 / 3:
            assert abs(row["measured"] - STATED) < 0.02 + 3 * row["standard_error"], row
            without = round(200 * (1 - row["warned"]))
            total += without
            held += round(row["measured"] * without)
    assert total > 2000
    assert abs(held / total - STATED) < 3 * math.sqrt(STATED * (1 - STATED) / total) + 0.005


def test_few_intervals_miss_without_a_warning(rows):
    for row in rows:
        assert row["missed"] < 0.07 + 3 * math.sqrt(0.07 * 0.93 / 200), row
        assert row["missed"] == pytest.approx((1 - row["measured"]) * (1 - row["warned"]))


def test_the_means_are_those_of_what_is_drawn():
    for case in cases():
        drawn = case.draw(np.random.default_rng(3), 200_000)
        assert abs(drawn.mean() - case.mean) < 5 * drawn.std() / math.sqrt(len(drawn)), case.name


def test_rows_are_complete_and_the_same_for_a_seed():
    few = trace_coverage(replicates=4, seed=2)
    assert few == trace_coverage(replicates=4, seed=2)
    assert [row["name"] for row in few] == [case.name for case in cases()]
    assert len({row["name"] for row in few}) == len(few)
    for row in few:
        assert set(row) == {"name", "stated", "measured", "standard_error", "warned", "missed", "inputs"}
