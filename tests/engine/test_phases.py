"""The phases of a launch: their times, the processor time of children, and a launch that is cut short."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysweep.engine import phases
from raysweep.engine.phases import Phases
from raysweep.sweep.provenance import all_launches, save_launch


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_launch(tmp_path, {"time": 1e9, "pid": os.getpid(), "host": socket.gethostname()})
    return tmp_path


def kept(directory: Path) -> list[tuple[str, float, float | None]]:
    [facts] = all_launches(directory)
    return [(found["name"], found["seconds"], found["cpu_seconds"]) for found in facts.get("phases", [])]


def test_each_phase_has_its_own_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 103.0, 110.0, 111.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    monkeypatch.setattr(phases, "PROC", directory / "none")
    with Phases(directory) as counting:
        counting.begin("work")
        counting.begin("end")
    assert kept(directory) == [("start", 3.0, None), ("work", 7.0, None), ("end", 1.5, None)]


def test_a_launch_that_is_cut_short_keeps_what_it_was_at(directory: Path) -> None:
    def launch() -> None:
        with Phases(directory) as counting:
            counting.begin("work")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch()
    assert [name for name, _, _ in kept(directory)] == ["start", "work"]


def test_a_launch_without_work_tells_nothing(directory: Path) -> None:
    with Phases(directory):
        pass
    assert kept(directory) == []


@pytest.mark.skipif(not phases.PROC.joinpath("self", "stat").exists(), reason="there is no /proc here")
def test_the_processor_time_of_children_counts(directory: Path) -> None:
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with Phases(directory) as counting:
        counting.begin("work")
        with subprocess.Popen([sys.executable, "-c", spin], stdin=-1, stdout=-1) as child:
            assert child.stdout is not None
            child.stdout.readline()
            counting.begin("end")
            child.communicate(b"\n")
    used = {name: cpu for name, _, cpu in kept(directory)}
    assert used["work"] is not None
    # It has used half a second, and the system counts whole ticks.
    assert used["work"] >= 0.45
