"""Runs that a Tuner made: in every table, beside those of the file, and in no launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.report.best import best_tables
from raysweep.sweep import make_plan
from raysweep.sweep.made import made, record_made, with_made
from raysweep.sweep.run_state import run_states
from raysweep.sweep.stored import load_stored, save_sweep
from raysweep.sweep.tidy import tidy


@pytest.fixture
def sweep(load: Any) -> Any:
    """A sweep of a run, and two more that a Tuner made: one to its end, one that was stopped at step 50."""
    found = load(tiny.BASE)
    save_sweep(found)
    for rate, last in ((0.5, 100), (0.25, 50)):
        spec = found.variant({"algorithm.lr": rate})
        record_made(found.directory, spec, metric="count", mode="max")
        run = found.ledger().run(spec)
        for step in (50, 100):
            if step <= last:
                tiny.checkpoint(run, step)
                for evaluation in spec.evaluations.values():
                    run.record_evaluation(step, evaluation, tiny.measured(rate * step), seconds=1.0)
        record_made(
            found.directory, spec, metric="count", mode="max", by="AsyncHyperBandScheduler", step=last
        )
    return found


def test_tables_show_them_and_no_plan_works_on_them(sweep: Any) -> None:
    for known in (with_made(sweep), with_made(load_stored(sweep.directory))):
        frame = tidy(known.ledger(), known)
        counts = frame[frame["metric"] == "count"].groupby(["algorithm.lr", "step"])["value"].first()
        assert counts.to_dict() == {(0.5, 50): 25.0, (0.5, 100): 50.0, (0.25, 50): 12.5}
        states = {state.label: (state.state, state.step) for state in run_states(known)}
        assert states["lr 0.5"] == ("done", 100)
        assert states["lr 0.25"] == ("stopped", 50)
        assert len(known.runs) == 3
    plan = make_plan(sweep)
    assert [run.run_id for run in plan.runs] == [sweep.runs[0].run_id]
    assert plan.strays == ()


def test_they_have_a_table_of_the_best(sweep: Any) -> None:
    [table] = best_tables(sweep)
    assert table.title == "Tuner: samples by count, the largest first; 2 of 2 have ended"
    assert table.headings == ["sample", "lr", "count", "step", "state"]
    assert [(row[1], row[3], row[4]) for row in table.rows] == [
        ("0.5", "100", "done"),
        ("0.25", "50", "stopped by AsyncHyperBandScheduler at step 50"),
    ]


def test_a_run_of_the_file_is_shown_once(sweep: Any) -> None:
    record_made(sweep.directory, sweep.runs[0], metric=None, mode=None)
    assert len(made(sweep.directory)) == 3
    assert len(with_made(sweep).runs) == 3
    assert len(best_tables(sweep)) == 1  # there is none for a Tuner that was told no metric


def test_a_record_that_is_damaged_or_of_an_unknown_kind_is_left_out(sweep: Any) -> None:
    first, second = sorted(Path(sweep.directory, "search", "tuner").glob("*.json"))
    first.write_text("{")
    second.write_text(second.read_text().replace('"adamw"', '"gone"'))
    assert with_made(sweep).runs == sweep.runs
