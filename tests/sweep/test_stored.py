"""A launched sweep is found again by its name; provenance, locks and languages by themselves."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysweep
from raysweep.engine import launch
from raysweep.errors import ConfigError, DataError, StorageError
from raysweep.evaluation.metric import Metric
from raysweep.sweep import SweepLock, load_sweep, make_plan
from raysweep.sweep.checkpoints import find_checkpoint
from raysweep.sweep.language_file import load_language
from raysweep.sweep.lock import holder
from raysweep.sweep.opened import open_model
from raysweep.sweep.provenance import last_launch, provenance, save_launch
from raysweep.sweep.stored import Launched, load_stored, save_sweep, select, stored_names
from raysweep.sweep.tidy import tidy
from raysweep.sweep.timing import measure
from raysweep.sweep.tracking_uri import check_tracking_uri
from raysweep.training.checkpoint import STATE

FILE = """\
name: small
description: two runs and the look-up table
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw}
pretrain: {steps: 60, batch_size: 16, milestones: [20, 60]}
evaluate: {excess_loss: {sentences: 64}, trace: {inputs: 32}}
axes: {seed: [0, 1]}
include: [{algorithm: {kind: lookup_table}}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return path


def test_stored_and_loaded_is_the_same_sweep(file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file, storage=tmp_path / "results", tracking_uri="http://127.0.0.1:9")
    save_sweep(sweep)
    assert stored_names(tmp_path / "results") == ["small"]
    again = load_stored(sweep.directory)
    assert [run.run_id for run in again.runs] == [run.run_id for run in sweep.runs]
    assert [run.encode() for run in again.runs] == [run.encode() for run in sweep.runs]
    assert (again.name, again.description, again.axes) == (sweep.name, sweep.description, sweep.axes)
    assert again.directory == sweep.directory
    assert again.resources == sweep.resources
    assert again.tracking_uri == "http://127.0.0.1:9"
    assert load_stored(sweep.directory, tracking_uri="sqlite:////x.db").tracking_uri == "sqlite:////x.db"
    assert list(tidy(again.ledger(), again).columns) == list(tidy(sweep.ledger(), sweep).columns)


def test_sections_that_runs_share_are_stored_once(file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file, storage=tmp_path / "results")
    save_sweep(sweep)
    path = sweep.directory / "sweep.json"
    content = json.loads(path.read_text())
    texts = [json.dumps(section) for section in content["sections"]]
    assert len(texts) == len(set(texts)) < 5 * len(sweep.runs)
    # Earlier records have the sections in each run.
    whole = [run.encode() for run in sweep.runs]
    path.write_text(json.dumps({k: v for k, v in content.items() if k != "sections"} | {"runs": whole}))
    assert [run.encode() for run in load_stored(sweep.directory).runs] == whole
    assert Launched(sweep.directory).milestones(sweep.runs[0]) == set(sweep.runs[0].milestones)
    path.write_text(json.dumps(content | {"sections": content["sections"][:1]}))
    with pytest.raises(DataError, match="damaged"):
        load_stored(sweep.directory)


def test_what_is_not_there_or_damaged_says_so(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sweep has been launched"):
        load_stored(tmp_path)
    sweep = load_sweep(file, storage=tmp_path / "results")
    save_sweep(sweep)
    stored = sweep.directory / "sweep.json"
    stored.write_text(stored.read_text()[:-30])
    with pytest.raises(DataError, match="damaged"):
        load_stored(sweep.directory)


def test_results_of_another_version_are_refused_and_left_as_they_are(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = load_sweep(file, storage=tmp_path / "results")
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    metrics = [Metric(name="excess_loss", value=0.5, standard_error=None, n=1, unit="nats")]
    run.record_evaluation(20, spec.evaluations["excess_loss"], metrics, seconds=1.0)
    run.record_failure("loss is nan", error="RunFailedError")
    run.checkpoint_directory(20).mkdir(parents=True)
    (run.checkpoint_directory(20) / STATE).touch()
    save_sweep(sweep)
    stored = sweep.directory / "sweep.json"
    content = json.loads(stored.read_text())
    places: list[Callable[[], object]] = [
        lambda: load_stored(sweep.directory),
        lambda: save_sweep(sweep),
        sweep.ledger,
        lambda: make_plan(sweep),
        lambda: find_checkpoint(sweep.storage, spec.run_id),
        lambda: open_model(str(run.checkpoint_directory(20)), storage=sweep.storage),
        lambda: launch(sweep, retry_failed=True),
    ]
    # The first results did not say their format.
    for written, version in ({}, "0.1"), ({"format": "0.9"}, "0.9"):
        stored.write_text(json.dumps({k: v for k, v in content.items() if k != "format"} | written))
        before = {path: path.read_bytes() for path in sweep.directory.rglob("*") if path.is_file()}
        for place in places:
            with pytest.raises(DataError) as caught:
                place()
            assert "\n" not in str(caught.value)
            for text in (f"raysweep {version}", f"raysweep {raysweep.__version__}", "--storage"):
                assert text in str(caught.value)
        assert {p: p.read_bytes() for p in sweep.directory.rglob("*") if p.is_file()} == before
    assert caplog.text == ""
    # A file whose keys somebody has sorted is read all the same.
    stored.write_text(json.dumps(content, sort_keys=True))
    assert load_stored(sweep.directory).name == sweep.name


def test_select(file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file, storage=tmp_path)
    assert select(sweep, None) is sweep
    assert [run.run_id for run in select(sweep, ["*-s1-*"]).runs] == [sweep.runs[1].run_id]
    assert len(select(sweep, ["*-s1-*", "lookup*"]).runs) == 2
    with pytest.raises(ConfigError, match="matches none of the 3 runs"):
        select(sweep, ["nothing"])


def test_holder(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    lock = SweepLock(tmp_path).acquire()
    assert "process" in (holder(tmp_path) or "")
    lock.release()
    assert holder(tmp_path) is None


def test_provenance(tmp_path: Path) -> None:
    assert last_launch(tmp_path) is None
    facts = provenance()
    assert {"git_commit", "git_dirty", "versions", "argv", "host", "time", "python"} <= set(facts)
    assert facts["versions"]["torch"]
    save_launch(tmp_path, {**facts, "time": 1.0})
    save_launch(tmp_path, {**facts, "time": 2e9})
    assert last_launch(tmp_path) == json.loads(json.dumps({**facts, "time": 2e9}))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, and this package in a folder inside it that is not tracked."""
    home = tmp_path / "somebody's"
    package = home / ".venv" / "site-packages" / "raysweep"
    package.mkdir(parents=True)
    shutil.copy(raysweep.version.__file__, package / "version.py")
    (home / ".gitignore").write_text(".venv\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "theirs"]):
        git(home, *command)
    monkeypatch.setattr(raysweep.version, "__file__", str(package / "version.py"))
    return home


def git(where: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(where), *identity, *arguments], check=True, capture_output=True)


def test_a_repository_around_an_installed_package_is_not_its_checkout(repository: Path) -> None:
    facts = provenance()
    assert (facts["git_commit"], facts["git_dirty"]) == (None, None)
    git(repository, "add", "-f", ".venv")
    git(repository, "commit", "-qm", "the package")
    facts = provenance()
    assert len(facts["git_commit"]) == 40
    assert facts["git_dirty"] is False
    (repository / "new.txt").write_text("new")
    assert provenance()["git_dirty"] is True


def test_changes_that_git_cannot_tell_are_unknown(repository: Path) -> None:
    git(repository, "add", "-f", ".venv")
    git(repository, "commit", "-qm", "the package")
    git(repository, "config", "status.showUntrackedFiles", "nonsense")
    facts = provenance()
    assert len(facts["git_commit"]) == 40
    assert facts["git_dirty"] is None


def test_a_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageError, match="cannot be made"):
        SweepLock(tmp_path / "taken" / "sweep").acquire()
    (tmp_path / "sweep" / "lock").mkdir(parents=True)
    with pytest.raises(StorageError, match="cannot be written"):
        SweepLock(tmp_path / "sweep").acquire()


@pytest.mark.parametrize(
    "uri",
    [
        None,
        *("http://127.0.0.1:5000", "https://mlflow.example.org", "databricks", "databricks://team"),
        *("sqlite:////abs/mlflow.db", "postgresql://u:p@host/db", "postgresql+psycopg2://host/db"),
        *("mysql+pymysql://host/db", "mssql+pyodbc://host/db"),
    ],
)
def test_where_a_sweep_can_be_tracked(uri: str | None, file: Path) -> None:
    assert check_tracking_uri(uri) == uri
    assert load_sweep(file, tracking_uri=uri).tracking_uri == uri


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("sqlite:///rel.db", "write sqlite:///{here}/rel.db"),
        ("sqlite:///:memory:", "write sqlite:///{here}/mlflow.db"),
        ("sqlite://", "write sqlite:///{here}/mlflow.db"),
        ("./mlruns", "MLflow keeps no runs"),
        ("/abs/mlruns", "MLflow keeps no runs"),
        ("file:///abs/mlruns", "MLflow keeps no runs"),
        ("file:mlruns", "MLflow keeps no runs"),
        ("ftp://host/x", "is of no known kind"),
    ],
)
def test_where_a_sweep_cannot_be_tracked(uri: str, remedy: str, file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file, storage=tmp_path / "results")
    save_sweep(sweep)
    for refused in (
        lambda: load_sweep(file, tracking_uri=uri),
        lambda: load_stored(sweep.directory, tracking_uri=uri),
    ):
        with pytest.raises(ConfigError) as caught:
            refused()
        assert f"tracking_uri: '{uri}'" in str(caught.value)
        assert remedy.format(here=tmp_path) in str(caught.value)


def test_language_of_a_sweep_file_or_alone(file: Path, tmp_path: Path) -> None:
    alone = tmp_path / "hmm.yaml"
    alone.write_text("kind: hmm\nstates: 4\nvocabulary: 8\nlength: 4\nblocks: 2\ntasks: [1]\n")
    assert load_language(file).fingerprint == load_language(alone).fingerprint
    other = load_language(alone, overrides=["seed=3"])
    assert other.fingerprint != load_language(alone).fingerprint
    assert load_language(file, overrides=["language.seed=3"]).fingerprint == other.fingerprint
    with pytest.raises(ConfigError, match=r"--set statez=9: language.statez: .* did you mean 'states'"):
        load_language(alone, overrides=["statez=9"])
    with pytest.raises(ConfigError, match=r"language.langauge: unknown field"):
        load_language(alone, overrides=["langauge.states=9"])
    with pytest.raises(ConfigError, match=r"--set langauge.states=9: .* did you mean 'language'"):
        load_language(file, overrides=["langauge.states=9"])
    with pytest.raises(ConfigError, match=r"language.statez: unknown field"):
        load_language(file, overrides=["language.statez=9"])
    # The language shown is the base's, so that an axis of the sweep may be given a value.
    file.write_text(file.read_text().replace("{seed: [0, 1]}", "{language.seed: [1, 2]}"))
    assert load_language(file, overrides=["language.seed=3"]).fingerprint == other.fingerprint
    alone.write_text("kind: hmm\nstatez: 4\n")
    with pytest.raises(ConfigError, match=r"hmm.yaml:2:1: language.statez: unknown field"):
        load_language(alone)


def test_step_times_of_runs_without_a_record(file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file, storage=tmp_path / "results")
    timed = measure(sweep, sweep.runs, steps=3)
    assert set(timed) == {run.run_id for run in sweep.runs if run.trains}
    assert len(set(timed.values())) == 1  # the seeds share one timing
    assert all(0 < seconds < 1 for seconds in timed.values())
    training = [run.cost.training for run in make_plan(sweep, step_seconds=timed).runs]
    assert sum(filter(None, training)) == pytest.approx(120 * next(iter(timed.values())))


def test_rates_share_a_timing_and_settings_that_change_a_step_do_not(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []

    def step_seconds(language: Any, model: Any, algorithm: Any, pretrain: Any, **how: Any) -> float:
        timed.append(algorithm.label)
        return 0.1 * len(timed)

    monkeypatch.setattr("raysweep.sweep.timing.step_seconds", step_seconds)
    axes = "axes: {algorithm.lr: [1e-3, 2e-3], algorithm.ema: [null, 0.9]}"
    file.write_text(file.read_text().replace("axes: {seed: [0, 1]}", axes))
    sweep = load_sweep(file, storage=tmp_path / "results")
    found = measure(sweep, sweep.runs)
    assert len(timed) == 2
    averaged = {run.run_id: run.algorithm.ema is not None for run in sweep.runs if run.trains}
    assert {averaged[run_id]: seconds for run_id, seconds in found.items()} == {False: 0.1, True: 0.2}


def test_the_look_up_table_has_no_model_axis(file: Path, tmp_path: Path) -> None:
    file.write_text(FILE.replace("axes: {seed: [0, 1]}", "axes: {model.shape: [16/1/1/32, 16/2/1/32]}"))
    sweep = load_sweep(file, storage=tmp_path / "results")
    metrics = [Metric(name="excess_loss", value=0.0, standard_error=None, n=1, unit="nats")]
    for run in sweep.runs:
        evaluation = run.evaluations["excess_loss"]
        sweep.ledger().run(run).record_evaluation(run.milestones[-1], evaluation, metrics, seconds=1.0)
    frame = tidy(sweep.ledger(), sweep)
    lookup = frame[frame["algorithm"] == "lookup_table"]
    assert len(lookup) == 1
    assert lookup["model.shape"].isna().all()
    assert set(frame[frame["algorithm"] != "lookup_table"]["model.shape"]) == {"16/1/1/32", "16/2/1/32"}
