"""The contest of predictors, against loops and on data with a known winner."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from helpers.populations import population
from raysweep.evaluation.sharpness import QUANTITIES
from raysweep.evaluation.trace import PART
from raysweep.report.contest import contest, contest_section, r_squared
from raysweep.report.data import measurements
from raysweep.report.statistics import holm
from raysweep.sweep.tidy import cells


def with_measures(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Add a measure that follows the trace with noise, one of noise alone, and a part of the trace."""
    draws = np.random.default_rng(seed)
    rows = []
    for row in frame[frame["metric"] == "trace"].to_dict(orient="records"):
        head = {name: row[name] for name in frame.columns}
        noisy = row["value"] * np.exp(0.3 * draws.normal())
        rows += [
            head | cells(QUANTITIES["sam"].number(noisy, n=9)),
            head | cells(QUANTITIES["weight_norm"].number(float(np.exp(draws.normal())), n=9)),
            head | cells(PART.number(row["value"] / 2, n=9, of={"group": "head"})),
        ]
    return pd.concat([frame, pd.DataFrame(rows).astype(frame.dtypes)], ignore_index=True)


def test_the_true_predictor_wins_and_noise_adds_nothing() -> None:
    frame = with_measures(population(sizes=8, between=1, within=1, noise=0.002))
    loss, *measures = contest(measurements(frame))
    assert loss.name == "excess_loss"
    assert [one.name for one in measures] == ["trace", "sharpness/sam", "sharpness/weight_norm"]
    assert measures[0].gain > 0.2
    assert measures[0].p_corrected < 0.01
    assert measures[2].gain < 0.05
    assert measures[2].p_corrected > 0.05
    assert sorted(one.p_corrected for one in measures) == pytest.approx(sorted(holm([m.p for m in measures])))


def test_r_squared_is_that_of_runs_not_seen() -> None:
    draws = np.random.default_rng(0)
    runs = np.repeat(["a", "b", "c", "d"], 5)
    x = draws.normal(size=20)
    y = 2 * x + draws.normal(size=20)
    design = np.column_stack([np.ones(20), x])
    wrong = spread = 0.0
    for run in "abcd":
        out = runs == run
        slope, intercept = np.polyfit(x[~out], y[~out], 1)
        wrong += sum((y[out] - intercept - slope * x[out]) ** 2)
        spread += sum((y[out] - y[~out].mean()) ** 2)
    assert r_squared(design, y, runs) == pytest.approx(1 - wrong / spread)
    # A value for each run alone predicts nothing of the others.
    own = (runs[:, None] == np.array(list("abcd"))).astype(float)
    assert r_squared(own, y + 10, runs) < 0


def test_all_are_judged_on_the_same_checkpoints() -> None:
    frame = with_measures(population(sizes=4))
    some = frame[~((frame["metric"] == "sharpness/sam") & (frame["step"] == 500))]
    assert {one.checkpoints for one in contest(measurements(some))} == {24}
    few = frame[~((frame["metric"] == "sharpness/sam") & (frame["step"] < 4000))]
    assert [one.checkpoints for one in contest(measurements(few))] == [32] * 3


def test_the_section_has_one_figure_and_one_table() -> None:
    frame = with_measures(population(sizes=6))
    html = contest_section(measurements(frame), "demo")
    assert html.count("<figure>") == html.count("<table") == 1
    assert "Weight norm" in html
    assert html == contest_section(measurements(frame), "demo")
    assert contest_section(measurements(population()), "demo") == ""
    assert contest_section(measurements(population().iloc[:0]), "demo") == ""
