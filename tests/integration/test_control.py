"""A launch that is stopped, and runs of it that are cancelled and tried again, from another process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.real_sweeps import LONG, write

pytestmark = pytest.mark.ray

STEPS = 15_000

Run = Callable[..., tuple[int, str, str]]
Command = Callable[..., subprocess.Popen[str]]


def test_cancel_retry_logs_notices_and_what_is_kept(raysweep: Run, command: Command, tmp_path: Path) -> None:
    storage = tmp_path / "results"
    # Long enough that another process can interfere, which takes seconds to start.
    pretrain = {**LONG["pretrain"], "steps": STEPS, "milestones": [300, STEPS]}
    evaluate = {"excess_loss": LONG["evaluate"]["excess_loss"]}
    changes = {"pretrain": pretrain, "evaluate": evaluate, "axes": {"seed": [0, 1]}, "keep": "last"}
    file = write(tmp_path / "tiny.yaml", LONG | changes)
    told = tmp_path / "told"

    def launch() -> subprocess.Popen[str]:
        return command("launch", file, "--storage", storage, "--notify", f"cat >> {told}; echo >> {told}")

    def ask(*words: str, code: int = 0) -> Any:
        found, out, err = raysweep(*words, "--storage", storage, "--json")
        assert found == code, out + err
        return json.loads(out)

    def wait(process: subprocess.Popen[str], done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not done():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.5)

    def steps(seed: int) -> list[int]:
        """Return the steps of a run's checkpoints on the disk."""
        return sorted(int(p.name[5:]) for p in storage.glob(f"tiny/runs/*-s{seed}-*/checkpoints/step-*"))

    process = launch()
    wait(process, lambda: bool(steps(0)) and bool(steps(1)))
    assert len(ask("cancel", "tiny", "--only", "seed 0")["cancelled"]) == 1
    out, err = process.communicate(timeout=900)
    assert process.returncode == 3, out + err
    assert "cancelled: " in err
    standing = ask("status", "tiny")
    assert standing["counts"] == {"done": 1, "cancelled": 1}
    # The cancelled run left a state to go on from, beside the milestone that may not be measured yet; the
    # other one keeps its last alone.
    *before, left = steps(0)
    assert before in ([], [300])
    assert 0 < left < STEPS
    assert steps(1) == [STEPS]

    code, out, err = raysweep("logs", "seed 1", "--storage", storage)
    assert code == 0, err
    assert f"step {STEPS} is measured: " in out
    assert "worker 0 of 1" in out

    assert len(ask("retry", "tiny")["retried"]) == 1
    process = launch()
    wait(process, lambda: max(steps(0), default=0) > left)
    assert ask("cancel", "tiny")["stopped"]
    out, err = process.communicate(timeout=900)
    assert process.returncode == 130, out + err
    assert "the same command continues" in err

    process = launch()
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, out + err
    assert (steps(0), steps(1)) == ([STEPS], [STEPS])
    events = [json.loads(line)["event"] for line in told.read_text().splitlines()]
    assert events == ["failed", "interrupted", "done"]
    code, out, err = raysweep("logs", "tiny", "--storage", storage, "--follow")
    assert code == 0, err
    assert "asked to stop by process " in out
    assert out.count("launch, pid ") == 3
