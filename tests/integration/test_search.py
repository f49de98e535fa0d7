"""A search from a file, killed and launched again: the same samples, runs and numbers as undisturbed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers.real_sweeps import changed, table, write

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]


def searching(path: Path, *, milestones: tuple[int, ...], **search: Any) -> Path:
    data = changed(
        pretrain={"steps": milestones[-1], "milestones": list(milestones), "checkpoint_every": 200},
        search={
            "metric": "excess_loss",
            "samples": 3,
            "space": {"algorithm.lr": {"loguniform": [1e-4, 1e-2]}, "seed": {"int_uniform": [0, 9]}},
        }
        | search,
    )
    del data["axes"]
    data["evaluate"] = {"excess_loss": {"sentences": 96, "shard_size": 64}}
    return write(path / "tiny.yaml", data)


def records(storage: Path) -> list[Path]:
    return list((storage / "tiny" / "runs").glob("*/records/*.json"))


def kill_at(process: Any, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, "".join(process.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_killed_random_search_ends_as_one_that_was_not(
    command: Callable, raysweep: Run, tmp_path: Path
) -> None:
    file = searching(tmp_path, milestones=(20, 600))
    undisturbed, storage = tmp_path / "undisturbed", tmp_path / "results"
    code, out, err = raysweep("launch", file, "--storage", undisturbed)
    assert code == 0, out + err
    assert "Search: samples by excess_loss, the least first; 3 of 3 have ended" in out
    kill_at(command("launch", file, "--storage", storage), lambda: len(records(storage)) >= 3)
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    pd.testing.assert_frame_equal(table(raysweep, file, storage), table(raysweep, file, undisturbed))
    # Nothing is left to do.
    code, out, err = raysweep("launch", file, "--storage", storage, "--json")
    assert code == 0, out + err
    assert json.loads(out)["worked_on"] == []


@pytest.mark.slow
def test_a_killed_asha_keeps_its_decisions(command: Callable, raysweep: Run, tmp_path: Path) -> None:
    asha = {"kind": "asha", "grace_period": 20, "reduction_factor": 2}
    file = searching(tmp_path, milestones=(20, 6000), samples=4, scheduler=asha)
    storage = tmp_path / "results"
    driver = command("launch", file, "--storage", storage)
    kill_at(driver, lambda: any(path.name.startswith("stopped-") for path in records(storage)))
    first = {path for path in records(storage) if path.name.startswith("stopped-")}
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    assert "stopped by asha at step 20" in out
    for path in first:
        steps = [p.name for p in path.parent.glob("evaluation-*.json")]
        assert all(name.startswith("evaluation-00000020") for name in steps)
    code, out, err = raysweep("status", file, "--storage", storage, "--json")
    found = json.loads(out)
    assert {path.parent.parent.name for path in first} <= {
        run["run_id"] for run in found["runs"] if run["state"] == "stopped"
    }
    states = [sample["state"] for sample in found["samples"]]
    assert set(states) == {"done", "stopped"}
    assert found["no_longer_in_file"] == []


@pytest.mark.slow
def test_a_killed_optuna_goes_on_with_what_it_knows(command: Callable, raysweep: Run, tmp_path: Path) -> None:
    file = searching(tmp_path, milestones=(20,), samples=13, algorithm="optuna")
    storage = tmp_path / "results"
    chosen = storage / "tiny" / "search"
    kill_at(command("launch", file, "--storage", storage), lambda: any(chosen.glob("*/sample-*.json")))
    kept = {path: path.read_bytes() for path in chosen.glob("*/sample-*.json")}
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    assert "13 of 13 have ended" in out
    assert len(list(chosen.glob("*/sample-*.json"))) == 3
    assert {path: path.read_bytes() for path in kept} == kept
