"""The writer against a real SQLite store, read back with SQL, and against a server that is not there."""

from __future__ import annotations

import logging
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.probe_metrics import MAJORITY
from raysweep.sweep import EvaluationRecord
from raysweep.tracking import MLflowWriter, RunView, SweepView, default_tracking_uri, run_view
from raysweep.tracking.store import Store, locate
from raysweep.training import CheckpointRecord, CurvePoint

START = 1_700_000_000.0


def point(step: int) -> CurvePoint:
    # The speed of a step need not be known.
    known = step % 20 == 0
    return CurvePoint(
        step=step,
        loss=3.0 / step,
        time_ms=round(1000 * (START + step)),
        tokens_per_second=1e5 + step if known else None,
        mfu=0.25 if known else None,
    )


def checkpoint(step: int, previous: int = 0) -> CheckpointRecord:
    curve = tuple(point(s) for s in range(previous + 10, step + 1, 10))
    return CheckpointRecord(
        step=step, milestone=True, files={}, curve=curve, time=START + step, train_seconds=1.0
    )


def evaluation(step: int, value: float, time: float | None = None) -> EvaluationRecord:
    return EvaluationRecord(
        kind="excess_loss",
        step=step,
        config={},
        identity="0" * 64,
        metrics=(
            EXCESS_LOSS.number(value, standard_error=0.01, n=64),
            MAJORITY.number(0.3, n=64, of={"task": "A"}),
        ),
        time=time if time is not None else START + step + 0.5,
        seconds=1.0,
    )


def view(run_id: str = "a", steps: tuple[int, ...] = (100,), status: str = "RUNNING", **changes) -> RunView:
    previous = (0, *steps)
    made = run_view(
        run_id=run_id,
        identity=f"identity of {run_id}",
        name=f"64/1/1/256 · {run_id}",
        params={"model.shape": "64/1/1/256", "seed": 0},
        config={"model": {"kind": "encoder"}},
        checkpoints=[checkpoint(step, before) for step, before in zip(steps, previous, strict=False)],
        evaluations=[evaluation(step, 1.0 / step) for step in steps],
        status=status,
    )
    return replace(made, **changes)


def write(folder: Path, *views: RunView, status: str = "FINISHED", uri: str | None = None) -> bool:
    """One launch: open, submit, close."""
    writer = MLflowWriter(
        SweepView(name="tiny", config={"name": "tiny"}, note="a sweep", git_commit="abc123"),
        directory=folder,
        tracking_uri=uri,
    )
    writer.open()
    for one in views:
        writer.submit(one)
    return writer.close(status, timeout=60)


def rows(folder: Path, query: str) -> list[tuple]:
    with sqlite3.connect(folder / "mlflow.db") as database:
        return database.execute(query).fetchall()


def children(folder: Path) -> dict[str, tuple[str, str]]:
    """raysweep run id -> (MLflow run id, status), of runs that are not deleted."""
    found = rows(
        folder,
        "select t.value, r.run_uuid, r.status from runs r join tags t on t.run_uuid = r.run_uuid"
        " where t.key = 'raysweep.run_id' and r.lifecycle_stage = 'active'",
    )
    assert len({name for name, _, _ in found}) == len(found)
    return {name: (mlflow_id, status) for name, mlflow_id, status in found}


def test_a_sweep_is_a_parent_run_and_a_run_its_child(folder: Path) -> None:
    assert write(
        folder, view("a", (100, 200), "FINISHED"), view("b", (), "FAILED", note="ValueError: loss is nan")
    )
    runs = children(folder)
    assert {name: status for name, (_, status) in runs.items()} == {"a": "FINISHED", "b": "FAILED"}
    [(parent, parent_status, name)] = rows(
        folder,
        "select r.run_uuid, r.status, e.name from runs r join experiments e using (experiment_id)"
        " join tags t on t.run_uuid = r.run_uuid where t.key = 'raysweep.sweep'",
    )
    assert (parent_status, name) == ("FINISHED", "tiny")
    tags = dict(rows(folder, f"select key, value from tags where run_uuid = '{runs['a'][0]}'"))
    assert tags["mlflow.parentRunId"] == parent
    assert tags["raysweep.identity"] == "identity of a"
    assert tags["mlflow.source.git.commit"] == "abc123"
    [(note,)] = rows(
        folder, f"select value from tags where key = 'mlflow.note.content' and run_uuid = '{runs['b'][0]}'"
    )
    assert note == "ValueError: loss is nan"
    params = dict(rows(folder, f"select key, value from params where run_uuid = '{runs['a'][0]}'"))
    assert params == {"model.shape": "64/1/1/256", "seed": "0"}
    assert list((folder / "artifacts").rglob("config.json"))
    assert list((folder / "artifacts").rglob("sweep.json"))
    assert locate("tiny", default_tracking_uri(folder))[1] == parent


def test_a_run_is_named_as_people_name_it_and_can_be_renamed(folder: Path) -> None:
    query = "select name from runs join tags using (run_uuid) where key = 'raysweep.run_id'"
    assert write(folder, view("a", (100,), "FINISHED"))
    assert rows(folder, query) == [("64/1/1/256 · a",)]
    assert write(folder, view("a", (100,), "FINISHED", name="64/1/1/256 · lr 0.1"))
    assert rows(folder, query) == [("64/1/1/256 · lr 0.1",)]


def test_nothing_is_written_where_one_happens_to_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert write(folder, view("a", (100,), "FINISHED"))
    assert list(elsewhere.iterdir()) == []
    assert not list(folder.rglob("mlruns"))


def test_points_carry_training_steps_and_the_times_of_the_records(folder: Path) -> None:
    assert write(folder, view("a", (100,), "FINISHED"))
    points = rows(folder, "select key, step, timestamp, value from metrics order by key, step")
    assert ("excess_loss", 100, round(1000 * (START + 100.5)), 0.01) in points
    assert ("various/majority.A", 100, round(1000 * (START + 100.5)), 0.3) in points
    assert ("uncertainty/excess_loss", 100, round(1000 * (START + 100.5)), 0.01) in points
    assert ("train/loss", 50, round(1000 * (START + 50)), 3.0 / 50) in points
    assert [key for key, *_ in points].count("train/loss") == 10
    assert ("train/tokens_per_second", 60, round(1000 * (START + 60)), 1e5 + 60) in points
    assert ("train/mfu", 60, round(1000 * (START + 60)), 0.25) in points
    keys = [key for key, *_ in points]
    assert keys.count("train/tokens_per_second") == keys.count("train/mfu") == 5
    assert len(points) == 23
    [(start, end)] = rows(
        folder,
        "select start_time, end_time from runs join tags using (run_uuid) where key = 'raysweep.run_id'",
    )
    assert (start, end) == (round(1000 * (START + 10)), round(1000 * (START + 100.5)))


def test_relaunching_writes_nothing_twice(folder: Path) -> None:
    write(folder, view("a", (100,)), view("b", (100,), "FINISHED"))
    before = children(folder)
    assert before["a"][1] == "KILLED"  # its launch ended without it
    write(folder, view("a", (100, 200), "FINISHED"), view("b", (100,), "FINISHED"))
    after = children(folder)
    assert {k: v[0] for k, v in after.items()} == {k: v[0] for k, v in before.items()}
    assert after["a"][1] == after["b"][1] == "FINISHED"
    counts = rows(folder, "select key, step, count(*) from metrics group by run_uuid, key, step")
    assert {count for *_, count in counts} == {1}
    assert len(counts) == 46 + 23
    assert len(rows(folder, "select 1 from runs")) == 3


@pytest.mark.parametrize("batch", [1, 2], ids=["params and points", "points"])
def test_a_writer_killed_after_any_request_leaves_no_duplicates(folder: Path, batch: int) -> None:
    script = """
import sys, os
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_writer
from raysweep.tracking import SweepView, default_tracking_uri, store as module
from raysweep.tracking.store import Store
module._METRICS = 30
folder = Path(sys.argv[1])
store = Store(SweepView(name="tiny"), default_tracking_uri(folder), (folder / "artifacts").as_uri())
batches = 0
log_batch = store.client.log_batch
def dying(*args, **kwargs):
    global batches
    batches += 1
    log_batch(*args, **kwargs)
    if batches == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
store.client.log_batch = dying
store.write(test_writer.view("a", (100, 200)))
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(Path(__file__).parent), str(batch)],
        capture_output=True,
        text=True,
    )
    assert run.returncode == -9, run.stderr
    assert children(folder)["a"][1] == "RUNNING"
    assert len(rows(folder, "select 1 from metrics")) == (30 if batch == 1 else 46)
    write(folder, view("a", (100, 200), "FINISHED"))
    assert children(folder)["a"][1] == "FINISHED"
    counts = rows(folder, "select count(*) from metrics group by run_uuid, key, step")
    assert {count for (count,) in counts} == {1}
    assert len(counts) == 46
    assert len(rows(folder, "select 1 from runs")) == 2


def test_stale_running_runs_are_ended_when_the_store_is_opened(folder: Path) -> None:
    uri = default_tracking_uri(folder)
    store = Store(SweepView(name="tiny"), uri, (folder / "artifacts").as_uri())
    store.write(view("a", (100,)))
    assert children(folder)["a"][1] == "RUNNING"
    Store(SweepView(name="tiny"), uri, (folder / "artifacts").as_uri())
    assert children(folder)["a"][1] == "KILLED"


def test_an_unchanged_run_is_neither_written_nor_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, view("a", (100,), "FINISHED"))
    store = Store(SweepView(name="tiny"), default_tracking_uri(folder), None)
    for name in ("log_batch", "get_metric_history", "create_run", "set_terminated", "update_run", "log_dict"):
        monkeypatch.setattr(store.client, name, lambda *_, **__: pytest.fail("the store was asked"))
    assert store.write(view("a", (100,), "FINISHED")) is False


def test_records_that_contradict_the_store_replace_the_run(folder: Path) -> None:
    write(folder, view("a", (100,), "FINISHED"))
    old = children(folder)["a"][0]
    again = run_view(
        run_id="a",
        identity="identity of a",
        name="a",
        params={"seed": 0},
        config={},
        checkpoints=[],
        evaluations=[evaluation(100, 0.5, START + 900)],
        status="FINISHED",
    )
    write(folder, again)
    new = children(folder)["a"][0]
    assert new != old
    assert rows(folder, f"select value from metrics where key = 'excess_loss' and run_uuid = '{new}'") == [
        (0.5,)
    ]


def test_more_points_and_params_than_a_batch_takes(folder: Path) -> None:
    many = view(
        "a", tuple(range(1000, 12001, 1000)), "FINISHED", params={f"p{i}": "x" * 2000 for i in range(150)}
    )
    assert len(many.points) > 1000
    assert write(folder, many)
    assert rows(folder, "select count(*) from metrics") == [(len(many.points),)]
    assert rows(folder, "select count(*), max(length(value)) from params") == [(150, 500)]


def test_a_refused_run_is_named_and_the_others_are_written(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="raysweep.tracking"):
        flushed = write(
            folder, view("bad", (100,), "FINISHED", params={"": "x"}), view("good", (100,), "FINISHED")
        )
    assert not flushed
    assert children(folder)["good"][1] == "FINISHED"
    assert any("bad" in record.getMessage() for record in caplog.records)


def test_an_outage_neither_fails_nor_slows_and_the_next_launch_fills_the_gap(
    folder: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    writer = MLflowWriter(SweepView(name="tiny"), directory=folder, tracking_uri=f"http://127.0.0.1:{port}")
    with caplog.at_level(logging.WARNING, logger="raysweep.tracking"):
        writer.open()
        began = time.monotonic()
        for step in range(100, 600, 100):
            writer.submit(view("a", tuple(range(100, step + 1, 100))))
        assert time.monotonic() - began < 0.5
        time.sleep(3)
        assert writer.location is None
        assert writer.close("FINISHED", timeout=20) is False
        assert time.monotonic() - began < 20
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "cannot be written" in warnings[0]
    assert capfd.readouterr().out == ""
    assert write(folder, view("a", (100, 200), "FINISHED"))
    assert len(rows(folder, "select 1 from metrics")) == 46


def test_a_store_that_comes_back_is_caught_up_by_the_same_writer(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_one, calls = Store.write, []

    def failing_twice(store: Store, one: RunView) -> bool:
        calls.append(one.run_id)
        if len(calls) <= 2:
            raise ConnectionError("the database has gone away")
        return write_one(store, one)

    monkeypatch.setattr(Store, "write", failing_twice)
    monkeypatch.setattr("raysweep.tracking.writer._FIRST_PAUSE", 0.05)
    writer = MLflowWriter(SweepView(name="tiny"), directory=folder)
    with caplog.at_level(logging.WARNING, logger="raysweep.tracking"):
        writer.open()
        writer.submit(view("a", (100,), "FINISHED"))
        deadline = time.monotonic() + 20
        while len(caplog.records) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert writer.close("FINISHED", timeout=30)
    assert len(calls) == 3
    assert len(rows(folder, "select 1 from metrics")) == 23
    assert len(rows(folder, "select 1 from runs")) == 2
    messages = [record.getMessage() for record in caplog.records]
    assert ["gone away" in messages[0], "again" in messages[1], len(messages)] == [True, True, 2]


def test_after_an_outage_runs_that_were_written_before_are_compared_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_one, seen = Store.write, []

    def failing_once(store: Store, one: RunView) -> bool:
        seen.append(one)
        if len(seen) == 2:
            raise ConnectionError("the database has gone away")
        return write_one(store, one)

    monkeypatch.setattr(Store, "write", failing_once)
    monkeypatch.setattr("raysweep.tracking.writer._FIRST_PAUSE", 0.05)
    writer = MLflowWriter(SweepView(name="tiny"), directory=folder)
    writer.open()
    first, second = view("a", (100,), "FINISHED"), view("b", (100,), "FINISHED")
    writer.submit(first)
    deadline = time.monotonic() + 20
    while writer._pending and time.monotonic() < deadline:
        time.sleep(0.02)
    writer.submit(second)
    while len(seen) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert writer.close("FINISHED", timeout=30)
    assert seen == [first, second, first, second]
    assert len(rows(folder, "select 1 from metrics")) == 46


def test_a_run_that_is_over_leaves_nothing_in_memory_and_can_grow(folder: Path) -> None:
    store = Store(SweepView(name="tiny"), default_tracking_uri(folder), (folder / "artifacts").as_uri())
    store.write(view("a", (100,), "FINISHED"))
    [known] = store._runs.values()
    assert (known.params, known.points, store._checkpoints._runs) == (None, {}, {})
    written = rows(folder, "select key, step, timestamp, value from metrics")
    store.write(
        view("a", (100, 200), "FINISHED", params={"model.shape": "64/1/1/256", "seed": "0", "new": "1"})
    )
    assert list(store._runs.values()) == [known]
    after = rows(folder, "select key, step, timestamp, value from metrics")
    assert len(after) == len(set(after)) == 46
    assert set(written) < set(after)
    assert dict(rows(folder, "select key, value from params"))["new"] == "1"
    assert rows(folder, "select count(*) from logged_models") == [(2,)]
    # What contradicts the store is found as well.
    store.write(view("a", (100, 200), "FINISHED", params={"model.shape": "64/1/1/256", "seed": "1"}))
    assert list(store._runs.values()) != [known]
    assert len(children(folder)) == 1


def test_a_run_that_goes_on_after_a_relaunch_is_read_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is first shown as KILLED, as the launch before has left it, and then as RUNNING."""
    assert write(folder, view("a", (100,)))
    store = Store(SweepView(name="tiny"), default_tracking_uri(folder), None)
    read, keys = store.client.get_metric_history, []
    monkeypatch.setattr(
        store.client, "get_metric_history", lambda run, key: keys.append(key) or read(run, key)
    )
    for status in ("KILLED", "RUNNING", "FINISHED"):
        store.write(view("a", (100, 200) if status == "FINISHED" else (100,), status))
    assert keys
    assert len(keys) == len(set(keys))
    assert children(folder)["a"][1] == "FINISHED"


@pytest.mark.parametrize(("most", "arrives"), [(60.0, True), (0.5, False)])
def test_the_end_waits_while_the_store_takes_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, most: float, arrives: bool
) -> None:
    """Longer than the patience for one run, but not longer than allowed in all."""
    written: list[str] = []

    def slow(store: Store, one: RunView) -> bool:
        time.sleep(0.3)
        written.append(one.run_id)
        return True

    monkeypatch.setattr(Store, "write", slow)
    writer = MLflowWriter(SweepView(name="tiny"), directory=folder)
    writer.open()
    assert writer.wait(30) is not None
    for name in "abcdef":
        writer.submit(view(name, (100,), "FINISHED"))
    began = time.monotonic()
    assert writer.close("FINISHED", timeout=1.0, most=most) is arrives
    assert time.monotonic() - began > (1.0 if arrives else 0.5)
    assert (written == list("abcdef")) is arrives


def test_a_store_of_an_older_mlflow_is_migrated(tmp_path: Path) -> None:
    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config, _get_latest_schema_revision
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{tmp_path / 'mlflow.db'}")
    Base.metadata.create_all(engine)
    config = _get_alembic_config(str(engine.url))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "7f2a7d5fae7d")
    engine.dispose()
    [(before,)] = rows(tmp_path, "select version_num from alembic_version")
    assert before != _get_latest_schema_revision()
    assert write(tmp_path, view("a", (100,), "FINISHED"))
    assert rows(tmp_path, "select version_num from alembic_version") == [(_get_latest_schema_revision(),)]
    assert children(tmp_path)["a"][1] == "FINISHED"


def test_importing_the_room_leaves_mlflow_out() -> None:
    code = "import sys, raysweep.tracking; sys.exit('mlflow' in sys.modules or 'ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_relative_sqlite_uri_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="raysweep.tracking"):
        assert write(tmp_path, uri="sqlite:///mlflow.db") is False
    assert "relative" in caplog.text
    assert not (Path.cwd() / "mlflow.db").exists()


def _truncate(store: Path) -> None:
    with store.open("r+b") as file:
        file.truncate(store.stat().st_size // 2 // 4096 * 4096)


def _overwrite(store: Path) -> None:
    with store.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 65536)


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _overwrite,
        lambda store: store.write_bytes(b""),
        lambda store: store.write_bytes(b"no database at all" * 100),
    ],
    ids=["truncated", "overwritten", "empty", "other"],
)
def test_a_damaged_store_is_moved_aside_and_written_anew(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    views = view("a", (100, 200), "FINISHED"), view("b", (), "FAILED", note="ValueError: loss is nan")
    query = "select key, step, value, timestamp from metrics order by key, step"
    assert write(folder, *views)
    before = rows(folder, query)
    assert before
    damage(folder / "mlflow.db")
    assert write(folder, *views)
    assert rows(folder, query) == before
    assert {name: status for name, (_, status) in children(folder).items()} == {
        "a": "FINISHED",
        "b": "FAILED",
    }
    assert len(list((folder / "quarantine").iterdir())) == 1


def test_a_store_that_is_moved_under_its_writer_is_left_alone(folder: Path) -> None:
    """Its connection is kept, but not beyond the move: what follows goes to the file at the place."""
    uri, place, aside = default_tracking_uri(folder), folder / "mlflow.db", folder / "aside.db"
    store = Store(SweepView(name="tiny"), uri, (folder / "artifacts").as_uri())
    store.write(view("a", (100,), "FINISHED"))
    place.rename(aside)
    shutil.copy(aside, place)
    before = aside.read_bytes()
    store.write(view("b", (100,), "FINISHED"))
    assert aside.read_bytes() == before
    assert set(children(folder)) == {"a", "b"}


def test_a_damaged_store_that_others_share_is_left_to_its_owner(folder: Path) -> None:
    shared = folder / "shared.db"
    shared.write_bytes(b"no database at all" * 100)
    assert not write(folder, view(), uri=f"sqlite:///{shared}")
    assert shared.read_bytes() == b"no database at all" * 100
    assert not (folder / "quarantine").exists()


def test_a_store_that_is_whole_stays(folder: Path) -> None:
    assert write(folder, view())
    inode = (folder / "mlflow.db").stat().st_ino
    assert write(folder, view("a", (100, 200)))
    assert (folder / "mlflow.db").stat().st_ino == inode
    assert not (folder / "quarantine").exists()
