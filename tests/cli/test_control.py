"""`raysweep cancel` and `retry`, with a launch that only waits, in a process of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import tiny_sweeps as tiny
from helpers.json_output import check, documented
from helpers.processes import forked
from raysweep.cli import control
from raysweep.cli.app import run
from raysweep.engine.heed import heeded
from raysweep.engine.interrupt import Interrupts
from raysweep.sweep import Sweep, SweepLock, load_sweep, make_plan, unfinished
from raysweep.sweep.cancel import cancel_runs
from raysweep.sweep.provenance import save_launch
from raysweep.sweep.run_state import run_states
from raysweep.sweep.stored import save_sweep

FILE = tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\naxes: {seed: [0, 1, 2]}\n"


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSWEEP_STORAGE", "results")
    monkeypatch.setattr(control, "_PERIOD", 0.05)
    (tmp_path / "tiny.yaml").write_text(FILE)
    loaded = load_sweep(tmp_path / "tiny.yaml")
    save_sweep(loaded)
    return loaded


def launching(sweep: Sweep) -> Callable[[Callable[[], None]], None]:
    """Return work that holds the lock as a launch does, and leaves a note when it is interrupted."""

    def work(ready: Callable[[], None]) -> None:
        try:
            with SweepLock(sweep.directory) as lock, Interrupts() as stop, heeded(lock, stop, print):
                ready()
                time.sleep(300)
        except KeyboardInterrupt:
            (sweep.directory / "interrupted").touch()

    return work


def deaf(sweep: Sweep) -> Callable[[Callable[[], None]], None]:
    """Return work that holds the lock and heeds nothing."""

    def work(ready: Callable[[], None]) -> None:
        with SweepLock(sweep.directory):
            ready()
            time.sleep(300)

    return work


def states(sweep: Sweep) -> list[str]:
    return [row.state for row in run_states(sweep)]


@pytest.mark.parametrize("command", [["cancel", "tiny"], ["cancel", "tiny.yaml", "--only", "seed 0"]])
def test_without_a_launch_there_is_nothing_to_stop(
    sweep: Sweep, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 2
    assert "no launch of it is at work" in capsys.readouterr().err
    assert states(sweep) == ["queued"] * 3


def test_a_launch_is_stopped_as_by_ctrl_c(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    with forked(launching(sweep)) as pid:
        assert run(["cancel", "tiny", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        check(answer, documented()["cancel NAME"])
        assert (answer["sweep"], answer["stopped"]) == ("tiny", True)
        assert answer["launched_by"].startswith(f"process {pid} on ")
        for _ in range(600):
            if (sweep.directory / "interrupted").exists():
                break
            time.sleep(0.1)
        assert (sweep.directory / "interrupted").exists()
    assert states(sweep) == ["queued"] * 3


def test_a_launch_that_does_not_stop(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    with forked(deaf(sweep)) as pid:
        assert run(["cancel", "tiny", "--wait", "0.2"]) == 4
        said = capsys.readouterr().err
        assert f"process {pid} on " in said
        assert "has not stopped within 0.2 s" in said
        assert run(["cancel", "tiny", "--wait", "0"]) == 0


def test_a_cancelled_run_is_left_alone_until_a_retry(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = (spec.run_id for spec in sweep.runs)
    tiny.finish(sweep.ledger().run(sweep.run(third)), sweep.run(third))
    with forked(deaf(sweep)):
        assert run(["cancel", "tiny", "--only", "seed 0", "--only", third, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        check(answer, documented()["cancel NAME --only RUN"])
        assert answer == {"sweep": "tiny", "cancelled": [first]}
        # Again: it has ended already.
        assert run(["cancel", "tiny", "--only", "seed 0"]) == 0
        assert "1 run of these had ended already" in capsys.readouterr().err
        assert run(["cancel", "tiny", "--only", "seed 7"]) == 2
        capsys.readouterr()
    assert states(sweep) == ["cancelled", "queued", "done"]
    assert unfinished(sweep) == (second,)
    assert {item.run_id: item.state for item in make_plan(sweep).runs}[first] == "failed"
    assert run(["status", "tiny"]) == 0
    assert f"cancelled: {first}: cancelled from {os.uname().nodename}" in capsys.readouterr().out

    assert run(["retry", "tiny", "--only", "seed 1"]) == 0
    assert "none of 1 run has failed or is cancelled" in capsys.readouterr().out
    assert run(["retry", "tiny", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["retried"], answer["launched_by"]) == ([first], None)
    assert unfinished(sweep) == (first, second)
    assert [record.cancelled for record in sweep.ledger().open(first).retries()] == [True]


def test_a_retry_while_a_launch_is_at_work(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    cancel_runs(sweep, sweep.runs[:1])
    with forked(deaf(sweep)) as pid:
        assert run(["retry", "tiny"]) == 0
    said = capsys.readouterr().out
    assert f"to be tried again: {sweep.runs[0].run_id}" in said
    assert f"process {pid} on " in said


def test_a_run_that_waits_for_another_can_be_cancelled_alone(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n"
        "axes: {seed: [0]}\ninclude: [{init_from: {run: '16-1-1-32-adamw-s0-*@50'}, seed: 1}]\n"
    )
    two = load_sweep(tmp_path / "two.yaml", storage=tmp_path / "others")
    [waiting] = [spec for spec in two.runs if spec.source is not None]
    assert cancel_runs(two, [waiting]) == [waiting.run_id]
    assert [row.state for row in run_states(two) if row.run_id == waiting.run_id] == ["cancelled"]
    # One that starts from a cancelled run waits in vain.
    two.ledger().open(waiting.run_id).retry()
    [source] = [spec for spec in two.runs if spec.source is None]
    assert cancel_runs(two, [source]) == [source.run_id]
    assert unfinished(replace(two, runs=(waiting, source))) == ()


def test_the_command_to_launch_again_has_the_settings_of_the_last_launch(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["raysweep", "launch", "tiny.yaml", "--set", "pretrain.steps=200", "--set=axes.seed=[0, 1]"]
    argv += ["--address", "head:1", "--only", "x"]
    save_launch(sweep.directory, {"time": 0.0, "pid": 1, "argv": argv})
    assert run(["retry", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == (
        f"raysweep launch {sweep.path} --set pretrain.steps=200 --set 'axes.seed=[0, 1]' --address head:1"
    )
