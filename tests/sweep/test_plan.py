"""The plan: what is done, what is not, and why."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import tiny_sweeps as tiny
from raysweep.remote import RemotePath
from raysweep.sweep import evaluation_identity, make_plan, room
from raysweep.sweep.estimate import Cost, Span, launch_seconds
from raysweep.sweep.stored import Launched, save_sweep
from raysweep.sweep.units import duration, size


def why(plan: Any, k: int = 0) -> dict[tuple[int, str | None], tuple[str, str]]:
    return {(i.step, i.evaluation): (i.state, i.reason) for i in plan.runs[k].items}


def wall(plan: Any) -> Span:
    assert plan.wall_span is not None
    assert plan.wall_seconds == pytest.approx(sum(plan.wall_span) / 2)
    found: Span = plan.wall_span
    return found


def at_once(plan: Any, slots: int) -> Span | None:
    return launch_seconds((run.cost for run in plan.to_do), slots=slots)


@pytest.fixture
def sweep(load: Any) -> Any:
    return load()


def test_everything_is_new_at_first(sweep: Any) -> None:
    plan = make_plan(sweep)
    assert plan.counts == {"done": 0, "evaluate": 0, "resume": 0, "new": 4, "blocked": 0, "failed": 0}
    assert not plan.finished
    assert why(plan) == {
        (step, kind): ("new", "not trained yet" if kind is None else "not measured yet")
        for step in (50, 100)
        for kind in (None, "counted")
    }
    assert (plan.runs[0].resume_step, plan.runs[0].train_to, plan.runs[0].train_steps) == (0, 100, 100)
    assert plan.runs[0].missing == ((50, "counted"), (100, "counted"))
    # Planning leaves no trace.
    assert not sweep.directory.exists()


def test_a_finished_sweep_has_nothing_to_do_and_a_new_value_only_its_own_runs(load: Any, sweep: Any) -> None:
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    plan = make_plan(sweep)
    assert plan.finished
    assert plan.counts["done"] == 4
    assert "nothing to train or evaluate" in str(plan)
    wider = make_plan(load(tiny.BASE + tiny.AXES, "axes.seed=[0, 1, 2]"))
    assert [(run.spec.seed, run.state) for run in wider.runs] == [(0, "done"), (1, "done"), (2, "new")] * 2


def test_more_steps_resume(load: Any, sweep: Any) -> None:
    spec = sweep.runs[0]
    tiny.finish(sweep.ledger().run(spec), spec)
    plan = make_plan(load(tiny.BASE + tiny.AXES, "pretrain.steps=300", "pretrain.milestones=[50, 100, 300]"))
    assert plan.runs[0].run_id == spec.run_id
    assert plan.runs[0].state == "resume"
    assert (plan.runs[0].resume_step, plan.runs[0].train_to) == (100, 300)
    assert plan.runs[0].reason == "from step 100: the file asks for 300"
    assert why(plan)[300, None] == ("resume", "not trained yet; from step 100")
    assert why(plan)[100, "counted"] == ("done", "")


def test_a_milestone_between_goes_back(load: Any, sweep: Any) -> None:
    spec = sweep.runs[0]
    tiny.finish(sweep.ledger().run(spec), spec)
    plan = make_plan(load(tiny.BASE + tiny.AXES, "pretrain.milestones=[50, 70, 100]")).runs[0]
    assert (plan.state, plan.resume_step, plan.train_to, plan.missing) == (
        "resume",
        50,
        70,
        ((70, "counted"),),
    )
    assert plan.reason == "from step 50: the file asks for a milestone at 70"


def test_rolling_checkpoints_are_resumed_from(sweep: Any) -> None:
    run = sweep.ledger().run(sweep.runs[0])
    tiny.checkpoint(run, 20, milestone=False)
    plan = make_plan(sweep).runs[0]
    assert (plan.state, plan.resume_step, plan.train_to) == ("resume", 20, 100)
    assert plan.reason == "from step 20: training ended there, before 100"


@pytest.mark.parametrize("step", [20, 50])
def test_what_a_launch_was_killed_at_is_no_change_of_the_file(load: Any, sweep: Any, step: int) -> None:
    """At a milestone as between two; a file that is then extended asks for more."""
    save_sweep(sweep)
    tiny.checkpoint(sweep.ledger().run(sweep.runs[0]), step, milestone=step == 50)
    assert make_plan(sweep).runs[0].reason == f"from step {step}: training ended there, before 100"
    longer = load(tiny.BASE + tiny.AXES, "pretrain.steps=300", "pretrain.milestones=[50, 100, 300]")
    assert make_plan(longer).runs[0].reason == f"from step {step}: the file asks for 300"
    # A launch keeps the longer file before it plans.
    before = Launched(sweep.directory)
    save_sweep(longer)
    assert make_plan(longer, launched=before).runs[0].reason == f"from step {step}: the file asks for 300"
    assert make_plan(longer).runs[0].reason == f"from step {step}: training ended there, before 300"


def test_changed_evaluation_settings_need_no_training(load: Any, sweep: Any) -> None:
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    plan = make_plan(load(tiny.BASE + tiny.AXES, "evaluate.counted.n=4", "evaluate.weighted={}"))
    assert plan.counts["evaluate"] == 4
    assert plan.runs[0].train_steps == 0
    assert why(plan)[50, "counted"] == ("new", "n 3 → 4")
    assert why(plan)[50, "weighted"] == ("new", "not measured yet")
    assert plan.runs[0].reason == (
        "counted: n 3 → 4, at steps 50, 100; weighted: not measured yet, at steps 50, 100"
    )


def test_another_version_of_an_evaluation_is_measured_anew_beside_the_first(
    sweep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    spec = sweep.runs[0]
    run, evaluation = sweep.ledger().run(spec), spec.evaluations["counted"]
    former = evaluation_identity(evaluation)
    run.save_arrays(50, "counted", former, 0, {"count": np.ones(3)})
    assert make_plan(sweep).finished

    monkeypatch.setattr(type(evaluation), "version", 2)
    plan = make_plan(sweep)
    assert plan.counts == {"done": 0, "evaluate": 4, "resume": 0, "new": 0, "blocked": 0, "failed": 0}
    assert plan.runs[0].train_steps == 0
    assert why(plan)[50, "counted"] == ("new", "raysweep measures it in another way now")
    # No shard of the first version is taken for one of the second, and its record stays.
    current = evaluation_identity(evaluation)
    assert run.load_arrays(50, "counted", former, 0) is not None
    assert run.load_arrays(50, "counted", current, 0) is None
    run.record_evaluation(50, evaluation, tiny.measured(7.0), seconds=2.0)
    assert why(make_plan(sweep))[50, "counted"] == ("done", "")
    at = [record for record in run.evaluations() if record.step == 50]
    assert {record.identity: record.metrics[0].value for record in at} == {former: 50.0, current: 7.0}


def test_a_lost_checkpoint_matters_only_where_something_is_to_be_measured(load: Any, sweep: Any) -> None:
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    tiny.finish(run, spec)
    shutil.rmtree(run.checkpoint_directory(100))
    assert make_plan(sweep).runs[0].state == "done"
    plan = make_plan(load(tiny.BASE + tiny.AXES, "evaluate.counted.n=4"))
    assert why(plan)[100, None] == ("resume", "checkpoint missing; from step 50")
    assert (plan.runs[0].state, plan.runs[0].resume_step) == ("resume", 50)
    assert plan.runs[0].reason == "from step 50: the checkpoint of step 100 is missing"
    shutil.rmtree(run.checkpoint_directory(50))
    plan = make_plan(load(tiny.BASE + tiny.AXES, "evaluate.counted.n=4"))
    assert (plan.runs[0].state, plan.runs[0].reason) == ("new", "checkpoint missing")


def test_failed_runs_wait_to_be_asked_for(sweep: Any) -> None:
    run = sweep.ledger().run(sweep.runs[0])
    tiny.checkpoint(run, 50)
    run.record_failure("loss is nan at step 60", error="RunFailedError", step=60)
    plan = make_plan(sweep)
    assert plan.counts["failed"] == 1
    assert plan.runs[0].reason == "failed: loss is nan at step 60; --retry-failed runs it again"
    assert why(plan)[50, None] == ("done", "")
    assert why(plan)[100, None][0] == "failed"
    assert plan.runs[0] not in plan.to_do
    assert plan.runs[0].missing == ()
    again = make_plan(sweep, retry_failed=True).runs[0]
    assert (again.state, again.resume_step) == ("resume", 50)
    run.retry()
    assert make_plan(sweep).runs[0].state == "resume"


def test_the_look_up_table_is_measured_without_training(load: Any) -> None:
    sweep = load(tiny.BASE, "algorithm={kind: lookup_table}")
    plan = make_plan(sweep)
    assert plan.runs[0].state == "evaluate"
    assert plan.runs[0].missing == ((0, "counted"),)
    tiny.finish(sweep.ledger().run(sweep.runs[0]), sweep.runs[0])
    assert make_plan(sweep).finished


def test_time_and_storage_come_from_what_was_measured(load: Any, sweep: Any) -> None:
    plan = make_plan(sweep)
    assert plan.work_seconds is None
    assert "time unknown" in str(plan)
    # Three float32 numbers a parameter, two checkpoints a run.
    counts = [spec.model.parameters(sweep.language(spec)) for spec in sweep.runs]
    assert plan.new_bytes == 12 * 2 * sum(counts)
    timed = make_plan(sweep, step_seconds={spec.run_id: 0.25 for spec in sweep.runs}, concurrency=2)
    assert timed.work_seconds == pytest.approx(4 * 100 * 0.25)
    # What the evaluation takes, nobody has said or measured.
    assert timed.not_counted == ("counted",)
    assert "without counted, whose cost is not known, 0.046 CPU-hours" in str(timed)
    assert wall(timed) == pytest.approx(
        launch_seconds([Cost(25.0, training=25.0, span=Span(25.0, 25.0))] * 4, slots=2)
    )
    # One run is finished: 0.5 s a step, 2 s an evaluation, 7 bytes a checkpoint, for its model.
    tiny.finish(sweep.ledger().run(sweep.runs[0]), sweep.runs[0])
    shape = load(tiny.BASE + tiny.AXES, "axes.model.shape=[16/1/1/32]", "resources.max_concurrent=1")
    plan = make_plan(shape)
    assert [run.state for run in plan.runs] == ["done", "new"]
    assert plan.work_seconds == pytest.approx(100 * 0.5 + 2 * 2.0)
    assert wall(plan) == pytest.approx(
        launch_seconds([Cost(54.0, training=50.0, span=Span(54.0, 54.0))], slots=1)
    )
    assert plan.new_bytes == 14
    assert plan.not_counted == ()
    low, high = (duration(end) for end in wall(plan))
    assert f"estimate: {low} to {high}, 0.031 CPU-hours, 14 B of checkpoints" in str(plan)
    assert plan.to_dict()["wall_seconds_range"] == [*wall(plan)]


def test_a_launch_begins_with_the_longest_runs(sweep: Any) -> None:
    first, second, third, fourth = (spec.run_id for spec in sweep.runs)
    seconds = {first: 0.1, second: 0.3, third: 0.1, fourth: 0.2}
    plan = make_plan(sweep, step_seconds=seconds, concurrency=2)
    assert [run.run_id for run in plan.order] == [second, fourth, first, third]
    # 30 | 20 + 10 + 10, where the order of the file gives 10 + 10 + 20 | 30.
    assert wall(plan) == launch_seconds((run.cost for run in plan.order), slots=2)
    assert [run.run_id for run in plan.runs] == [first, second, third, fourth]
    # The time of two is not known.
    plan = make_plan(sweep, step_seconds={first: 0.1, second: 0.3})
    assert [run.run_id for run in plan.order] == [first, second, third, fourth]


def test_a_timed_plan_is_for_this_machine_until_it_knows_the_cluster(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []

    def measure(sweep: Any, runs: Any) -> dict[str, float]:
        timed.extend(spec.run_id for spec in runs)
        return dict.fromkeys(timed, 0.25)

    monkeypatch.setattr("raysweep.sweep.planner.measure", measure)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 9.0, 9.0))
    sweep = load()
    tiny.finish(sweep.ledger().run(sweep.runs[0]), sweep.runs[0])
    plan = make_plan(sweep, timed=True)
    # A run with records has its own history.
    assert timed == [spec.run_id for spec in sweep.runs[1:]]
    assert plan.work_seconds == pytest.approx(3 * 100 * 0.25 + 2 * 2.0)
    assert wall(plan) == at_once(plan, 2)
    [note] = plan.notes
    assert note == "the time is for this machine, with 2 CPUs and 2 runs at once"
    # The same plan for a cluster needs no second look at the ledger.
    wide = plan.at(3)
    assert (wall(wide), wide.notes) == (at_once(plan, 3), ())
    # Seconds are those of the processor, so that what else it does comes on top.
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    busy = "other work keeps this machine busy (load 9 on 2 CPUs), and the time is for one without"
    assert make_plan(sweep, timed=True).at(3).notes == (busy,)
    assert make_plan(sweep, concurrency=2).notes == ()
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 9.0, 9.0))
    # A failed run is timed only if it is to be tried again.
    failed = sweep.runs[1]
    sweep.ledger().run(failed).record_failure("loss is nan at step 1", error="RunFailedError", step=1)
    for retry in (False, True):
        timed.clear()
        make_plan(sweep, timed=True, retry_failed=retry)
        assert (failed.run_id in timed) == retry
    # A number of the sweep's own stands.
    alone = make_plan(load(tiny.BASE + tiny.AXES, "resources.max_concurrent=1"), timed=True)
    assert (wall(alone), alone.notes, wall(alone.at(3))) == (at_once(alone, 1), (), at_once(alone, 1))


def test_a_plan_is_plain_data_and_plain_text(sweep: Any) -> None:
    plan = make_plan(sweep)
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["counts"]["new"] == 4
    assert data["train_steps"] == 400
    assert data["evaluations"] == 8
    assert data["runs"][0]["items"][0] == {
        "step": 50,
        "evaluation": None,
        "state": "new",
        "reason": "not trained yet",
    }
    lines = plan.lines(limit=1)
    assert lines[0] == "sweep tiny: 4 runs"
    assert lines[-2].split() == [sweep.runs[0].run_id, "new", "not", "trained", "yet"]
    assert lines[-1].strip() == "... and 3 more runs"


def test_names_alone_are_believed_where_nothing_is_verified(sweep: Any) -> None:
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    tiny.finish(run, spec)
    (path,) = run.directory.glob("records/evaluation-00000050-*.json")
    path.write_bytes(b"")
    assert make_plan(sweep, verify=False).runs[0].state == "done"
    assert make_plan(sweep).runs[0].state == "evaluate"


def test_ten_thousand_runs_are_planned_in_moments(load: Any, tmp_path: Path) -> None:
    seeds, rates = ", ".join(map(str, range(500))), ", ".join(f"{k}e-4" for k in range(1, 21))
    text = tiny.BASE + f"axes:\n  seed: [{seeds}]\n  algorithm.lr: [{rates}]\n"
    start = time.process_time()
    plan = make_plan(load(text))
    spent = time.process_time() - start
    assert plan.counts["new"] == 10_000
    # Two seconds on two quiet cores; the rest is room for slow machines.
    assert spent < 10


def test_a_plan_counts_parameters_for_either_vocabulary(load: Any) -> None:
    sweep = load(tiny.BASE + tiny.AXES)
    plan = make_plan(sweep)
    own = sweep.runs[0].model.parameters(sweep.language(sweep.runs[0]))
    # Rows of 16 weights and a bias, for 30,522 words rounded up in the place of 6 and 3 special tokens.
    faithful = own + (30_528 - 16) * 17
    counts = {"own": own, "faithful": faithful}
    assert plan.parameters == {"16/1/1/32": counts, "16/2/2/32": plan.parameters["16/2/2/32"]}
    assert plan.to_dict()["parameters"]["16/1/1/32"] == counts
    line = f"  model 16/1/1/32: {own:,} parameters ({faithful:,} with BERT's vocabulary)"
    assert line in plan.lines()


def test_a_failed_run_says_why(load: Any) -> None:
    from raysweep.sweep.run_state import run_states

    sweep = load()
    spec = sweep.runs[0]
    sweep.ledger().run(spec).record_failure("loss is\nnan", error="RunFailedError", step=7)
    (failed,) = [row for row in run_states(sweep) if row.state == "failed"]
    assert (failed.run_id, failed.trouble) == (spec.run_id, "loss is nan")


def test_checkpoints_that_the_disk_has_no_room_for_are_named(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load()
    plan = make_plan(sweep)
    assert plan.new_bytes is not None
    free = plan.new_bytes
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert make_plan(sweep).notes == ()
    free -= 1
    [note] = make_plan(sweep).notes
    assert note.startswith(f"checkpoints need {size(plan.new_bytes)}, and the file system of ")
    assert note.endswith(f" has {size(free)} free; fewer pretrain.milestones, or another --storage, fits")
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    free = 0
    assert make_plan(sweep).notes == ()
    assert list(room.short_disk(1e15, RemotePath("s3://bucket/results/s"))) == []


def test_training_that_the_memory_has_no_room_for_is_named(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, gradients and Adam's moments are four numbers of four bytes for each parameter."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    small, large = load().runs[0], load().runs[-1]
    language = load().language(large)
    need = 16 * large.model.parameters(language)
    assert need > 16 * small.model.parameters(language)

    def notes(memory: int, *overrides: str) -> list[str]:
        monkeypatch.setattr(room, "_memory", lambda: memory)
        found = make_plan(load(tiny.BASE + tiny.AXES, *overrides), timed=True).notes
        return [note for note in found if not note.startswith("the time is")]

    assert notes(2 * need) == []
    assert notes(2 * need - 1) == [
        f"the largest 2 runs need at least {size(2 * need)} of memory at once, and this machine has "
        f"{size(2 * need - 1)}; resources.max_concurrent: 1 fits"
    ]
    assert notes(2 * need - 1, "resources.max_concurrent=1") == []
    assert notes(need - 1) == [
        f"model {large.model.label}: training needs at least {size(need)} of memory, and this machine has "
        f"{size(need - 1)}; a smaller `model`, or --address of a larger cluster, fits"
    ]
    assert notes(2 * need - 1, "resources.workers=2")[0].startswith(f"model {large.model.label}: training")
    shared = ("resources.workers=2", "resources.sharding=full")
    assert notes(2 * need - 1, *shared) == []
    assert notes(need - 1, *shared)[0].startswith(f"model {large.model.label}: training")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert notes(1) == []
    # What another cluster has is not known here.
    monkeypatch.delenv("RAY_ADDRESS")
    plan = make_plan(load(), timed=True)
    assert plan.here
    assert plan.at(4).here == ()


def test_a_single_run_is_not_two_at_once(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    sweep = load(tiny.BASE + tiny.AXES)
    assert make_plan(sweep, timed=True).notes == (
        "the time is for this machine, with 2 CPUs and 2 runs at once",
    )
    alone = make_plan(replace(sweep, runs=sweep.runs[:1]), timed=True)
    assert alone.notes == ("the time is for this machine, with 2 CPUs",)
