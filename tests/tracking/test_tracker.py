"""The tracker on a real ledger and a real store: what is recorded appears, whoever recorded it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.tracking._tracking_service import utils

from helpers import tiny_sweeps as tiny
from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.metric import Metric
from raysweep.sweep import Ledger, RunLedger, RunSpec, Sweep, load_sweep
from raysweep.tracking import Tracker, comparison_links, keep_files, serve_command
from raysweep.tracking.charts import charts_key
from raysweep.tracking.sqlite import prepare
from raysweep.tracking.store import locate
from raysweep.tracking.tracker import flatten, tracking_uri
from raysweep.training import CheckpointRecord, CurvePoint

FILE = (
    tiny.HEAD
    + """\
evaluate: {excess_loss: {sentences: 64}}
axes:
  seed: [0, 1]
"""
)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    file = tmp_path / "tiny.yaml"
    file.write_text(FILE)
    sweep = load_sweep(str(file), (), storage=tmp_path / "results")
    prepare(sweep.directory / "mlflow.db", rebuild=False)  # tests read it before the tracker makes it
    return sweep


def record(run: RunLedger, spec: RunSpec, step: int, value: float = 0.5) -> None:
    """Record what training and evaluation leave of one milestone."""
    run.checkpoint_directory(step).mkdir(parents=True, exist_ok=True)
    curve = tuple(
        CurvePoint(step=s, loss=1.0 / s, time_ms=1_000_000 + s) for s in range(step - 40, step + 1, 10)
    )
    run.commit(
        CheckpointRecord(
            step=step, milestone=True, files={}, curve=curve, time=1000.0 + step, train_seconds=1.0
        )
    )
    measure(run, spec, step, value)


def measure(run: RunLedger, spec: RunSpec, step: int, value: float = 0.5) -> None:
    metric = EXCESS_LOSS.number(value, standard_error=0.1, n=64)
    for evaluation in spec.evaluations.values():
        run.record_evaluation(step, evaluation, [metric], seconds=1.0)


def rows(sweep: Sweep, query: str) -> list[tuple]:
    with sqlite3.connect(sweep.directory / "mlflow.db") as database:
        return database.execute(query).fetchall()


def states(sweep: Sweep) -> dict[str, str]:
    return dict(
        rows(
            sweep,
            "select t.value, r.status from runs r join tags t using (run_uuid)"
            " where t.key in ('raysweep.run_id', 'raysweep.sweep') and r.lifecycle_stage = 'active'",
        )
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_records_appear_while_the_sweep_runs(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.tracking.tracker.PERIOD", 0.05)
    one, two = sweep.runs
    tracker = Tracker(sweep, commit="abc")
    tracker.start()
    record(sweep.ledger().run(one), one, 50)
    wait_for(lambda: states(sweep).get(one.run_id) == "RUNNING")
    assert states(sweep)["tiny"] == "RUNNING"
    record(sweep.ledger().run(one), one, 100)
    wait_for(lambda: states(sweep)[one.run_id] == "FINISHED")
    wait_for(lambda: not tracker._records)  # of a run that is over they are not kept
    run = sweep.ledger().run(two)
    record(run, two, 50)
    run.record_failure("loss is not finite", error="RunFailedError", step=60)
    assert tracker.close() is True
    assert tracker.close() is True
    assert states(sweep) == {"tiny": "FAILED", one.run_id: "FINISHED", two.run_id: "FAILED"}
    notes = rows(sweep, "select value from tags where key = 'mlflow.note.content'")
    assert ("RunFailedError: loss is not finite",) in notes
    assert {value for (value,) in rows(sweep, "select value from params where key = 'seed'")} == {"0", "1"}


def test_mlflow_keeps_its_statistics_to_itself_whoever_imports_it(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune imports it before the writer does, and then it decides."""
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    Tracker(sweep)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_what_mlflow_needs_is_imported_ahead(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr("raysweep.tracking.tracker.import_mlflow", imported.append)
    Tracker(sweep).warm_up()
    wait_for(lambda: imported == [tracking_uri(sweep)])


@pytest.mark.parametrize(("latest", "opened"), [(0.2, True), (60.0, False)])
def test_mlflow_is_opened_late(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, latest: float, opened: bool
) -> None:
    """Not before there is something to write, but after some time in any case."""
    monkeypatch.setattr("raysweep.tracking.tracker.PERIOD", 0.05)
    monkeypatch.setattr("raysweep.tracking.tracker._LATEST", latest)
    tracker = Tracker(sweep)
    tracker.start()
    time.sleep(0.5)
    assert (tracker._writer._thread is not None) is opened
    record(sweep.ledger().run(sweep.runs[0]), sweep.runs[0], 50)
    wait_for(lambda: len(states(sweep)) == 2)
    assert tracker.close()


def test_who_ends_a_launch_does_not_wait_for_mlflow(sweep: Sweep) -> None:
    """A store that was not opened stays closed, and the next launch writes the records of this one."""
    tracker = Tracker(sweep)
    tracker.start()
    record(sweep.ledger().run(sweep.runs[0]), sweep.runs[0], 50)
    began = time.monotonic()
    assert not tracker.close(most=5.0)
    assert time.monotonic() - began < 2.0
    assert tracker._writer._thread is None
    assert not tracker.close()
    again = Tracker(sweep)
    assert again.close()
    assert len(states(sweep)) == 2


def test_a_later_launch_fills_the_gap_and_writes_nothing_twice(sweep: Sweep) -> None:
    one, two = sweep.runs
    record(sweep.ledger().run(one), one, 50)
    first = Tracker(sweep)
    first.start()
    assert first.close()
    assert states(sweep) == {"tiny": "KILLED", one.run_id: "KILLED"}
    for spec in (one, two):
        for step in spec.milestones:
            record(sweep.ledger().run(spec), spec, step)
    for _ in range(2):
        tracker = Tracker(sweep)
        tracker.start()
        assert tracker.close()
        assert states(sweep) == {"tiny": "FINISHED", one.run_id: "FINISHED", two.run_id: "FINISHED"}
        counts = rows(sweep, "select count(*) from metrics group by run_uuid, key, step")
        assert counts == [(1,)] * (2 * 2 * (5 + 2))
    assert len(rows(sweep, "select 1 from runs")) == 3


def test_a_stretch_that_is_trained_again_changes_no_point(sweep: Sweep) -> None:
    [one, _] = sweep.runs
    run = sweep.ledger().run(one)
    record(run, one, 100)
    assert Tracker(sweep).close()
    before = set(rows(sweep, "select key, step, timestamp, value from metrics"))
    # A milestone before it is asked for later; its curve overlaps, at later times.
    later = tuple(CurvePoint(step=s, loss=1.0 / s, time_ms=9_000_000 + s) for s in (50, 60, 70))
    run.commit(
        CheckpointRecord(step=70, milestone=True, files={}, curve=later, time=9000.0, train_seconds=1.0)
    )
    assert Tracker(sweep).close()
    after = set(rows(sweep, "select key, step, timestamp, value from metrics"))
    assert after - before == {("train/loss", 50, 9_000_050, 1 / 50)}
    assert before < after
    assert rows(sweep, "select count(*) from runs") == [(2,)]


def test_other_evaluation_settings_are_not_shown(sweep: Sweep) -> None:
    [one, _] = sweep.runs
    run = sweep.ledger().run(one)
    other = one.evaluations["excess_loss"].model_copy(update={"sentences": 32})
    run.record_evaluation(
        50, other, [Metric(name="excess_loss", value=9.0, standard_error=None, n=32, unit="")], seconds=1
    )
    record(run, one, 50)
    assert Tracker(sweep).close()
    assert rows(sweep, "select value from metrics where key = 'excess_loss'") == [(0.5,)]


def test_a_run_that_a_search_algorithm_made_is_shown_with_what_it_varies(sweep: Sweep) -> None:
    tracker = Tracker(sweep)
    tracker.start()
    spec = sweep.variant({"algorithm.lr": 0.01})
    record(sweep.ledger().run(spec), spec, 50)
    assert tracker.close()
    assert states(sweep) == {"tiny": "KILLED", spec.run_id: "KILLED"}
    params = dict(rows(sweep, "select key, value from params"))
    assert params["algorithm.lr"] == "0.01"
    assert params["language.kind"] == spec.language.kind
    names = rows(sweep, "select name from runs join tags using (run_uuid) where key = 'raysweep.run_id'")
    assert names == [("lr 0.01",)]
    # Later launches of the file itself leave it as it is.
    assert Tracker(sweep).close()
    assert states(sweep)[spec.run_id] == "KILLED"


def test_all_settings_are_params_and_the_look_up_table_has_no_model(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE + "include:\n  - algorithm: {kind: lookup_table}\n")
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    for spec in sweep.runs:
        (record if spec.trains else measure)(sweep.ledger().run(spec), spec, spec.milestones[0])
    assert Tracker(sweep).close()
    found = rows(
        sweep,
        "select r.name, p.key, p.value from runs r join params p using (run_uuid) "
        "join tags t on t.run_uuid = r.run_uuid and t.key = 'raysweep.run_id'",
    )
    of: dict[str, dict[str, str]] = {}
    for name, key, value in found:
        of.setdefault(name, {})[key] = value
    assert set(of) == {"seed 0", "seed 1", "lookup_table"}
    trained, [spec, *_] = of["seed 0"], sweep.runs
    assert trained["model.shape"] == spec.model.label.partition("-")[0]
    assert trained["algorithm.lr"] == "0.001"
    assert trained["pretrain.batch_size"] == str(spec.pretrain.batch_size)
    assert trained["evaluate.excess_loss.sentences"] == "64"
    # They change when a run is extended, and MLflow cannot alter a param.
    assert not {"pretrain.steps", "pretrain.milestones"} & set(trained)
    table = of["lookup_table"]
    assert not [key for key in table if key.startswith(("model.", "pretrain.")) or key == "seed"]
    assert table["algorithm.kind"] == "lookup_table"
    assert table["language.kind"] == trained["language.kind"]


def test_files_become_artifacts_of_the_sweep(sweep: Sweep, tmp_path: Path) -> None:
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    figures.mkdir()
    (figures / "steps.svg").write_text("<svg/>")
    page.write_text("old")
    assert not keep_files(sweep, {page: ""})
    assert Tracker(sweep).close()
    assert keep_files(sweep, {page: "", figures: "figures"})
    page.write_text("new")
    assert keep_files(sweep, {page: ""})
    kept = {path.name: path for path in (sweep.directory / "artifacts").rglob("*") if path.is_file()}
    assert set(kept) == {"report.html", "steps.svg", "sweep.json"}
    assert kept["report.html"].read_text() == "new"
    assert kept["steps.svg"].parent.name == "figures"
    # A file that cannot be read ends no launch.
    assert not keep_files(sweep, {tmp_path / "absent": ""})


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what another process has: no memory of MLflow's about the places of artifacts."""
    return lambda: monkeypatch.setattr(utils, "_artifact_repos_cache", OrderedDict())


@pytest.mark.parametrize("copied", [True, False])
def test_artifacts_are_where_the_folder_is(
    sweep: Sweep, tmp_path: Path, elsewhere: Callable[[], None], copied: bool
) -> None:
    """After a folder was moved or copied, MLflow reads and writes artifacts there, and nowhere else."""
    page, place = tmp_path / "report.html", tmp_path / "another place, 100 %"
    page.write_text("old")
    run = Ledger(sweep.directory).run(sweep.runs[0])
    record(run, sweep.runs[0], 100)
    assert Tracker(sweep).close()
    assert keep_files(sweep, {page: ""})
    if copied:
        shutil.copytree(tmp_path / "results", place)
    else:
        (tmp_path / "results").rename(place)
    elsewhere()
    before = sorted((tmp_path / "results").rglob("*"))
    moved = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=place)

    def locations() -> set[str]:
        return {
            uri
            for table, column in (
                ("experiments", "artifact_location"),
                ("runs", "artifact_uri"),
                ("logged_models", "artifact_location"),
            )
            for (uri,) in rows(moved, f"select {column} from {table} where experiment_id != 0")
        }

    root = (moved.directory / "artifacts").as_uri()
    assert len(locations()) >= 4
    assert not any(uri.startswith(root) for uri in locations())
    comparison_links(moved, "http://127.0.0.1:5000")
    assert all(uri.startswith(root) for uri in locations())
    _, parent = locate(moved.name, tracking_uri(moved)) or ("", "")
    kept = moved.directory / "artifacts" / parent / "artifacts" / "report.html"
    kept.write_text("here")
    client = MlflowClient(tracking_uri=tracking_uri(moved))
    assert Path(client.download_artifacts(parent, "report.html")).read_text() == "here"
    # A relaunch goes on in the new place.
    page.write_text("new")
    record(Ledger(moved.directory).run(moved.runs[1]), moved.runs[1], 100)
    assert Tracker(moved).close()
    assert keep_files(moved, {page: ""})
    assert kept.read_text() == "new"
    assert len(list((moved.directory / "artifacts").rglob("config.json"))) == 2
    assert sorted((tmp_path / "results").rglob("*")) == before
    # Without a move nothing is written.
    written = (moved.directory / "mlflow.db").stat().st_mtime_ns
    comparison_links(moved, "http://127.0.0.1:5000")
    assert (moved.directory / "mlflow.db").stat().st_mtime_ns == written


def test_a_launch_alone_finds_artifacts_after_a_move(
    sweep: Sweep, tmp_path: Path, elsewhere: Callable[[], None]
) -> None:
    assert Tracker(sweep).close()
    sweep.directory.parent.rename(tmp_path / "elsewhere")
    elsewhere()
    moved = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "elsewhere")
    assert Tracker(moved).close()
    assert not sweep.directory.exists()
    uris = rows(moved, "select artifact_uri from runs")
    assert all(uri.startswith((moved.directory / "artifacts").as_uri()) for (uri,) in uris)


def test_a_tracker_travels_without_its_threads(sweep: Sweep) -> None:
    tracker = Tracker(sweep, commit="abc")
    tracker.start()
    try:
        again = pickle.loads(pickle.dumps(tracker))  # noqa: S301
    finally:
        tracker.close()
    assert again.close()


def test_the_link_opens_the_charts_of_the_sweep(sweep: Sweep) -> None:
    from raysweep.errors import ConfigError

    with pytest.raises(ConfigError, match="launch it first"):
        comparison_links(sweep, "http://127.0.0.1:5000")
    assert Tracker(sweep).close()
    [(experiment, parent)] = rows(
        sweep,
        "select experiment_id, run_uuid from runs join tags using (run_uuid) where key = 'raysweep.sweep'",
    )
    links = comparison_links(sweep, "http://127.0.0.1:5000")
    assert list(links) == ["charts", "checkpoints", "report"]
    assert links["charts"].startswith(f"http://127.0.0.1:5000/#/experiments/{experiment}/runs?")
    assert "compareRunsMode=CHART" in links["charts"]
    assert links["report"].startswith(
        f"http://127.0.0.1:5000/#/experiments/{experiment}/runs/{parent}/artifacts?"
    )
    # The link names a state of MLflow's page, which is kept where there is something to draw.
    state = charts_key(parent)
    assert f"viewStateShareKey={state.removeprefix('mlflow.sharedViewState.')}" in links["charts"]
    kept = f"select value from experiment_tags where key = '{state}'"
    assert rows(sweep, kept) == []
    one, _ = sweep.runs
    record(sweep.ledger().run(one), one, 50)
    assert Tracker(sweep).close()
    [(value,)] = rows(sweep, kept)
    assert parent in json.loads(value)["searchFilter"]
    command = serve_command(sweep, 5001)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == f"sqlite:///{sweep.directory / 'mlflow.db'}"


def test_sweeps_of_one_name_in_a_shared_store_stay_apart(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'team' / 'mlflow.db'}"
    (tmp_path / "tiny.yaml").write_text(FILE)
    sweeps = [
        load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / who, tracking_uri=uri)
        for who in ("ada", "bo")
    ]
    for value, sweep in enumerate(sweeps):
        record(sweep.ledger().run(sweep.runs[0]), sweep.runs[0], 50, float(value))
    for sweep in [*sweeps, *sweeps]:
        assert Tracker(sweep).close()
    with sqlite3.connect(tmp_path / "team" / "mlflow.db") as database:
        query = "select value from metrics join runs using (run_uuid) where key = 'excess_loss'"
        active = f"{query} and lifecycle_stage = 'active'"
        assert sorted(database.execute(active).fetchall()) == [(0.0,), (1.0,)]
        assert database.execute("select count(*) from runs").fetchall() == [(4,)]
    pairs = [comparison_links(sweep, "http://x") for sweep in sweeps]
    for what in ("charts", "runs side by side", "report"):
        assert pairs[0][what] != pairs[1][what]
    for sweep, side_by_side in zip(sweeps, (pair["runs side by side"] for pair in pairs), strict=True):
        with sqlite3.connect(tmp_path / "team" / "mlflow.db") as database:
            children = database.execute(
                "select r.run_uuid from runs r join tags p on p.run_uuid = r.run_uuid and p.key = "
                "'mlflow.parentRunId' join tags d on d.run_uuid = p.value and d.key = 'raysweep.directory' "
                "where d.value = ? and r.lifecycle_stage = 'active'",
                (str(sweep.directory),),
            ).fetchall()
        assert children
        assert all(run in side_by_side for (run,) in children)


def test_flatten_keeps_lists_whole() -> None:
    assert flatten({"a": {"b": [1, 2], "c": {"d": None}}}) == {"a.b": [1, 2], "a.c.d": None}
