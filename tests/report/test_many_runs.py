"""Pages of many runs: they draw a sample of whole groups, and their numbers are those of all runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers import tiny_sweeps as tiny
from raysweep.evaluation.metric import error_key
from raysweep.report import Content, contest, data, match, render, write_report
from raysweep.report.claims import verdicts
from raysweep.report.columns import Columns, loss_of
from raysweep.report.contest import r_squared
from raysweep.report.data import measurements
from raysweep.report.sample import of_whole_groups
from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep.claims import Questions
from raysweep.sweep.tidy import FIXED, tidy

Table = Callable[..., pd.DataFrame]


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six runs are many, and a few checkpoints are all that is drawn."""
    monkeypatch.setattr(data, "MANY", 5)
    monkeypatch.setattr(data, "DRAWN", 24)
    monkeypatch.setattr(data, "LEAST_DRAWN", 1)


def by_loops(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the checkpoints of a tidy table, row after row."""
    axes = [column for column in frame.columns if column not in FIXED]
    heads = ["run_id", "model", "algorithm", "seed", "parameters", *axes]
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for row in frame[frame["model"].notna()].to_dict(orient="records"):
        cell = cells.setdefault((row["run_id"], int(row["step"])), {name: row[name] for name in heads})
        cell["step"] = int(row["step"])
        cell[row["metric"]] = row["value"]
        cell[error_key(row["metric"])] = row["standard_error"]
    found = pd.DataFrame(list(cells.values()))
    order = ["parameters", "model", "run_id", "step"]
    return found.sort_values(order, kind="stable", ignore_index=True)


def test_the_checkpoints_are_those_of_a_loop(table: Table) -> None:
    frame = table(rates=(0.001, 0.01)).sample(frac=0.8, random_state=1)
    found = measurements(frame).checkpoints.sort_values(
        ["parameters", "model", "run_id", "step"], kind="stable", ignore_index=True
    )
    wanted = by_loops(frame)
    for name in wanted:
        if name.endswith("_se") and name not in found:
            continue
        pd.testing.assert_series_equal(found[name], wanted[name], check_dtype=name not in ("parameters",))
    assert set(found) - {"variant"} >= set(wanted)


def test_figures_draw_whole_variants_of_many_runs(table: Table, many: None) -> None:
    measured = measurements(table(rates=(0.001, 0.003, 0.01)))
    drawn = measured.drawn
    assert drawn.sample
    assert drawn.variants == measured.variants[:1]
    assert drawn.sizes == measured.sizes
    of_variant = measured.checkpoints["variant"] == drawn.variants[0]
    wanted = measured.checkpoints[of_variant].reset_index(drop=True)
    pd.testing.assert_frame_equal(drawn.checkpoints, wanted)


def test_few_runs_are_all_drawn(table: Table) -> None:
    measured = measurements(table())
    assert measured.drawn is measured


def test_a_page_of_many_runs_shows_some_and_counts_all(
    table: Table, monkeypatch: pytest.MonkeyPatch, many: None
) -> None:
    frame = table(rates=(0.001, 0.003, 0.01))
    content = Content(name="demo", frame=frame, table="demo.parquet")
    page = render(content)
    assert "The sweep has 18 runs." in page
    assert "6 of them, evenly spaced" in page
    assert '<a href="demo.parquet">demo.parquet</a>, beside this page' in page
    assert 'download="demo.csv' not in page
    found = verdicts(measurements(frame).shortly(), Questions(tolerance=content.tolerance))
    assert found
    for verdict in found:
        assert verdict.outcome in page
        assert re.search(rf"{verdict.runs} run", page)
    monkeypatch.setattr(data, "MANY", 200)
    whole = render(Content(name="demo", frame=frame))
    # What is of all runs is the same on both pages.
    for heading in ("What goes with accuracy", "At the last milestone", "Tasks"):
        one, other = (re.search(rf"<h2>{heading}</h2>.*?</table>", text, re.DOTALL) for text in (page, whole))
        assert one is not None
        assert other is not None
        assert one[0] == other[0], heading


def test_the_table_of_many_runs_lies_beside_their_page(tmp_path: Path, many: None) -> None:
    (tmp_path / "tiny.yaml").write_text(
        tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\naxes: {seed: [0, 1, 2, 3, 4, 5, 6]}\n"
    )
    sweep: Sweep = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "results")
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    frame = tidy(sweep.ledger(), sweep)
    page = write_report(sweep, frame, tmp_path / "out" / "report.html")
    assert '<a href="report.parquet">' in page.read_text()
    stored = pd.read_parquet(page.with_suffix(".parquet"))
    pd.testing.assert_frame_equal(stored, frame, check_dtype=False)
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "report.parquet"]


def test_pairs_of_many_checkpoints_are_those_of_a_sample(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measurements(table(rates=(0.001, 0.003, 0.01)))
    loss = loss_of(measured)
    assert loss is not None
    columns = Columns(measured, measured.shown("accuracy")[:1], loss, None)
    every = columns.pairs(0.05, {}, columns.configurations)
    assert len(every.rows) == every.among == 72
    assert "among" not in every.named(0.05, loss)
    monkeypatch.setattr("raysweep.report.columns.PAIRED", 50)
    monkeypatch.setattr("raysweep.report.columns.SAMPLE", 40)
    some = columns.pairs(0.05, {}, columns.runs)
    # Ten runs of four checkpoints.
    assert len(some.rows) == 40
    assert (np.unique(columns.runs[some.rows], return_counts=True)[1] == 4).all()
    assert (some.pairs == every.pairs[np.ix_(some.rows, some.rows)]).all()
    assert some.named(0.05, loss).endswith(", among 40 of 72 checkpoints")


def test_samples_are_evenly_spaced_and_of_whole_groups() -> None:
    variant, run = np.repeat(np.arange(4), 25), np.repeat(np.arange(20), 5)
    assert np.unique(variant[of_whole_groups(50, variant, run, least=2)]).tolist() == [0, 3]
    assert np.unique(run[of_whole_groups(50, variant, run, least=3)]).tolist() == [
        0, 2, 4, 6, 8, 11, 13, 15, 17, 19,
    ]  # fmt: skip


def test_predictions_of_many_runs_are_those_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    runs = np.repeat(np.arange(12), rng.integers(1, 6, size=12))
    x = rng.normal(size=len(runs))
    design = np.column_stack([np.ones(len(x)), x, x**2, 2 * x])
    y = x + rng.normal(size=len(x))
    wanted = r_squared(design, y, runs)
    monkeypatch.setattr(contest, "DENSE", 2)
    assert r_squared(design, y, runs) == pytest.approx(wanted)


def test_a_match_of_many_checkpoints_says_how_many_were_compared(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "results")
    monkeypatch.setattr(match.Draws, "apart", lambda *_: None)
    measured = measurements(table(rates=(0.001, 0.003, 0.01)))
    every = match.matches(sweep, measured, tolerance=0.05, shown=3)
    assert (every.compared, every.among) == (72, 72)
    assert len(every.shown) == 3
    # All pairs, compared one by one, are led by the same ones.
    whole = match.matches(sweep, measured, tolerance=0.05, shown=every.total)
    assert [(one.first, one.second) for one in whole.shown[:3]] == [
        (one.first, one.second) for one in every.shown
    ]
    monkeypatch.setattr(match, "COMPARED", 40)
    some = match.matches(sweep, measured, tolerance=0.05, shown=3)
    assert (some.compared, some.among) == (40, 72)
    assert 0 < some.total < every.total
