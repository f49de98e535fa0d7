"""The log of a launch."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import raysweep as rs
from helpers import tiny_sweeps as tiny
from raysweep.engine.chronicle import Chronicle
from raysweep.errors import StorageError
from raysweep.sweep.logs import launch_logs
from raysweep.sweep.run_state import LaunchState, RunState
from raysweep.sweep.under_way import UnderWay


def texts(directory: Path) -> list[str]:
    return [entry.text.partition(": ")[2] for entry in launch_logs(directory).new()]


def test_changes_warnings_and_the_end_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = RunState(run_id="a", model="m", label="run a", steps=100, state="training", step=10)
    with Chronicle(tmp_path) as chronicle:
        chronicle(LaunchState(runs=[state], elapsed=1.0))
        chronicle(LaunchState(runs=[state], elapsed=2.0))
        assert UnderWay.read(tmp_path).runs == {"a": ("training", 10)}
        logging.getLogger("raysweep.launch").warning("a trial ended")
        chronicle.__exit__(StorageError, StorageError("the disk is full"), None)
    found = texts(tmp_path)
    assert found[0].startswith("launch, pid ")
    assert found[1:] == ["run a: training, step 10/100", "a trial ended", "ended: the disk is full", "ended"]
    assert logging.getLogger("raysweep").handlers == []
    assert UnderWay.read(tmp_path) == UnderWay()


@pytest.mark.parametrize("handled", [False, True])
def test_warnings_are_printed_as_without_it(
    tmp_path: Path, handled: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = logging.getLogger("raysweep.other")
    with monkeypatch.context() as patch:
        # pytest has handlers at the root.
        patch.setattr(logging.getLogger(), "handlers", [])
        patch.setattr(other, "handlers", [logging.NullHandler()] if handled else [])
        other.warning("before")
        with Chronicle(tmp_path):
            other.warning("meanwhile")
    assert capsys.readouterr().err == ("" if handled else "before\nmeanwhile\n")
    assert "meanwhile" in texts(tmp_path)


def test_a_launch_keeps_its_plan(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    rs.launch(sweep)
    found = texts(sweep.directory)
    assert any("nothing to train or evaluate" in text for text in found)
    assert found[-1] == "ended"
