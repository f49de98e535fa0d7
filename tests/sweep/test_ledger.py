"""The ledger: what is recorded stays, whatever is killed, torn or done twice."""

from __future__ import annotations

import logging
import math
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import tiny_sweeps as tiny
from helpers.processes import forked
from raysweep.errors import DataError, IdentityError, LockedError
from raysweep.evaluation.metric import Metric
from raysweep.sweep import Ledger, RunLedger, SweepLock, make_plan
from raysweep.sweep.tidy import tidy
from raysweep.training.checkpoint import CurvePoint, verify
from raysweep.training.loop import pretrain


@pytest.fixture
def sweep(load: Any) -> Any:
    return load()


@pytest.fixture
def run(sweep: Any) -> RunLedger:
    ledger: RunLedger = sweep.ledger().run(sweep.runs[0])
    return ledger


def test_records_come_back_as_they_were(run: RunLedger, sweep: Any) -> None:
    (evaluation,) = sweep.runs[0].evaluations.values()
    metrics = [
        *tiny.measured(0.1 + 0.2, None),
        Metric(name="odd", value=math.inf, standard_error=math.nan, n=1, unit=""),
    ]
    record = run.record_evaluation(50, evaluation, metrics, seconds=1.5)
    again = RunLedger(run.directory).evaluation(50, evaluation)
    assert again is not None
    assert again.metrics[0] == metrics[0]
    assert again.metrics[1].value == math.inf
    assert math.isnan(again.metrics[1].standard_error or 0.0)
    assert (again.kind, again.step, again.seconds, again.time) == ("counted", 50, 1.5, record.time)
    assert run.evaluation(100, evaluation) is None
    assert run.evaluation(50, evaluation.model_copy(update={"n": 4})) is None


def test_the_first_evaluation_stands(run: RunLedger, sweep: Any) -> None:
    (evaluation,) = sweep.runs[0].evaluations.values()
    first = run.record_evaluation(50, evaluation, tiny.measured(1.0), seconds=1.0)
    assert run.record_evaluation(50, evaluation, tiny.measured(2.0), seconds=9.0) == first
    assert run.evaluations() == [first]


def test_a_step_committed_again_keeps_its_curve_and_takes_the_new_manifest(run: RunLedger) -> None:
    first = tiny.checkpoint(run, 50)
    digest = first.files["model.safetensors"].model_copy(update={"sha256": "1" * 64})
    points = (CurvePoint(step=50, loss=9.0, time_ms=99), CurvePoint(step=40, loss=9.0, time_ms=99_000))
    run.commit(
        first.model_copy(
            update={"curve": points, "time": 77.0, "milestone": False, "train_seconds": 5.0}
            | {"files": {"model.safetensors": digest}}
        )
    )
    record = run.checkpoint(50)
    assert record is not None
    assert record == first.model_copy(update={"files": {"model.safetensors": digest}})
    assert len(list((run.directory / "records").iterdir())) == 1


def test_checkpoints_newest_first_and_only_those_that_are_there(run: RunLedger) -> None:
    for step in (50, 100, 75):
        tiny.checkpoint(run, step, milestone=step != 75)
    assert [record.step for record in run.checkpoints()] == [100, 75, 50]
    (run.checkpoint_directory(75) / "model.safetensors").unlink()
    run.checkpoint_directory(75).rmdir()
    assert [record.step for record in run.checkpoints()] == [100, 50]
    # The curve outlives the files.
    assert [point.step for point in run.curve()] == [50, 75, 100]


def test_a_quarantined_checkpoint_leaves_its_record(run: RunLedger, caplog: pytest.LogCaptureFixture) -> None:
    record = tiny.checkpoint(run, 50)
    with caplog.at_level(logging.WARNING):
        run.quarantine(record, "it is torn")
    assert "it is torn" in caplog.text
    assert run.checkpoints() == []
    assert run.checkpoint(50) == record
    kept = sorted(path.name for path in (run.directory / "quarantine").iterdir())
    assert len(kept) == 2
    assert kept[1] == kept[0] + ".reason.txt"


def test_curve_points_recorded_twice_keep_their_first_time(run: RunLedger) -> None:
    late = tiny.checkpoint(run, 100)
    early = CurvePoint(step=50, loss=0.5, time_ms=10)
    run.commit(
        late.model_copy(update={"step": 60, "curve": (early, CurvePoint(step=60, loss=0.4, time_ms=20))})
    )
    run.commit(late.model_copy(update={"step": 70, "curve": (CurvePoint(step=50, loss=0.5, time_ms=999),)}))
    assert [(p.step, p.time_ms) for p in run.curve()] == [(50, 10), (60, 20), (100, 100_000)]


@pytest.mark.parametrize("damage", [b"", b'{"kind": "cou', b"\0" * 64, b"[]", b'{"kind": "counted"}'])
def test_a_damaged_record_is_set_aside_and_counts_as_absent(
    run: RunLedger, sweep: Any, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    tiny.finish(run, sweep.runs[0])
    (path,) = run.directory.glob("records/evaluation-00000050-*.json")
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        plan = make_plan(sweep)
    assert plan.runs[0].missing == ((50, "counted"),)
    assert "damaged record moved to" in caplog.text
    assert not path.exists()
    assert [p.read_bytes() for p in (run.directory / "quarantine").iterdir()] == [damage]
    (evaluation,) = sweep.runs[0].evaluations.values()
    assert run.evaluation(50, evaluation) is None
    run.record_evaluation(50, evaluation, tiny.measured(), seconds=1.0)
    assert make_plan(sweep).runs[0].state == "done"


def test_a_damaged_checkpoint_record_is_trained_again(run: RunLedger, sweep: Any) -> None:
    tiny.checkpoint(run, 50)
    tiny.checkpoint(run, 100)
    path = run.directory / "records" / "checkpoint-00000100.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert make_plan(sweep).runs[0].resume_step == 50
    assert [record.step for record in run.checkpoints()] == [50]


def test_a_record_under_another_name_does_not_count(run: RunLedger, sweep: Any) -> None:
    tiny.finish(run, sweep.runs[0])
    (path,) = run.directory.glob("records/evaluation-00000050-*.json")
    path.write_bytes(next(run.directory.glob("records/evaluation-00000100-*.json")).read_bytes())
    assert make_plan(sweep).runs[0].missing == ((50, "counted"),)


def test_a_folder_of_another_run_is_refused(run: RunLedger, sweep: Any) -> None:
    mine, other = sweep.runs[0], sweep.runs[1]
    (run.directory / "run.json").rename(run.directory / "kept.json")
    theirs = sweep.ledger().run(other).directory
    (run.directory / "run.json").write_bytes((theirs / "run.json").read_bytes())
    for attempt in (lambda: sweep.ledger().run(mine), lambda: make_plan(sweep)):
        with pytest.raises(IdentityError) as caught:
            attempt()
        for text in (mine.run_id, other.run_id, mine.training_identity, other.training_identity):
            assert text in str(caught.value)


def test_failures_are_kept_when_retried(run: RunLedger) -> None:
    run.record_failure("loss is nan at step 7", error="RunFailedError", step=7)
    assert [record.message for record in run.failures()] == ["loss is nan at step 7"]
    assert run.retry() == 1
    assert run.failures() == []
    run.record_failure("again", error="RunFailedError")
    assert [record.message for record in run.failures()] == ["again"]
    assert [record.step for record in run.retries()] == [7]
    assert run.retry() == 1
    assert run.retry() == 0
    assert [record.message for record in run.retries()] == ["loss is nan at step 7", "again"]


def test_arrays_come_back_bit_for_bit(run: RunLedger, caplog: pytest.LogCaptureFixture) -> None:
    arrays = {
        "file": np.array([0.1, np.nan, -0.0]),
        "trace/layers.0": np.arange(6, dtype=np.int32).reshape(2, 3),
    }
    run.save_arrays(50, "trace", "a" * 64, 3, arrays)
    found = run.load_arrays(50, "trace", "a" * 64, 3)
    assert found is not None
    assert {k: (v.dtype, v.tobytes()) for k, v in found.items()} == {
        k: (v.dtype, v.tobytes()) for k, v in arrays.items()
    }
    assert run.load_arrays(50, "trace", "b" * 64, 3) is None
    with pytest.raises(DataError, match="array 'x' of shard 0 holds Python objects"):
        run.save_arrays(50, "trace", "a" * 64, 0, {"x": np.array([{}])})
    path = run.arrays_directory(50, "trace", "a" * 64) / "000003.npz"
    for content in (path.read_bytes()[:100], b"", b"no zip"):
        path.write_bytes(content)
        assert run.load_arrays(50, "trace", "a" * 64, 3) is None
        assert not path.exists()
    assert "damaged shard" in caplog.text


def test_a_full_disk_tears_nothing(run: RunLedger, sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tiny.checkpoint(run, 50)
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        run.commit(first.model_copy(update={"files": {}}))
    with pytest.raises(OSError, match="No space left"):
        run.record_failure("x", error="X")
    assert {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()} == before


def test_unfinished_writes_are_passed_over_and_cleaned(run: RunLedger, sweep: Any) -> None:
    tiny.finish(run, sweep.runs[0])
    names = run.record_names()
    for folder in (run.directory, run.directory / "records", sweep.directory):
        (folder / ".tmp-checkpoint-00000050.json-1-aa").write_bytes(b"{")
    assert run.record_names() == names
    assert sweep.ledger().clean() == 3
    assert sweep.ledger().clean() == 0
    assert make_plan(sweep).runs[0].state == "done"


def test_a_ledger_is_only_a_path(run: RunLedger) -> None:
    tiny.checkpoint(run, 50)
    other = pickle.loads(pickle.dumps(run))  # noqa: S301
    assert other.checkpoints() == run.checkpoints()
    assert Ledger(Path("nowhere")).run_ids() == []


def test_a_second_launch_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "sweep"

    def hold(ready: Callable[[], None]) -> None:
        with SweepLock(folder):
            ready()
            time.sleep(60)

    with (
        forked(hold) as holder,
        pytest.raises(LockedError, match=rf"in use by process {holder} on .*, started 20"),
    ):
        SweepLock(folder).acquire()
    with SweepLock(folder), pytest.raises(LockedError, match=f"process {os.getpid()} on") as caught:
        SweepLock(folder).acquire()
    assert f"; wait for it, stop it with `raysweep cancel sweep --storage {folder.parent}`, or" in str(
        caught.value
    )
    with SweepLock(folder):
        pass


def test_training_writes_into_it_and_repairs_what_is_lost(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.training.loop.LOG_EVERY", 4)
    text = tiny.BASE.replace("steps: 100", "steps: 24").replace("[50, 100]", "[8, 16, 24]")
    sweep = load(text)
    spec, run = sweep.runs[0], sweep.ledger().run(sweep.runs[0])

    def train(journal: RunLedger) -> dict[int, bytes]:
        pretrain(
            language=sweep.language(spec),
            model=spec.model,
            algorithm=spec.algorithm,
            pretrain=spec.pretrain,
            seed=spec.seed,
            journal=journal,
        )
        folders = {step: run.checkpoint_directory(step) for step in spec.milestones}
        return {step: (folder / "model.safetensors").read_bytes() for step, folder in folders.items()}

    weights, curve = train(run), run.curve()
    assert [point.step for point in curve] == [4, 8, 12, 16, 20, 24]
    records = {record.step: record for record in run.checkpoint_records()}
    assert make_plan(sweep).runs[0].state == "evaluate"
    shutil.rmtree(run.checkpoint_directory(16))
    path = run.checkpoint_directory(24) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert (make_plan(sweep).runs[0].resume_step, make_plan(sweep).runs[0].train_to) == (8, 16)
    assert train(run) == weights
    assert run.curve() == curve
    again = {record.step: record for record in run.checkpoint_records()}
    for step, record in records.items():
        assert (again[step].time, again[step].curve) == (record.time, record.curve)
        verify(run.checkpoint_directory(step), again[step].files)


def test_the_tidy_table(load: Any) -> None:
    text = tiny.BASE + tiny.AXES + "include: [{algorithm: {kind: lookup_table}}]"
    sweep = load(text, "axes.algorithm=[{lr: 0.5}]")
    ledger = sweep.ledger()
    empty = tidy(ledger, sweep)
    columns = ["sweep", "run_id", "model", "algorithm", "seed", "model.shape", "algorithm"]
    columns = [*columns[:-1], "parameters", "step", "metric", "value", "standard_error", "n", "unit"]
    columns += ["quantity", "of", "heading", "short", "kind", "better", "least", "baseline", "ceiling"]
    columns += ["report", "reservations"]
    assert list(empty.columns) == columns
    assert len(empty) == 0
    for spec in sweep.runs[1:]:
        tiny.finish(ledger.run(spec), spec)
    frame = tidy(ledger, sweep)
    assert list(frame.columns) == columns
    assert len(frame) == 3 * 2 + 1
    own = [name for name in columns if name not in sweep.axes]
    assert frame[own].dtypes.to_dict() == empty[own].dtypes.to_dict()
    keys = list(zip(frame["run_id"], frame["step"], frame["metric"], strict=True))
    assert keys == sorted(keys)
    table = frame[frame["algorithm"] == "lookup_table"].iloc[0]
    assert table["step"] == 0
    assert table[["model", "seed", "parameters"]].isna().all()
    trained = frame[frame["run_id"] == sweep.runs[1].run_id]
    assert list(trained["value"]) == [50.0, 100.0]
    assert set(trained["seed"]) == {1}
    assert set(trained["model.shape"]) == {"16/1/1/32"}
    built = sweep.runs[1].model.build(sweep.language(sweep.runs[1]), seed=0)
    assert set(trained["parameters"]) == {sum(p.numel() for p in built.parameters())}
    # Other evaluation settings, other rows.
    assert len(tidy(ledger, load(text, "evaluate.counted.n=4"))) == 0
