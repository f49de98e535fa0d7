"""The time that a launch is expected to take."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.sweep import make_plan
from raysweep.sweep.estimate import END, RUN, SHARE, START, Cost, History, Span, launch_seconds
from raysweep.sweep.learnt import Learnt, covered, crowding, of_storage
from raysweep.sweep.provenance import save_launch
from raysweep.sweep.record_heads import Brief
from raysweep.sweep.records import checkpoint_name, evaluation_name, parse_name
from raysweep.sweep.resources import Resources
from raysweep.sweep.survey import RunRecords, survey
from raysweep.sweep.timing import measure

MEASURED = (
    tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}, held_out_loss: {sentences: 32}}\n" + tiny.AXES
)


def pace(sweep: Any, spec: Any, step: float) -> float:
    """Return the operations a second of training."""
    words = spec.pretrain.batch_size * 4
    return float(6 * spec.model.parameters(sweep.language(spec)) * words / step)


def forward(sweep: Any, spec: Any) -> float:
    return float(2 * spec.model.parameters(sweep.language(spec)) * 4)


def launched(directory: Path, **facts: Any) -> None:
    save_launch(directory, {"time": 1000.0, "pid": 1, "cpus": 2, **facts})


def test_an_evaluation_that_was_never_timed_takes_its_operations(load: Any) -> None:
    sweep = load(MEASURED)
    plan = make_plan(sweep, step_seconds={spec.run_id: 0.25 for spec in sweep.runs})
    for run in plan.runs:
        rate = SHARE * pace(sweep, run.spec, 0.25)
        excess, held_out = 64 * 4 * forward(sweep, run.spec) / rate, 32 * forward(sweep, run.spec) / rate
        assert run.cost.evaluations == pytest.approx({"excess_loss": excess, "held_out_loss": held_out})
        assert run.cost.training == pytest.approx(25.0)
        assert run.cost.seconds == pytest.approx(25.0 + 2 * (excess + held_out))
        assert run.cost.not_counted == ()


def test_a_trace_to_a_target_takes_from_its_first_look_to_all_its_inputs(load: Any) -> None:
    trace = "evaluate: {trace: {inputs: 8192, shard_size: 512, target_rse: 0.05}}\n"
    sweep = load(tiny.HEAD + trace)
    [run] = make_plan(sweep, step_seconds={spec.run_id: 0.25 for spec in sweep.runs}).runs
    one = 3 * forward(sweep, run.spec) / (SHARE * pace(sweep, run.spec, 0.25))
    assert run.cost.evaluations == pytest.approx({"trace": 4096 * one})
    assert run.cost.span == pytest.approx((25 + 2 * 2048 * one, 25 + 2 * 8192 * one))


def test_what_a_kind_took_tells_of_other_models(load: Any) -> None:
    sweep = load(MEASURED)
    done, *_, other = sweep.runs
    assert done.model != other.model
    tiny.finish(sweep.ledger().run(done), done)
    plan = make_plan(sweep, step_seconds={spec.run_id: 0.25 for spec in sweep.runs[1:]})
    # Half a second a step, and two seconds an evaluation.
    share = 64 * 4 * forward(sweep, done) / 2.0 / pace(sweep, done, 0.5)
    expected = 64 * 4 * forward(sweep, other) / (share * pace(sweep, other, 0.25))
    assert plan.runs[-1].cost.evaluations["excess_loss"] == pytest.approx(expected)
    # The same model takes what it took.
    assert plan.runs[1].cost.evaluations == {"excess_loss": 2.0, "held_out_loss": 2.0}


def test_what_other_settings_took_is_not_expected_again(load: Any) -> None:
    sweep = load(MEASURED)
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    changed = load(MEASURED.replace("sentences: 64", "sentences: 6400"))
    run = make_plan(changed).runs[0]
    assert set(run.cost.evaluations) == {"excess_loss"}
    expected = 6400 * 4 * forward(changed, run.spec) / (SHARE * pace(changed, run.spec, 0.5))
    assert run.cost.evaluations["excess_loss"] == pytest.approx(expected)


def test_averaged_weights_are_stored_too(load: Any) -> None:
    for averaged, each in (("", 12), (", ema: 0.9", 16)):
        sweep = load(MEASURED.replace("kind: adamw", f"kind: adamw{averaged}"))
        [run, *_] = make_plan(sweep).runs
        assert run.cost.bytes == 2 * each * run.spec.model.parameters(sweep.language(run.spec))


def test_launches_of_a_storage_teach_one_another(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load(MEASURED)
    storage, host = sweep.directory.parent, socket.gethostname()
    told = {"host": host, "start": 50.0, "shares": {"excess_loss": 0.25, "held_out_loss": "many"}}
    launched(storage / "other", learnt=told)
    launched(storage / "elsewhere", learnt={"host": "far", "start": 1.0, "shares": {}})
    launched(storage / "silent")
    (storage / "broken" / "launches").mkdir(parents=True)
    (storage / "broken" / "launches" / "a.json").write_text("[")
    assert of_storage(sweep.directory) == Learnt(start=50.0, shares={"excess_loss": 0.25})
    plan = make_plan(sweep, step_seconds={spec.run_id: 0.25 for spec in sweep.runs}, concurrency=2)
    run = plan.runs[0]
    expected = 64 * 4 * forward(sweep, run.spec) / (0.25 * pace(sweep, run.spec, 0.25))
    assert run.cost.evaluations["excess_loss"] == pytest.approx(expected)
    assert plan.start == 50.0
    assert plan.wall_span == launch_seconds((run.cost for run in plan.runs), slots=2, start=50.0)
    # Its own latest launch comes first, and the least start counts.
    launched(sweep.directory, learnt={"host": host, "start": 60.0, "shares": {"excess_loss": 0.5}})
    assert of_storage(sweep.directory) == Learnt(start=50.0, shares={"excess_loss": 0.5})
    # What very small work took tells little of other work.
    launched(sweep.directory, learnt={"host": host, "start": 20.0, "shares": {"excess_loss": 40.0}})
    assert of_storage(sweep.directory).start == 20.0
    assert History(sweep, {}, {}, of_storage(sweep.directory)).shares == {"excess_loss": 4 * SHARE}


def test_only_the_newest_sweeps_of_a_storage_are_read(load: Any) -> None:
    sweep = load()
    for k in range(12):
        folder = sweep.directory.parent / f"other{k}"
        launched(folder, learnt=Learnt(shares={f"kind{k}": 0.5}).encode())
        os.utime(folder / "launches", (k, k))
    assert set(of_storage(sweep.directory).shares) == {f"kind{k}" for k in range(4, 12)}


def test_a_history_tells_what_it_learns(load: Any) -> None:
    sweep = load(MEASURED)
    done = sweep.runs[0]
    launched(sweep.directory, time=0.0)
    run = sweep.ledger().run(done)
    # A training of 20 seconds, up to second 45.
    run.commit(tiny.checkpoint(run, 50, seconds=20.0).model_copy(update={"time": 45.0}))
    history = History(sweep, survey(sweep.ledger(), sweep.runs, verify=True), {})
    assert json.loads(json.dumps(history.tells().encode()))["shares"] == {}
    assert history.tells().start == pytest.approx(30.0)  # a record keeps its first times: those of second 50
    tiny.finish(run, done)
    history = History(sweep, survey(sweep.ledger(), sweep.runs, verify=True), {})
    assert history.tells().shares == pytest.approx(
        {
            "excess_loss": 64 * 4 * forward(sweep, done) / 2.0 / pace(sweep, done, history.own[done.run_id]),
            "held_out_loss": 32 * forward(sweep, done) / 2.0 / pace(sweep, done, history.own[done.run_id]),
        }
    )


def test_seconds_that_many_shared_are_fewer_alone(load: Any) -> None:
    sweep = load()
    told = [
        (checkpoint_name(50), Brief(step=50, seconds=10.0, time=10.0)),
        (checkpoint_name(100), Brief(step=100, seconds=20.0, time=10.0)),
        (evaluation_name(100, "counted", "0" * 64), Brief(step=100, seconds=6.0, time=8.0)),
    ]
    held = RunRecords(read=lambda: [(parsed, brief) for name, brief in told if (parsed := parse_name(name))])
    assert held.training == [(0.0, 10.0), (0.0, 10.0)]
    assert held.measuring == [(2.0, 8.0)]
    assert covered([*held.training, *held.measuring]) == 10.0
    assert crowding(sweep.directory, [held], Resources()) == 1.0, "no launch tells of its machine"
    launched(sweep.directory)
    assert crowding(sweep.directory, [held], Resources()) == pytest.approx(1.3)
    assert crowding(sweep.directory, [held], Resources(workers=9)) == 2.0
    assert crowding(sweep.directory, [held], Resources(per_worker={"CPU": 0.5})) == 1.0
    assert crowding(sweep.directory, [RunRecords()], Resources()) == 1.0
    launched(sweep.directory, time=2000.0, cpus=None)
    assert crowding(sweep.directory, [held], Resources()) == 1.0


def test_recorded_seconds_are_those_of_an_idle_processor(load: Any) -> None:
    sweep = load()
    for spec in sweep.runs[:2]:
        run = sweep.ledger().run(spec)
        tiny.checkpoint(run, 100, seconds=50.0)
    held = survey(sweep.ledger(), sweep.runs, verify=True)
    assert {tuple(records.training) for records in held.values()} == {((50.0, 100.0),)}
    launched(sweep.directory, cpus=1)
    assert set(History(sweep, held, {}).own.values()) == {0.25}


@pytest.mark.parametrize("busy", [1.0, 0.25])
def test_what_took_long_under_load_is_not_expected_again(load: Any, busy: float) -> None:
    """Of work on one processor, its processor time tells; where several have a part, the clock alone does."""

    def history(*overrides: str) -> History:
        sweep = load(MEASURED, *overrides)
        done = sweep.runs[0]
        run = sweep.ledger().run(done)
        for step in done.milestones:
            tiny.checkpoint(run, step, seconds=0.1 * step / busy, busy=busy)
            for evaluation in done.evaluations.values():
                run.record_evaluation(
                    step, evaluation, tiny.measured(float(step)), seconds=2.0 / busy, cpu_seconds=2.0
                )
        return History(sweep, survey(sweep.ledger(), sweep.runs, verify=True), {})

    alone, workers = history(), history("resources.workers=2")
    assert list(alone.own.values()) == pytest.approx([0.1])
    assert list(alone.alike.values()) == pytest.approx([0.1])
    assert set(alone.evaluations.values()) == {2.0}
    assert list(workers.own.values()) == pytest.approx([0.1 / busy])
    assert set(workers.evaluations.values()) == {2.0}
    threads = history("resources.evaluate={CPU: 4}")
    assert set(threads.evaluations.values()) == {2.0 / busy}
    assert list(history("resources.per_worker={GPU: 1}").own.values()) == pytest.approx([0.1 / busy])


def test_the_hours_of_a_launch_count_its_start_and_end(load: Any) -> None:
    sweep = load(MEASURED)
    plan = make_plan(sweep, step_seconds={spec.run_id: 0.001 for spec in sweep.runs}, concurrency=2)
    assert plan.work_seconds is not None
    assert plan.wall_span is not None
    besides = 3600 * plan.hours["CPU"] - plan.work_seconds
    # Start and end keep more than one processor busy, and each run takes something.
    assert besides == pytest.approx(1.4 * (26.5 + 13.0) + 2.6 * len(sweep.runs))
    assert replace(plan, start=50.0).hours["CPU"] > plan.hours["CPU"]
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    assert make_plan(sweep).hours == {"CPU": 0.0}


def test_a_launch_takes_its_start_its_work_and_a_last_run() -> None:
    cost = Cost(100.0, training=60.0, span=Span(90.0, 120.0))
    found = launch_seconds([cost] * 3, slots=2)
    assert found is not None
    # Shared to the end, or one run left alone at the end.
    assert found.least == pytest.approx(START.least + END.least + 0.9 * 1.5 * (90 + RUN.least))
    assert found.most == pytest.approx(START.most + END.most + 1.25 * 2 * (120 + RUN.most))
    # The training of a single run is no work for two.
    alone = launch_seconds([Cost(100.0, training=100.0, span=Span(100.0, 100.0))], slots=2)
    assert alone is not None
    assert alone.least >= 0.9 * 100
    known = launch_seconds([cost] * 3, slots=2, start=100.0)
    assert known is not None
    assert known.least == pytest.approx(found.least - START.least + 80.0)
    assert launch_seconds([cost, Cost(None, training=None)], slots=2) is None


def test_processors_of_another_sort_tell_nothing_of_an_evaluation(load: Any) -> None:
    sweep = load(MEASURED + "resources: {per_worker: {CPU: 1, GPU: 1}}\n")
    timed = {spec.run_id: 0.25 for spec in sweep.runs}
    plan = make_plan(sweep, step_seconds=timed, concurrency=2)
    assert plan.not_counted == ("excess_loss", "held_out_loss")
    assert plan.hours == {"GPU": pytest.approx(100 / 3600)}
    assert "without excess_loss, held_out_loss, whose cost is not known, 0.028 GPU-hours" in str(plan)
    both = load(MEASURED + "resources: {per_worker: {GPU: 1}, evaluate: {GPU: 0.5}}\n")
    plan = make_plan(both, step_seconds=timed, concurrency=2)
    assert plan.not_counted == ()
    assert plan.work_seconds is not None
    assert plan.hours == {"GPU": pytest.approx((100 + (plan.work_seconds - 100) / 2) / 3600)}


def test_what_is_not_trained_is_measured_at_the_pace_of_others(load: Any) -> None:
    text = (
        tiny.HEAD + "evaluate: {probe: {train: 64, test: 64}}\ninclude: [{algorithm: {kind: lookup_table}}]\n"
    )
    sweep = load(text)
    trained, table = sweep.runs
    plan = make_plan(sweep, step_seconds={trained.run_id: 0.25})
    assert 0 < plan.runs[1].cost.evaluations["probe"] < plan.runs[0].cost.evaluations["probe"]
    alone = make_plan(load(text, "include=null", "algorithm={kind: lookup_table}"))
    assert alone.runs[0].spec.algorithm == table.algorithm
    assert alone.not_counted == ()
    found = alone.runs[0].cost
    assert found.seconds == found.evaluations["probe"] > 0
    # Nothing here tells of the pace, so the range is wide.
    assert found.span == pytest.approx((found.seconds / 4, 4 * found.seconds))
    gpu = make_plan(
        load(text, "include=null", "algorithm={kind: lookup_table}", "resources.evaluate={GPU: 1}")
    )
    assert gpu.not_counted == ("probe",)


def test_runs_that_are_alike_are_looked_at_once(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load(tiny.HEAD + "axes: {seed: [0, 1, 2, 3], algorithm.lr: [1e-3, 2e-3]}\n")
    [kind] = {type(spec.model) for spec in sweep.runs}
    own, counted = kind.parameters, list[Any]()
    monkeypatch.setattr(kind, "parameters", lambda *given: counted.append(given) or own(*given))
    found = measure(sweep, sweep.runs, steps=1)
    assert len(counted) == 1
    assert set(found) == {spec.run_id for spec in sweep.runs}
    assert len(set(found.values())) == 1
