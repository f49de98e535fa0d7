"""The simulation of coverage and level: its populations, its counts, and a record of few sweeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raysweep.bench import statistics
from raysweep.bench.record import Goal, load
from raysweep.bench.statistics import associations, goals, population, powerlaws, treatments
from raysweep.bench.table import markdown
from raysweep.cli.app import run
from raysweep.report.association import Estimate


def estimates(low: list[float], high: list[float], p: list[float]) -> Estimate:
    nothing = np.zeros(len(low))
    return Estimate(
        value=nothing, low=np.array(low), high=np.array(high), p=np.array(p), standard_error=nothing,
        dof=nothing, clusters=9,
    )  # fmt: skip


def test_shares_count_what_has_no_interval() -> None:
    found = [estimates([-1, 0.5, np.nan], [1, 2, np.nan], [0.5, 0.01, np.nan]), estimates([0.2], [3], [0.04])]
    assert goals.rejected(found) == 2 / 4
    assert goals.covered(found, 0.0) == (pytest.approx(1 / 3), 3 / 4)
    assert goals.covered([estimates([np.nan], [np.nan], [np.nan])], 0.0) == (0.0, 0.0)
    assert list(goals.batches(2 * goals.BATCH + 1)) == [goals.BATCH, goals.BATCH, 1]


def test_a_goal_may_have_two_ends() -> None:
    goal = Goal(sense="within", value=0.93, upto=0.97)
    assert [goal.met(value) for value in (0.92, 0.93, 0.95, 0.98)] == [False, True, True, False]


def test_populations_have_the_variances_and_correlations_that_they_state() -> None:
    design = population.Design(40, 30, 5)
    drawn = population.draw(design, 20, -0.7, np.random.default_rng(0))
    x, y = (values.reshape(20, 40, 30, 5) for values in drawn.own)
    assert x.var() == pytest.approx(sum(population.VARIANCES), rel=0.1)
    inside = x - x.mean(axis=3, keepdims=True)
    # A mean of five correlated values keeps a part of their variance.
    assert 0.5 < inside.var() / population.VARIANCES[2] < 0.9
    assert np.corrcoef(x.ravel(), y.ravel())[0, 1] == pytest.approx(-0.7, abs=0.05)
    next_to = np.corrcoef(inside[..., 1].ravel(), inside[..., 2].ravel())[0, 1]
    apart = np.corrcoef(inside[..., 0].ravel(), inside[..., 4].ravel())[0, 1]
    assert next_to > apart
    assert design.run.tolist()[:6] == [0] * 5 + [1]
    assert set(design.configuration[:150]) == {0}
    again = population.draw(design, 20, -0.7, np.random.default_rng(0))
    assert np.array_equal(again.x, drawn.x)


def test_the_true_correlation_is_near_that_of_the_parts() -> None:
    many = population.Design(2000, 1, 4)
    found = associations.true_correlation(many, np.random.default_rng(0))
    assert -0.75 < found < -0.6


def test_a_made_up_sweep_has_the_law_that_it_states() -> None:
    design = powerlaws.Design(3, 400, (500, 1000, 4000), 0.8, 0.6)
    table, scale = powerlaws.drawn(design, np.random.default_rng(0))
    logs = np.log(table["value"]).groupby([table["model"], table["step"]]).mean().unstack()
    assert np.exp(logs[4000]).to_numpy() == pytest.approx(scale, rel=0.02)
    truth = 0.6 + 0.4 * 4**0.8
    assert np.exp(logs[1000] - logs[4000]).to_numpy() == pytest.approx(np.full(3, truth), rel=0.02)
    spread = np.log(table[table["step"] == 4000]["value"]).groupby(table["model"]).std()
    assert spread.to_numpy() == pytest.approx(np.full(3, np.hypot(0.05, 0.01)), rel=0.15)


def test_a_quick_record_has_every_design_and_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "QUICK", 8)
    monkeypatch.setattr(associations, "MANY", 200)
    file = tmp_path / "record.json"
    assert run(["bench", "statistics", "--quick", "--output", str(file)]) == 0
    record = load(file)
    assert [case.key for case in record.cases] == [
        *associations.DESIGNS,
        *treatments.DESIGNS,
        *powerlaws.DESIGNS,
    ]
    text = markdown(record)
    assert "| level, smooth |" in text
    assert "0.93–0.97" in text
    figures = {figure.name: figure for figure in record.cases[0].figures}
    assert 0 <= figures["coverage, smooth"].value <= 1
    assert figures["replicates"].value == 8
