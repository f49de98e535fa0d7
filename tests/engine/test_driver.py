"""A launch that finds nothing to do, and one whose Tune ends with an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import raysweep as rs
from helpers import tiny_sweeps as tiny
from helpers.transfer_ledger import transfer_sweep
from raysweep.engine import driver, forks
from raysweep.engine.interrupt import Interrupts
from raysweep.engine.outcome import Trouble
from raysweep.errors import ConfigError, StorageError
from raysweep.report import sweep_verdicts
from raysweep.sweep import RunLedger, snapshot
from raysweep.sweep.run_state import run_states

#: The runs of a sweep without a search.
GRID: Any = SimpleNamespace(sweep=SimpleNamespace(to_choose=0), halving=lambda board: None)


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_began_early_is_ended_but_not_that_of_the_callers_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    ended: list[str] = []
    server = SimpleNamespace(alive=True, close=lambda: ended.append("closed"))
    monkeypatch.setattr(forks, "_SERVERS", [server])
    monkeypatch.setattr(driver.ray, "is_initialized", lambda: connected)
    assert rs.launch(sweep).worked_on == ()
    assert ended == ([] if connected else ["closed"])


@pytest.mark.parametrize(
    ("resources", "address", "message"),
    [
        ("{per_worker: {GPU: 512}}", None, "{GPU: 512}, but this machine has .*--address HOST:PORT"),
        ("{workers: 1}", "127.0.0.1:1", "127.0.0.1:1"),
    ],
)
def test_a_launch_that_is_refused_is_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: str, address: str | None, message: str
) -> None:
    """It is refused before Ray starts, and nothing of it is in the list of sweeps."""
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    overrides = [f"resources={resources}"]
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results", overrides=overrides)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(driver.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(driver.ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    with pytest.raises((ConfigError, StorageError), match=message):
        rs.launch(sweep, address=address)
    assert not list((tmp_path / "results").rglob("sweep.json"))


def test_the_end_of_a_launch_leaves_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first command after a launch of thousands of runs does not read each of their records."""
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    monkeypatch.setattr(snapshot, "MANY", 1)
    monkeypatch.setattr(snapshot, "SETTLED", -60.0)
    monkeypatch.setattr(
        driver, "make_plan", lambda *_, **__: SimpleNamespace(finished=True, lines=lambda **_: [], to_do=())
    )
    monkeypatch.setattr(driver, "tidy_up", lambda *_: None)
    rs.launch(sweep)
    monkeypatch.setattr(RunLedger, "read", lambda *_: pytest.fail("a record was read"))
    assert {state.state for state in run_states(sweep)} == {"done"}


def test_results_offer_the_verdicts_on_the_claims(tmp_path: Path) -> None:
    sweep = transfer_sweep(tmp_path, "claims=[{beats: {task: A}}, {larger: {}}]")
    results = rs.Results(sweep=sweep, failures={}, unfinished={}, worked_on=(), tracked=True)
    found = results.verdicts()
    assert [one.encode() for one in found] == [one.encode() for one in sweep_verdicts(sweep)]
    assert "trained models beat the look-up table: " in found[0].sentence
    assert "larger models are better: " in found[1].sentence


def test_runs_are_unfinished_where_tune_itself_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's memory monitor may kill the process of a trial, and Tune then raises what Ray said of it."""

    def fit() -> None:
        killed = ray.exceptions.OutOfMemoryError("2 workers were killed\nSelected to kill: ...")
        raise RuntimeError("Caught unexpected exception") from killed

    told = Trouble("other", "its node died")
    board = SimpleNamespace(troubles=lambda: {"a": told})
    monkeypatch.setattr(driver, "build", lambda *arguments, **options: SimpleNamespace(fit=fit))
    shared: Any = SimpleNamespace(board=board)
    troubles = driver._attempt(GRID, ["a", "b"], shared, 2, Interrupts())
    assert troubles["a"] == told
    assert troubles["b"] == Trouble("memory", "2 workers were killed")


def test_an_error_of_a_trial_is_that_of_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a trial that has reported nothing may have the config of its actor's trial before."""
    died = ray.exceptions.OutOfMemoryError("a worker was killed")

    def trial(run_id: str, pickled: Exception | None = None, text: Exception | None = None) -> Any:
        return SimpleNamespace(
            config={"run": run_id}, get_pickled_error=lambda: pickled, get_error=lambda: text
        )

    def build(*_: object, callbacks: list[Any], **__: object) -> Any:
        trials = [trial("a"), trial("b", pickled=died), trial("c", text=RuntimeError("as text alone"))]
        return SimpleNamespace(fit=lambda: callbacks[0].on_experiment_end(trials=trials))

    monkeypatch.setattr(driver, "build", build)
    services: Any = SimpleNamespace(board=SimpleNamespace(troubles=dict))
    troubles = driver._attempt(GRID, ["a", "b", "c"], services, 2, Interrupts())
    assert troubles.keys() == {"b", "c"}
    assert troubles["b"] == Trouble("memory", "a worker was killed")
    assert "as text alone" in troubles["c"].message


def test_a_defect_of_a_tuner_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit() -> None:
        raise RuntimeError("a defect") from ValueError("no")

    monkeypatch.setattr(driver, "build", lambda *arguments, **options: SimpleNamespace(fit=fit))
    services: Any = SimpleNamespace(board=None)
    with pytest.raises(RuntimeError, match="a defect"):
        driver._attempt(GRID, ["a"], services, 2, Interrupts())
