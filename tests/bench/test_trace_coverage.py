"""The committed simulation: intervals without a warning hold what they state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raysweep.bench.statistics.simulation import Outcomes
from raysweep.bench.statistics.trace import MOST_WARNED, cases, trace_simulations

STATED, REPLICATES = 0.95, 200


@pytest.fixture(scope="module")
def drawn() -> dict[str, Outcomes]:
    return {one.key: one.drawn(0, REPLICATES, seed=1) for one in trace_simulations()}


def test_intervals_without_a_warning_cover_what_they_state(drawn: dict[str, Outcomes]) -> None:
    held, total = 0.0, 0
    for name, found in drawn.items():
        sure = found["warned"] == 0
        # Where many samples are warned of, those without a warning are the ones that lack the tail.
        if 1 - sure.mean() < MOST_WARNED:
            inside = found["held"][sure]
            error = math.sqrt((inside.sum() + 1) * (len(inside) - inside.sum() + 1) / (len(inside) + 2) ** 3)
            assert abs(inside.mean() - STATED) < 0.02 + 3 * error, name
            total += len(inside)
            held += inside.sum()
    assert total > 2000
    assert abs(held / total - STATED) < 3 * math.sqrt(STATED * (1 - STATED) / total) + 0.005


def test_few_intervals_miss_without_a_warning(drawn: dict[str, Outcomes]) -> None:
    for name, found in drawn.items():
        missed = ((found["held"] == 0) & (found["warned"] == 0)).mean()
        assert missed < 0.07 + 3 * math.sqrt(0.07 * 0.93 / REPLICATES), name


def test_the_means_are_those_of_what_is_drawn() -> None:
    for case in cases():
        drawn = case.draw(np.random.default_rng(3), 200_000)
        assert abs(drawn.mean() - case.mean) < 5 * drawn.std() / math.sqrt(len(drawn)), case.name


def test_figures_count_what_was_drawn(drawn: dict[str, Outcomes]) -> None:
    assert len(drawn) == len(cases())
    for one in trace_simulations():
        found = drawn[one.key]
        figures = {figure.name: figure for figure in one.figures(found)}
        missed = figures["trace: missed without a warning"].value
        warned = figures["trace: with a warning"].value
        inside = figures["trace: coverage without a warning"].value
        assert missed == pytest.approx((1 - inside) * (1 - warned))
        assert figures["trace: inputs"].value == found["inputs"].mean()
