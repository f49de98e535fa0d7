"""`raysweep logs`, without Ray."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.processes import forked
from raysweep.cli import logs
from raysweep.cli.app import run
from raysweep.sweep import RunLedger, Sweep, SweepLock, load_sweep
from raysweep.sweep.logs import LAUNCH_LOG
from raysweep.sweep.stored import save_sweep

FILE = """\
name: small
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 8/2/1/16}
algorithm: {kind: adamw}
pretrain: {steps: 4, batch_size: 8}
evaluate: {excess_loss: {sentences: 8}}
axes: {seed: [0, 1]}
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSWEEP_STORAGE", "results")
    (tmp_path / "small.yaml").write_text(FILE)
    loaded = load_sweep(tmp_path / "small.yaml")
    save_sweep(loaded)
    return loaded


def write(run_: RunLedger, log: str, second: int, text: str) -> None:
    run_.logs.mkdir(parents=True, exist_ok=True)
    with (run_.logs / f"{log}.log").open("a") as file:
        file.write(f"2026-01-01 00:00:{second:02d},000 INFO raysweep: {text}\n")


def wait(done: Callable[[], bool]) -> None:
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come")


def test_the_logs_of_a_run_by_each_of_its_names(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sweep.runs
    ledger = sweep.ledger().run(first)
    sweep.ledger().run(second)
    write(ledger, "trial", 1, "trial, pid 7 on here")
    write(ledger, "train-0", 2, "worker 0 of 1")
    write(ledger, "trial", 3, "boom\n  because")
    whole = [
        "trial    2026-01-01 00:00:01,000 INFO raysweep: trial, pid 7 on here",
        "train-0  2026-01-01 00:00:02,000 INFO raysweep: worker 0 of 1",
        "trial    2026-01-01 00:00:03,000 INFO raysweep: boom",
        "trial      because",
    ]
    tail = first.run_id.rpartition("-")[2]
    for name in (first.run_id, "seed 0", "small/seed 0", tail, f"{first.run_id}@4"):
        assert run(["logs", name]) == 0
        assert capsys.readouterr().out.splitlines() == whole
    assert run(["logs", "seed 0", "-n", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == whole[2:]
    assert run(["logs", "seed 0", "--json"]) == 0
    rows = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert rows[1] == {
        "time": "2026-01-01 00:00:02",
        "log": "train-0",
        "text": "2026-01-01 00:00:02,000 INFO raysweep: worker 0 of 1",
    }
    assert run(["logs", "seed 1"]) == 0
    said = capsys.readouterr()
    assert (said.out, "nothing has worked on it" in said.err) == ("", True)


def test_names_that_mean_no_run_or_several(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    for spec in sweep.runs:
        sweep.ledger().run(spec)
    assert run(["logs", "seed 7"]) == 2
    assert "no such run" in capsys.readouterr().err
    assert run(["logs", "8-2-1-16"]) == 2
    assert "matches 2 runs" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["small", "small.yaml"])
def test_a_sweep_alone_is_the_log_of_its_launches(
    sweep: Sweep, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (sweep.directory / LAUNCH_LOG).write_text("2026-01-01 00:00:01,000 INFO raysweep.launch: hello\n")
    assert run(["logs", name, "-f"]) == 0
    said = capsys.readouterr()
    assert said.out == "launch  2026-01-01 00:00:01,000 INFO raysweep.launch: hello\n"
    assert "nobody is at work on it" in said.err


def test_following_ends_with_the_launch(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process launches: it writes one line before the follower comes, and one after."""
    monkeypatch.setattr(logs, "_PERIOD", 0.05)
    monkeypatch.setattr(logs, "_LOOK", 0.1)
    ledger = sweep.ledger().run(sweep.runs[0])
    came = sweep.directory / "came"

    def launch(ready: Callable[[], None]) -> None:
        with SweepLock(sweep.directory):
            write(ledger, "trial", 1, "first")
            ready()
            wait(came.exists)
            write(ledger, "trial", 2, "second")
        time.sleep(60)

    printed: list[str] = []

    def echo(text: str) -> None:
        printed.append(text.rpartition(": ")[2])
        came.touch()

    monkeypatch.setattr(logs.typer, "echo", echo)
    with forked(launch):
        assert run(["logs", "seed 0", "--follow"]) == 0
    assert printed == ["first", "second"]


def test_following_ends_with_the_run(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch goes on with other runs."""
    monkeypatch.setattr(logs, "_PERIOD", 0.05)
    monkeypatch.setattr(logs, "_LOOK", 0.1)
    ledger = sweep.ledger().run(sweep.runs[0])
    write(ledger, "trial", 1, "first")
    ledger.record_failure("no", error="RunFailedError")
    with SweepLock(sweep.directory):
        assert run(["logs", "seed 0", "--follow"]) == 0
    assert "first" in capsys.readouterr().out
