"""Runs that a Tuner made: in every table, beside those of the file, and in no launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysweep as rs
from helpers import tiny_sweeps as tiny
from raysweep.errors import ConfigError
from raysweep.report.best import best_tables
from raysweep.sweep import make_plan
from raysweep.sweep.made import made, record_made, with_made
from raysweep.sweep.records import CANCELLED
from raysweep.sweep.run_state import run_states
from raysweep.sweep.stored import load_stored, save_sweep, select
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


def test_python_has_the_samples_the_best_first(sweep: Any) -> None:
    results = rs.open(sweep.name, storage=sweep.storage)
    assert set(results.to_frame()["run_id"]) == {spec.run_id for spec in with_made(sweep).runs[1:]}
    found = results.samples()
    assert found.columns.tolist() == [
        *("search", "metric", "mode", "sample", "algorithm.lr"),
        *("value", "standard_error", "step", "state", "run_ids"),
    ]
    columns = ["search", "metric", "mode", "algorithm.lr", "value", "step", "state"]
    assert found[columns].values.tolist() == [
        ["Tuner", "count", "max", 0.5, 50.0, 100, "done"],
        ["Tuner", "count", "max", 0.25, 12.5, 50, "stopped"],
    ]
    assert found["run_ids"].tolist() == [[spec.run_id] for spec in with_made(sweep).runs[1:]]


def test_a_sweep_without_a_search_has_no_samples(load: Any) -> None:
    plain = load(tiny.BASE)
    save_sweep(plain)
    with pytest.raises(ConfigError, match="has no samples: its file has no search"):
        rs.open(plain.name, storage=plain.storage).samples()


def test_a_drawn_number_is_short_in_tables_and_found_in_both_spellings(load: Any) -> None:
    found = load(tiny.BASE)
    spec = found.variant({"algorithm.lr": 0.0012345678901234567})
    record_made(found.directory, spec, metric="count", mode="max")
    [row] = best_tables(found)[0].rows
    assert row[1] == "0.001235"
    shown = with_made(found)
    assert run_states(shown)[-1].label == "lr 0.001235"
    for text in ("lr 0.001235", "lr 1.235e-3", "lr 0.0012345678901234567"):
        assert [run.run_id for run in select(shown, [text]).runs] == [spec.run_id]


def test_a_variant_has_the_workers_of_its_sweep(load: Any) -> None:
    sweep = load(tiny.BASE + "resources: {workers: 4}\n")
    message = "pretrain.batch_size: 3 sentences do not give each of 4 workers one; use at least 4"
    with pytest.raises(ConfigError, match=message):
        sweep.variant({"pretrain.batch_size": 3})
    assert sweep.variant({"pretrain.batch_size": 4}).pretrain.batch_size == 4


def test_a_cancelled_sample_is_cancelled_and_a_failed_one_failed(load: Any) -> None:
    found = load(tiny.BASE)
    for rate, error in ((0.5, CANCELLED), (0.25, "ValueError")):
        spec = found.variant({"algorithm.lr": rate})
        record_made(found.directory, spec, metric="count", mode="max")
        found.ledger().run(spec).record_failure("why", error=error)
    table = best_tables(found)[0]
    assert [row[-1] for row in table.rows] == ["cancelled", "failed"]
    assert table.title.endswith("; 2 of 2 have ended")


def test_a_run_of_the_file_is_shown_once(sweep: Any) -> None:
    record_made(sweep.directory, sweep.runs[0], metric=None, mode=None)
    assert len(made(sweep.directory)) == 3
    assert len(with_made(sweep).runs) == 3
    assert len(best_tables(sweep)) == 1  # there is none for a Tuner that was told no metric


@pytest.mark.parametrize("other", [("trace", "min"), (None, None)])
def test_a_run_that_two_searches_have_sampled_is_in_both(sweep: Any, other: tuple[Any, Any]) -> None:
    before, [first] = made(sweep.directory), best_tables(sweep)
    worse = sweep.variant({"algorithm.lr": 0.25})
    for step in (None, 100):  # it begins, and goes on to the end of what the first has stopped
        record_made(sweep.directory, worse, metric=other[0], mode=other[1], step=step)
        tables = best_tables(sweep)
        assert tables[0] == first
        assert [table.title.partition(";")[0] for table in tables[1:]] == (
            ["Tuner: samples by trace, the least first"] if other[0] else []
        )
        assert made(sweep.directory)[:2] == before
        assert [(spec.run_id, spec.stopped) for spec in with_made(sweep).runs[1:]] == [
            (one.spec.run_id, None) for one in before
        ]
    # One that stops a run earlier takes nothing from a search that let it go on.
    better = sweep.variant({"algorithm.lr": 0.5})
    record_made(sweep.directory, better, metric=other[0], mode=other[1], by="Median", step=50)
    assert best_tables(sweep)[0] == first
    assert [spec.stopped for spec in with_made(sweep).runs] == [None, None, None]


def test_a_run_that_two_searches_have_stopped_ends_at_the_later_stop(sweep: Any) -> None:
    for metric, step in (("trace", 30), ("probe/A", 70)):
        worse = sweep.variant({"algorithm.lr": 0.25})
        record_made(sweep.directory, worse, metric=metric, mode="max", by="Median", step=step)
        assert [s.stopped.step for s in with_made(sweep).runs if s.stopped is not None] == [max(50, step)]


@pytest.mark.parametrize(
    ("kept", "value"), [((30,), None), ((50,), None), ((50, 70), 50), ((50,), 50), ((), None)]
)
def test_an_unfinished_sample_has_the_state_and_the_step_of_its_run(
    load: Any, kept: tuple[int, ...], value: int | None
) -> None:
    sweep = load(tiny.BASE)
    spec = sweep.variant({"algorithm.lr": 0.5})
    run = sweep.ledger().run(spec)
    for step in kept:
        tiny.checkpoint(run, step, milestone=step == 50)
    for evaluation in spec.evaluations.values():
        if value is not None:
            run.record_evaluation(value, evaluation, tiny.measured(), seconds=1.0)
    record_made(sweep.directory, spec, metric="count", mode="max")
    row = run_states(with_made(sweep))[-1]
    assert (row.state, row.step) == (("unfinished", max(kept)) if kept else ("queued", 0))
    [[*_, measured_at, state]] = best_tables(sweep)[0].rows
    assert measured_at == ("" if value is None else str(value))
    assert state == (row.state if row.step == (value or 0) else f"{row.state} at step {row.step}")


def test_a_record_that_is_damaged_or_of_an_unknown_kind_is_left_out(sweep: Any) -> None:
    first, second = sorted(Path(sweep.directory, "search", "tuner").rglob("*.json"))
    first.write_text("{")
    second.write_text(second.read_text().replace('"adamw"', '"gone"'))
    assert with_made(sweep).runs == sweep.runs
