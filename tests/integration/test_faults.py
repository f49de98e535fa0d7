"""Faults of the machine under a launch: each ends in order, and the next launch gives the same table."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers.processes import descendants, find, forked
from helpers.real_sweeps import LONG, same_points, table, write

pytestmark = pytest.mark.ray
SLOW = pytest.mark.slow

Run = Callable[..., tuple[int, str, str]]


class Launch:
    """A launch of the sweep that has made its first record."""

    def __init__(self, command: Callable[..., Any], folder: Path, storage: Path, **changes: Any) -> None:
        self.file, self.storage = write(folder / "tiny.yaml", {**LONG, **changes}), storage
        self.driver = command("launch", self.file, "--storage", storage)
        self.wait_for(lambda: self.records() > 0)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds while the launch runs."""
        deadline = time.monotonic() + 600
        while not condition():
            assert self.driver.poll() is None, "".join(self.driver.communicate())
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def records(self) -> int:
        return len(list((self.storage / "tiny" / "runs").glob("*/records/*.json")))

    def kill(self, text: str) -> None:
        """Send SIGKILL to the process with `text` in its title."""
        found = find(self.driver.pid, text)
        assert found is not None, descendants(self.driver.pid)
        os.kill(found, signal.SIGKILL)

    def end(self, code: int, seconds: float = 300) -> str:
        """Wait for the end and return what was said on the way."""
        out, err = self.driver.communicate(timeout=seconds)
        assert self.driver.returncode == code, out + err
        assert "Traceback" not in err, err
        assert "internal error" not in err, err
        return str(err)

    def goes_on(self, raysweep: Run, expected: pd.DataFrame) -> str:
        """Launch again: the table is that of the launch that nothing disturbed."""
        code, out, err = raysweep("launch", self.file, "--storage", self.storage)
        assert code == 0, out + err
        pd.testing.assert_frame_equal(table(raysweep, self.file, self.storage), expected)
        return err


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGHUP, signal.SIGINT))],
)
def test_a_signal_ends_a_launch_after_a_checkpoint(
    command: Callable[..., Any], raysweep: Run, expected: pd.DataFrame, tmp_path: Path, number: signal.Signals
) -> None:
    pretrain = {**LONG["pretrain"], "checkpoint_every": None}
    launch = Launch(command, tmp_path, tmp_path / "results", pretrain=pretrain)
    before = time.monotonic()
    launch.driver.send_signal(number)
    assert "same command continues" in launch.end(130)
    assert time.monotonic() - before < 30  # batch systems kill after that
    steps = sorted(path.name for path in (launch.storage / "tiny" / "runs").glob("*/checkpoints/step-*"))
    assert len(steps) == 2
    assert "step-00000300" < steps[-1] < "step-00003000"
    assert "1 resume" in launch.goes_on(raysweep, expected)


@SLOW
def test_a_killed_controller_is_replaced_within_the_launch(
    command: Callable[..., Any], raysweep: Run, expected: pd.DataFrame, tmp_path: Path
) -> None:
    launch = Launch(command, tmp_path, tmp_path / "results")
    launch.kill("TrainController")
    said = launch.end(0)
    assert re.search(r"unfinished.*: training was given up", said), said
    pd.testing.assert_frame_equal(table(raysweep, launch.file, launch.storage), expected)


@SLOW
@pytest.mark.parametrize(
    ("process", "name"),
    [("gcs_server", "GCS"), ("raylet/raylet", "raylet")],
)
def test_the_end_of_ray_itself_is_said(
    command: Callable[..., Any],
    raysweep: Run,
    expected: pd.DataFrame,
    undisturbed: Path,
    tmp_path: Path,
    process: str,
    name: str,
) -> None:
    launch = Launch(command, tmp_path, tmp_path / "results")
    # MLflow is opened some seconds after the first record.
    launch.wait_for(lambda: (launch.storage / "tiny" / "mlflow.db").exists())
    launch.kill(process)
    said = launch.end(4, seconds=60)
    # Ray may end the process before it can say so; its guard does then.
    how = rf"(Ray's {name} at \S+ has died|Ray, or the system, has ended this launch \(.*\))"
    assert re.search(rf"raysweep: {how}; nothing is lost: launch again", said), said
    # MLflow's store is damaged too; all of it is in the ledger.
    os.truncate(launch.storage / "tiny" / "mlflow.db", 40960)
    assert "damaged" in launch.goes_on(raysweep, expected)
    same_points(launch.storage, undisturbed)


def used() -> tuple[int, int]:
    """Return the bytes of memory in use and in all, as Ray's memory monitor sees them."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return total - available, total


@SLOW
def test_short_memory_is_said_and_the_launch_goes_on_with_less(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    """Ray's own monitor kills workers while another process takes memory beyond a threshold."""
    before, total = used()
    limit = before + (4 << 30)
    assert limit < 0.9 * total, "too little memory is free for this test"
    environment = {"RAY_memory_usage_threshold": f"{limit / total:.4f}"}
    launch = Launch(partial(command, env=environment), tmp_path, tmp_path / "results")

    def take(ready: Callable[[], None]) -> None:
        kept = bytearray(limit + (1 << 30) - used()[0])
        kept[::4096] = b"x" * len(kept[::4096])
        ready()
        time.sleep(60)

    with forked(take):
        deadline = time.monotonic() + 30
        while find(launch.driver.pid, "RayTrainWorker") is not None:
            assert time.monotonic() < deadline, "Ray's monitor has killed nobody"
            time.sleep(0.1)
    assert "memory" in launch.end(0)
    runs = list((launch.storage / "tiny" / "runs").glob("*"))
    records = [json.loads(path.read_text()) for path in sorted(runs[0].glob("records/checkpoint-*.json"))]
    assert records[0]["micro_batch"] is None
    assert records[-1]["micro_batch"] == 32


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(path: Path) -> None:
    """Let a file grow until its disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@SLOW
def test_a_full_disk_ends_a_launch_and_nothing_is_lost(
    command: Callable[..., Any], raysweep: Run, expected: pd.DataFrame, small_disk: Path, tmp_path: Path
) -> None:
    launch = Launch(command, tmp_path, small_disk / "results")
    ballast = small_disk / "ballast"
    fill(ballast)
    assert shutil.disk_usage(small_disk).free == 0
    said = launch.end(4, seconds=60)
    assert re.search(r"raysweep: .*cannot be written.*No space left.*make room", said), said
    ballast.unlink()
    launch.goes_on(raysweep, expected)
