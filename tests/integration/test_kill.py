"""Kill anything at any time, launch again: the result is the same."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from helpers.real_sweeps import LONG, changed, same_points, table, write

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]


def wait_for(condition: Callable[[], bool], process, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "".join(process.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.02)


def records(storage: Path) -> int:
    return len(list((storage / "tiny" / "runs").glob("*/records/*.json")))


@pytest.mark.parametrize(
    ("moment", "engine"), [(0, "lanes"), pytest.param(1, "nested", marks=pytest.mark.slow)]
)
def test_driver_killed_then_launched_again(
    command: Callable,
    raysweep: Run,
    expected: pd.DataFrame,
    undisturbed: Path,
    tmp_path: Path,
    moment: int,
    engine: str,
) -> None:
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", {**LONG, "resources": {"engine": engine}})
    driver = command("launch", file, "--storage", storage)
    # A random moment after the first (or third) record: within training, evaluation or writing.
    wait_for(lambda: records(storage) > 2 * moment, driver)
    time.sleep(random.Random().uniform(0, 1.5))
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    pd.testing.assert_frame_equal(table(raysweep, file, storage), expected)
    same_points(storage, undisturbed)


@pytest.mark.parametrize(
    ("engine", "victim"),
    [
        ("nested", "train-0"),
        pytest.param("lanes", "train-0", marks=pytest.mark.slow),
        pytest.param("lanes", "trial", marks=pytest.mark.slow),
        pytest.param("nested", "trial", marks=pytest.mark.slow),
    ],
)
def test_a_process_of_a_run_killed(
    command: Callable,
    raysweep: Run,
    expected: pd.DataFrame,
    undisturbed: Path,
    tmp_path: Path,
    engine: str,
    victim: str,
) -> None:
    """A training worker, or the trial that keeps the lane: the launch itself goes on."""
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", {**LONG, "resources": {"engine": engine}})
    driver = command("launch", file, "--storage", storage)
    wait_for(lambda: records(storage) > 0, driver)
    [folder] = (storage / "tiny" / "runs").glob("*/logs")

    def pids(name: str) -> list[str]:
        return re.findall(r"pid (\d+)", (folder / f"{name}.log").read_text())

    os.kill(int(pids(victim)[-1]), signal.SIGKILL)
    out, err = driver.communicate(timeout=900)
    assert driver.returncode == 0, out + err
    assert len(pids("train-0")) == 2
    assert len(pids("trial")) == (2 if victim == "trial" else 1)
    pd.testing.assert_frame_equal(table(raysweep, file, storage), expected)
    same_points(storage, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_one_of_two_workers_killed(command: Callable, raysweep: Run, tmp_path: Path, sharding: str) -> None:
    """The worker that is left sees an error too; it is not taken for the run's failure."""
    storage = tmp_path / "results"
    file = write(
        tmp_path / "tiny.yaml",
        changed(
            pretrain={"steps": 3000, "batch_size": 64, "milestones": [300, 3000]},
            resources={
                "workers": 2,
                "per_worker": {"CPU": 0.5},
                "evaluate": {"CPU": 0.5},
                "sharding": sharding,
            },
            axes={"seed": [0]},
        ),
    )
    driver = command("launch", file, "--storage", storage)
    wait_for(lambda: records(storage) > 0, driver)
    [log] = (storage / "tiny" / "runs").glob("*/logs/train-1.log")
    os.kill(int(re.findall(r"pid (\d+)", log.read_text())[-1]), signal.SIGKILL)
    out, err = driver.communicate(timeout=900)
    assert driver.returncode == 0, out + err
    assert len(re.findall(r"pid (\d+)", log.read_text())) == 2
    frame = table(raysweep, file, storage)
    assert sorted(frame.step.unique()) == [300, 3000]
    files = [len(list(step.glob("model*"))) for step in (storage / "tiny" / "runs").glob("*/checkpoints/*")]
    assert files == [2 if sharding == "full" else 1] * 2
