"""Lanes give bitwise what nested training gives, and keep their workers from run to run."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
from ray.util.state import list_actors

import raysweep as rs
from helpers.real_sweeps import changed, table, write

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]


def sweep(engine: str, **sections: Any) -> dict[str, Any]:
    return changed(resources={"engine": engine, **sections.pop("resources", {})}, **sections)


def pids(storage: Path, rank: int = 0) -> dict[str, list[str]]:
    """Return run id -> the processes that trained it, in order."""
    logs = (storage / "tiny" / "runs").glob(f"*/logs/train-{rank}.log")
    return {log.parent.parent.name: re.findall(r"pid (\d+)", log.read_text()) for log in logs}


def weights(storage: Path) -> dict[str, bytes]:
    runs = storage / "tiny" / "runs"
    return {str(p.relative_to(runs)): p.read_bytes() for p in runs.glob("*/checkpoints/*/*.safetensors")}


def test_lanes_and_nested_training_give_the_same_bits(raysweep: Run, tmp_path: Path) -> None:
    """One of the three runs fails; its lane does not end with it."""
    axes = {"algorithm.lr": [1e30, 1e-3, 1e-2], "seed": [0]}
    frames, files = [], []
    for engine in ("nested", "lanes"):
        storage = tmp_path / engine
        file = write(tmp_path / f"{engine}.yaml", sweep(engine, axes=axes))
        code, out, err = raysweep("launch", file, "--storage", storage, "--json")
        assert code == 3, out + err
        failures = json.loads(out)["failures"]
        assert len(failures) == 1
        assert all("the training loss is nan" in message for message in failures.values())
        frames.append(table(raysweep, file, storage))
        files.append(weights(storage))
    pd.testing.assert_frame_equal(*frames)
    assert len(files[0]) >= 8
    assert files[0] == files[1]

    trained = pids(tmp_path / "lanes")
    assert len(trained) == 3
    assert all(len(found) == 1 for found in trained.values())
    lanes = Counter(found[0] for found in trained.values())
    assert len(lanes) <= (os.cpu_count() or 1)
    assert all(len(found) == 1 for found in pids(tmp_path / "nested").values())
    assert len({found[0] for found in pids(tmp_path / "nested").values()}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_lanes_of_two_workers(raysweep: Run, tmp_path: Path, sharding: str) -> None:
    """A run that fails takes the two workers down; the lane starts them again for the next run."""
    shares = {
        "workers": 2,
        "per_worker": {"CPU": 0.5},
        "evaluate": {"CPU": 0.5},
        "max_concurrent": 1,
        "sharding": sharding,
    }
    frames, files = [], []
    for engine in ("nested", "lanes"):
        storage = tmp_path / engine
        data = sweep(engine, resources=shares, axes={"algorithm.lr": [1e-3, 1e30, 1e-2]})
        file = write(tmp_path / f"{engine}.yaml", data)
        code, out, err = raysweep("launch", file, "--storage", storage, "--json")
        assert code == 3, out + err
        assert len(json.loads(out)["failures"]) == 1
        frames.append(table(raysweep, file, storage))
        files.append(weights(storage))
    pd.testing.assert_frame_equal(*frames)
    assert files[0] == files[1]
    first = {found[0] for found in pids(tmp_path / "lanes").values()}
    assert len(first) == 2
    assert {found[0] for found in pids(tmp_path / "lanes", rank=1).values()}.isdisjoint(first)


@pytest.mark.slow
def test_a_run_that_loses_its_workers_too_often_is_put_off_and_the_lane_goes_on(
    command: Callable, tmp_path: Path
) -> None:
    """The other run is trained first, and then the launch comes back to the one that had trouble."""
    storage = tmp_path / "results"
    data = sweep(
        "lanes",
        resources={"max_concurrent": 1},
        pretrain={"steps": 8000, "milestones": [8000], "checkpoint_every": 1000},
        axes={"seed": [0]},
        include=[{"seed": 1, "pretrain.steps": 60, "pretrain.milestones": [20, 60]}],
    )
    del data["evaluate"]
    file = write(tmp_path / "tiny.yaml", data)
    troubled, other = (run.run_id for run in rs.load_sweep(file, storage=storage).runs)
    driver = command("launch", file, "--storage", storage)
    killed: list[str] = []
    while len(killed) < 4:
        assert driver.poll() is None, driver.communicate()
        found = pids(storage).get(troubled, [])
        if found and found[-1] not in killed:
            time.sleep(0.2)
            os.kill(int(found[-1]), signal.SIGKILL)
            killed.append(found[-1])
        time.sleep(0.05)
    out, err = driver.communicate(timeout=600)
    assert driver.returncode == 0, out + err
    assert len(pids(storage)[troubled]) == 5
    assert len(pids(storage)[other]) == 1
    log = (storage / "tiny" / "runs" / troubled / "logs" / "trial.log").read_text()
    assert "the workers of the run were lost 4 times" in log


@pytest.mark.slow
def test_nothing_of_a_launch_is_left_in_the_callers_ray(tmp_path: Path) -> None:
    data = sweep("lanes")
    del data["evaluate"]
    file = write(tmp_path / "tiny.yaml", data)
    ray.init(num_cpus=2, include_dashboard=True, log_to_driver=False)
    try:
        results = rs.launch(rs.load_sweep(file, storage=tmp_path / "results"))
        assert not results.failures
        assert not results.unfinished

        def left() -> list[Any]:
            living = list_actors(filters=[("state", "!=", "DEAD")])
            return [actor for actor in living if "Autoscaling" not in actor.class_name]

        deadline = time.monotonic() + 20
        while left() and time.monotonic() < deadline:
            time.sleep(0.5)
        assert not left()
        assert ray.available_resources()["CPU"] == 2
    finally:
        ray.shutdown()
