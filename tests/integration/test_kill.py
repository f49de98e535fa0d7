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

from helpers.real_sweeps import changed, points, table, write

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]

#: Long enough to be killed in the middle, with rolling checkpoints to resume from.
SWEEP = changed(
    pretrain={"steps": 3000, "batch_size": 64, "milestones": [300, 3000], "checkpoint_every": 200},
    # A trace that takes several rounds of shards: 1, 2, 4 and 8.
    evaluate={"trace": {"inputs": 4000, "shard_size": 512, "target_rse": 0.001}},
    axes={"seed": [0]},
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uninterrupted")


@pytest.fixture
def expected(uninterrupted: Path, raysweep: Run) -> pd.DataFrame:
    """The tidy table of a launch that nobody disturbed, made once."""
    made = uninterrupted / "table.parquet"
    if made.exists():
        return pd.read_parquet(made)
    file = write(uninterrupted / "tiny.yaml", SWEEP)
    code, out, err = raysweep("launch", file, "--storage", uninterrupted)
    assert code == 0, out + err
    return table(raysweep, file, uninterrupted)


def wait_for(condition: Callable[[], bool], process, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "".join(process.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.02)


def records(storage: Path) -> int:
    return len(list((storage / "tiny" / "runs").glob("*/records/*.json")))


def same_points(storage: Path, reference: Path) -> None:
    """MLflow holds each point once, with the values of the uninterrupted launch; speed is the machine's."""
    mine, theirs = points(storage), points(reference)
    assert not mine.duplicated(["run_id", "key", "step"]).any()
    speeds = ["tokens_per_second", "mfu"]
    assert set(speeds) <= set(mine["key"])
    mine, theirs = (found[~found["key"].isin(speeds)] for found in (mine, theirs))
    order = ["run_id", "key", "step"]
    columns = [*order, "value"]
    pd.testing.assert_frame_equal(
        mine[columns].sort_values(order, ignore_index=True),
        theirs[columns].sort_values(order, ignore_index=True),
    )


@pytest.mark.parametrize("moment", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_driver_killed_then_launched_again(
    command: Callable, raysweep: Run, expected: pd.DataFrame, uninterrupted: Path, tmp_path: Path, moment: int
) -> None:
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", SWEEP)
    driver = command("launch", file, "--storage", storage)
    # A random moment after the first (or third) record: within training, evaluation or writing.
    wait_for(lambda: records(storage) > 2 * moment, driver)
    time.sleep(random.Random().uniform(0, 1.5))
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    pd.testing.assert_frame_equal(table(raysweep, file, storage), expected)
    same_points(storage, uninterrupted)


def test_training_worker_killed(
    command: Callable, raysweep: Run, expected: pd.DataFrame, uninterrupted: Path, tmp_path: Path
) -> None:
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", SWEEP)
    driver = command("launch", file, "--storage", storage)
    wait_for(lambda: records(storage) > 0, driver)
    [log] = (storage / "tiny" / "runs").glob("*/logs/train-0.log")
    worker = int(re.findall(r"pid (\d+)", log.read_text())[-1])
    os.kill(worker, signal.SIGKILL)
    out, err = driver.communicate(timeout=900)
    assert driver.returncode == 0, out + err
    assert len(re.findall(r"pid (\d+)", log.read_text())) == 2
    pd.testing.assert_frame_equal(table(raysweep, file, storage), expected)
    same_points(storage, uninterrupted)


@pytest.mark.slow
def test_interrupted_then_launched_again(
    command: Callable, raysweep: Run, expected: pd.DataFrame, tmp_path: Path
) -> None:
    """Ctrl-C makes a checkpoint of its own, from which the next launch goes on."""
    storage = tmp_path / "results"
    data = changed(**{key: SWEEP[key] for key in ("pretrain", "evaluate", "axes")})
    data["pretrain"]["checkpoint_every"] = None
    file = write(tmp_path / "tiny.yaml", data)
    driver = command("launch", file, "--storage", storage)
    wait_for(lambda: records(storage) > 0, driver)
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=600)
    assert driver.returncode == 130, out + err
    assert "same command continues" in err
    checkpoints = sorted(path.name for path in (storage / "tiny" / "runs").glob("*/checkpoints/step-*"))
    assert len(checkpoints) == 2
    assert "step-00000300" < checkpoints[-1] < "step-00003000"
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    assert "1 resume" in err
    pd.testing.assert_frame_equal(table(raysweep, file, storage), expected)


@pytest.mark.slow
def test_one_of_two_workers_killed(command: Callable, raysweep: Run, tmp_path: Path) -> None:
    """The worker that is left sees an error too; it is not taken for the run's failure."""
    storage = tmp_path / "results"
    file = write(
        tmp_path / "tiny.yaml",
        changed(
            pretrain={"steps": 3000, "batch_size": 64, "milestones": [300, 3000]},
            resources={"workers": 2, "per_worker": {"CPU": 0.5}, "evaluate": {"CPU": 0.5}},
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
