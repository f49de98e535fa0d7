"""The list of what a run lacks: one answer for plan, trial, status and tracker."""

from __future__ import annotations

import hashlib
import shutil
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.sweep import Missing, missing_now, unfinished
from raysweep.sweep.missing import missing
from raysweep.sweep.survey import RunRecords, survey_run


@pytest.fixture
def sweep(load: Any) -> Any:
    return load()


def test_a_run_lacks_all_then_less_then_nothing(sweep: Any) -> None:
    spec = sweep.runs[0]
    assert missing(spec, RunRecords()) == Missing((50, 100), ((50, "counted"), (100, "counted")))
    run = sweep.ledger().run(spec)
    tiny.checkpoint(run, 20, milestone=False)
    found = missing_now(run, spec)
    assert (found.checkpoints, found.resume_step, found.train_to, found.train_steps) == (
        (50, 100),
        20,
        100,
        80,
    )
    tiny.checkpoint(run, 50)
    assert missing_now(run, spec) == Missing((100,), ((50, "counted"), (100, "counted")), 50)
    tiny.finish(run, spec)
    found = missing_now(run, spec)
    assert found == Missing()
    assert found.finished
    assert (found.train_to, found.train_steps) == (0, 0)


def test_names_alone_give_the_same_answer_for_whole_records(sweep: Any) -> None:
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    tiny.finish(run, spec)
    held = RunRecords()
    for _, name in run.record_names():
        held.add(name)
    assert missing(spec, held).finished
    assert missing(spec, survey_run(run, verify=False)).finished


def test_costs_are_those_of_the_newest_sound_checkpoint(sweep: Any) -> None:
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    tiny.checkpoint(run, 50, seconds=10.0)
    tiny.checkpoint(run, 100, seconds=40.0)
    held = survey_run(run)
    assert (held.step_seconds, held.training[1][1] - held.training[1][0]) == (0.4, 30.0)
    run.record_path("checkpoint-00000100.json").write_bytes(b"{")
    assert (survey_run(run).step_seconds, survey_run(run).recorded) == (0.2, {50})
    nothing = RunRecords()
    assert (nothing.step_seconds, nothing.step_cpu_seconds, nothing.checkpoint_bytes) == (None, None, None)


def test_a_checkpoint_is_needed_until_all_is_measured_on_it(load: Any, sweep: Any) -> None:
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    tiny.finish(run, spec)
    shutil.rmtree(run.checkpoint_directory(100))
    assert missing_now(run, spec, check_files=True).finished
    [more, *_] = load(tiny.BASE + tiny.AXES, "evaluate.counted.n=4").runs
    assert missing_now(run, more) == Missing((100,), ((50, "counted"), (100, "counted")), 50)


def test_an_altered_checkpoint_is_quarantined_where_files_are_checked(
    load: Any, sweep: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    for step in spec.milestones:
        record = tiny.checkpoint(run, step)
        sound = hashlib.sha256(b"weights").hexdigest()
        files = {name: digest.model_copy(update={"sha256": sound}) for name, digest in record.files.items()}
        run.commit(record.model_copy(update={"files": files}))
    (run.checkpoint_directory(50) / "model.safetensors").write_bytes(b"altered")
    assert missing_now(run, spec).checkpoints == ()
    assert run.steps_on_disk() == {50, 100}
    found = missing_now(run, spec, check_files=True)
    assert (found.checkpoints, found.resume_step) == ((50,), 0)
    assert run.steps_on_disk() == {100}
    assert "moved to" in caplog.text


def test_the_look_up_table_lacks_evaluations_alone(load: Any) -> None:
    [spec] = load(tiny.BASE, "algorithm={kind: lookup_table}").runs
    assert missing(spec, RunRecords()) == Missing(evaluations=((0, "counted"),))


def test_unfinished_runs_are_neither_done_nor_failed(sweep: Any) -> None:
    done, failed, begun, new = sweep.runs
    tiny.finish(sweep.ledger().run(done), done)
    sweep.ledger().run(failed).record_failure("loss is nan", error="RunFailedError")
    tiny.checkpoint(sweep.ledger().run(begun), 50)
    assert unfinished(sweep) == (begun.run_id, new.run_id)
