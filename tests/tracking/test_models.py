"""Checkpoints as logged models: one for each milestone, found by its metrics, whole after any kill."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.probe_metrics import MAJORITY, PROBE
from raysweep.evaluation.trace import TRACE
from raysweep.sweep import EvaluationRecord
from raysweep.sweep.pages import run_pages
from raysweep.tracking import MLflowWriter, RunView, SweepView, default_tracking_uri, run_view
from raysweep.tracking.charts import charts
from raysweep.tracking.store import Store
from raysweep.training import CheckpointRecord

LOSSES = {100: 0.05, 200: 0.01}


def view(
    run_id: str = "a", steps: tuple[int, ...] = (100, 200), losses: dict[int, float] = LOSSES
) -> RunView:
    """A run with milestones at some steps; what it measured at step 0 has no checkpoint."""
    evaluations = [
        EvaluationRecord(
            kind="all",
            step=step,
            config={},
            identity="0" * 64,
            metrics=(
                EXCESS_LOSS.number(losses.get(step, 1.0), standard_error=0.001, n=64),
                TRACE.number(50.0 - step / 10, n=64),
                PROBE.number(0.9, n=5, of={"task": "A"}),
                MAJORITY.number(0.3, n=5, of={"task": "A"}),
            ),
            time=1000.0 + step,
            seconds=1.0,
        )
        for step in (0, *steps)
    ]
    checkpoints = [
        CheckpointRecord(step=step, milestone=True, files={}, curve=(), time=1000.0 + step, train_seconds=1.0)
        for step in steps
    ]
    return run_view(
        run_id=run_id, identity=run_id, name=f"64/1/2/256 · {run_id}", params={"lr": 0.001}, config={},
        checkpoints=checkpoints, evaluations=evaluations, status="FINISHED",
    )  # fmt: skip


def write(folder: Path, *views: RunView) -> bool:
    writer = MLflowWriter(SweepView(name="tiny"), directory=folder)
    writer.open()
    for one in views:
        writer.submit(one)
    return writer.close("FINISHED", timeout=60)


def rows(folder: Path, query: str) -> list[tuple]:
    with sqlite3.connect(folder / "mlflow.db") as database:
        return database.execute(query).fetchall()


def found(folder: Path, condition: str = "") -> list[tuple[str, dict[str, float]]]:
    """Return name and metrics of the models that MLflow finds."""
    client = MlflowClient(tracking_uri=default_tracking_uri(folder))
    [experiment] = [e for e in client.search_experiments() if e.name == "tiny"]
    models = client.search_logged_models([experiment.experiment_id], filter_string=condition or None)
    assert {str(model.status) for model in models} <= {"READY"}
    named = [(model.name, {metric.key: metric.value for metric in model.metrics}) for model in models]
    return sorted(named, key=lambda pair: pair[0])


def test_checkpoints_are_found_by_their_metrics(folder: Path) -> None:
    assert write(folder, view("a"), view("b", losses={100: 0.015, 200: 0.5}))
    assert [name for name, _ in found(folder, "metrics.excess_loss < 0.02")] == [
        "64-1-2-256 · a · step 200",
        "64-1-2-256 · b · step 100",
    ]
    everything = found(folder)
    assert len(everything) == 4
    # No errors, nothing of the data, and nothing of another milestone.
    assert everything[0][1] == {"excess_loss": 0.05, "trace": 40.0, "probe/A": 0.9}
    assert rows(folder, "select count(*) from metrics where step = 0") == [(2 * 5,)]


def test_relaunching_makes_no_second_model(folder: Path) -> None:
    assert write(folder, view(steps=(100,)))
    assert write(folder, view())
    assert write(folder, view())
    assert [name[-8:] for name, _ in found(folder)] == ["step 100", "step 200"]
    assert rows(folder, "select count(*) from logged_models") == [(2,)]
    assert rows(folder, "select count(*) from logged_model_metrics") == [(6,)]


def test_a_run_that_is_written_anew_gets_new_models(folder: Path) -> None:
    assert write(folder, view())
    # The records of another measurement, at other times.
    later = view(losses={100: 0.06, 200: 0.02})
    moved = tuple(replace(point, time_ms=point.time_ms + 5000) for point in later.points)
    assert write(folder, replace(later, points=moved))
    assert [metrics["excess_loss"] for _, metrics in found(folder)] == [0.06, 0.02]
    # So it is where the store shows a metric that no record holds.
    fewer = tuple(point for point in moved if point.key != "trace")
    assert write(folder, replace(later, points=fewer))
    assert [sorted(metrics) for _, metrics in found(folder)] == [["excess_loss", "probe/A"]] * 2
    active = "select count(*) from runs where lifecycle_stage = 'active'"
    assert rows(folder, active) == [(2,)]


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_models
from raysweep.tracking import SweepView, default_tracking_uri
from raysweep.tracking.store import Store
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
folder, method, last, after = Path(sys.argv[1]), sys.argv[3], int(sys.argv[4]), sys.argv[5] == "after"
store = Store(SweepView(name="tiny"), default_tracking_uri(folder), (folder / "artifacts").as_uri())
whole, calls = getattr(SqlAlchemyStore, method), 0
def dying(*args, **kwargs):
    global calls
    calls += 1
    if calls == last and not after:
        os.kill(os.getpid(), 9)
    answer = whole(*args, **kwargs)
    if calls == last:
        os.kill(os.getpid(), 9)
    return answer
setattr(SqlAlchemyStore, method, dying)
store.write(test_models.view())
"""


@pytest.mark.parametrize(
    ("method", "call", "when"),
    [
        ("create_logged_model", 1, "after"),
        ("create_logged_model", 2, "after"),
        ("_log_model_metrics", 1, "before"),
        ("_log_model_metrics", 1, "after"),
        ("finalize_logged_model", 1, "after"),
    ],
)
def test_a_writer_killed_at_a_model_leaves_no_gap_and_no_duplicate(
    folder: Path, method: str, call: int, when: str
) -> None:
    command = [sys.executable, "-c", KILLED, str(folder), str(Path(__file__).parent), method, str(call), when]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == -9, run.stderr
    assert write(folder, view())
    whole = {"excess_loss": 0.05, "trace": 40.0, "probe/A": 0.9}
    assert found(folder) == [
        ("64-1-2-256 · a · step 100", whole),
        ("64-1-2-256 · a · step 200", whole | {"excess_loss": 0.01, "trace": 30.0}),
    ]
    assert rows(folder, "select count(*) from logged_model_metrics") == [(6,)]
    counts = rows(folder, "select count(*) from metrics group by run_uuid, key, step")
    assert counts == [(1,)] * (3 * 5)
    assert len(rows(folder, "select 1 from runs")) == 2


def test_a_second_model_of_a_milestone_is_removed(folder: Path) -> None:
    """A request that was executed but not answered leaves one."""
    store = Store(SweepView(name="tiny"), default_tracking_uri(folder), (folder / "artifacts").as_uri())
    create = store.client.create_logged_model

    def twice(*args: object, **kwargs: object) -> object:
        create(*args, **kwargs)
        raise ConnectionError("no answer")

    store.client.create_logged_model = twice
    with pytest.raises(ConnectionError):
        store.write(view())
    store.client.create_logged_model = create
    store.write(view())
    again = view(steps=(100, 200, 300))
    Store(SweepView(name="tiny"), default_tracking_uri(folder), None).write(again)
    assert [name[-8:] for name, _ in found(folder)] == ["step 100", "step 200", "step 300"]


def test_a_server_without_models_gets_all_else(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(SweepView(name="tiny"), default_tracking_uri(folder), (folder / "artifacts").as_uri())

    error = MlflowException("no such endpoint")
    error.error_code = "ENDPOINT_NOT_FOUND"

    def refuse(*_: object, **__: object) -> None:
        raise error

    store.client.create_logged_model = refuse
    with caplog.at_level(logging.INFO, logger="raysweep.tracking"):
        store.write(view("a"))
        store.write(view("b"))
    assert [record.getMessage() for record in caplog.records].count(
        "this MLflow server knows no models; checkpoints are in their runs alone"
    ) == 1
    assert rows(folder, "select count(*) from metrics") == [(2 * 3 * 5,)]
    assert rows(folder, "select count(*) from logged_models") == [(0,)]


def test_pages_of_runs_are_kept_for_reports(folder: Path) -> None:
    assert run_pages(folder) == {}
    assert write(folder, view("a"))
    [(known,)] = rows(folder, "select run_uuid from tags where key = 'raysweep.run_id'")
    [page] = run_pages(folder).values()
    assert page.startswith("http://127.0.0.1:5000/#/experiments/")
    assert page.endswith(f"/runs/{known}")


def test_charts_fit_into_a_tag() -> None:
    shown = {"excess_loss": "loss", "trace": "flatness", "trace_enlarged": "flatness"}
    shown |= {f"probe/a task with a long name {k}": "accuracy" for k in range(30)}
    text = charts("0123456789abcdef" * 2, shown)
    assert len(text) < 5000
    state = json.loads(text)
    assert [(c["xaxis"]["key"], c["yaxis"]["key"][:9]) for c in state["compareRunCharts"][:2]] == [
        ("excess_loss", "probe/a t"),
        # Traces in one space compare models of different size, and those in their own parameters do not.
        ("trace_enlarged", "probe/a t"),
    ]
    assert "metrics.`trace`" not in state["selectedColumns"]
    one_size = json.loads(charts("ab", {"trace": "flatness", "probe/A": "accuracy"}))
    assert one_size["compareRunCharts"][0]["xaxis"]["key"] == "trace"
    closed = [section["name"] for section in state["compareRunSections"] if not section["display"]]
    assert closed == ["uncertainty", "various"]
    # Nested runs would be folded: MLflow nests what is sorted by time.
    assert state["orderByKey"] == "metrics.`excess_loss`"
    assert json.loads(charts("ab", {}))["compareRunCharts"] == []
