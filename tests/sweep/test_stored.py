"""A launched sweep is found again by its name; provenance, locks and languages by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysweep.errors import ConfigError, DataError
from raysweep.sweep import SweepLock, load_sweep, tidy
from raysweep.sweep.language_file import load_language
from raysweep.sweep.lock import holder
from raysweep.sweep.provenance import last_launch, provenance, save_launch
from raysweep.sweep.stored import load_stored, save_sweep, select, stored_names
from raysweep.sweep.timing import measure

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


def test_what_is_not_there_or_damaged_says_so(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sweep has been launched"):
        load_stored(tmp_path)
    sweep = load_sweep(file, storage=tmp_path / "results")
    save_sweep(sweep)
    stored = sweep.directory / "sweep.json"
    stored.write_text(stored.read_text()[:-30])
    with pytest.raises(DataError, match="damaged"):
        load_stored(sweep.directory)


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


def test_language_of_a_sweep_file_or_alone(file: Path, tmp_path: Path) -> None:
    alone = tmp_path / "hmm.yaml"
    alone.write_text("kind: hmm\nstates: 4\nvocabulary: 8\nlength: 4\nblocks: 2\ntasks: [1]\n")
    assert load_language(file).fingerprint == load_language(alone).fingerprint
    other = load_language(alone, overrides=["seed=3"])
    assert other.fingerprint != load_language(alone).fingerprint
    assert load_language(file, overrides=["language.seed=3"]).fingerprint == other.fingerprint
    alone.write_text("kind: hmm\nstatez: 4\n")
    with pytest.raises(ConfigError, match=r"hmm.yaml:2:1: language.statez: unknown field"):
        load_language(alone)


def test_step_times_of_runs_without_a_record(file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file, storage=tmp_path / "results")
    timed = measure(sweep, steps=3)
    assert set(timed) == {run.run_id for run in sweep.runs if run.trains}
    assert len(set(timed.values())) == 1  # the seeds share one timing
    assert all(0 < seconds < 1 for seconds in timed.values())
    assert sweep.plan(step_seconds=timed).work_seconds == pytest.approx(120 * next(iter(timed.values())))
