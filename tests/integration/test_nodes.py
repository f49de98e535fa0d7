"""Several raylets on this machine: a node that leaves, hangs or comes, and a head that is started again."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
from ray.cluster_utils import Cluster

from helpers.processes import descendants
from helpers.real_sweeps import LONG, changed, table, write

pytestmark = [pytest.mark.ray, pytest.mark.slow]

Run = Callable[..., tuple[int, str, str]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(port: int) -> Cluster:
    head = {"num_cpus": 0, "gcs_server_port": port, "include_dashboard": True, "dashboard_port": free_port()}
    return Cluster(initialize_head=True, head_node_args=head)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head without processors, and one node of one processor."""
    made = start(free_port())
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()
    ray.shutdown()


def begun(
    command: Callable[..., Any],
    cluster: Cluster,
    folder: Path,
    *options: str,
    sweep: dict[str, Any] = LONG,
) -> Any:
    """Return a launch on the cluster that has made its first record."""
    file = write(folder / "tiny.yaml", sweep)
    storage = folder / "results"
    driver = command("launch", file, "--storage", storage, "--address", cluster.address, *options)
    deadline = time.monotonic() + 600
    while not list((storage / "tiny" / "runs").glob("*/records/*.json")):
        assert driver.poll() is None, "".join(driver.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return driver


def ends_as(driver: Any, raysweep: Run, folder: Path, expected: pd.DataFrame) -> str:
    out, err = driver.communicate(timeout=900)
    assert driver.returncode == 0, out + err
    assert "Traceback" not in err
    pd.testing.assert_frame_equal(table(raysweep, folder / "tiny.yaml", folder / "results"), expected)
    return str(err)


def workers(folder: Path) -> list[int]:
    [log] = (folder / "results" / "tiny" / "runs").glob("*/logs/train-0.log")
    return [int(pid) for pid in re.findall(r"pid (\d+)", log.read_text())]


def sizes(folder: Path) -> list[str]:
    """Return the number of workers of each attempt of the only run."""
    [log] = (folder / "results" / "tiny" / "runs").glob("*/logs/train-0.log")
    return re.findall(r"worker 0 of (\d)", log.read_text())


def test_a_node_is_replaced(
    cluster: Cluster, command: Callable[..., Any], raysweep: Run, expected: pd.DataFrame, tmp_path: Path
) -> None:
    driver = begun(command, cluster, tmp_path)
    [node] = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=1)
    ends_as(driver, raysweep, tmp_path, expected)
    assert len(workers(tmp_path)) == 2


@pytest.mark.parametrize("comes", [False, True], ids=["none comes", "another comes"])
def test_a_run_goes_on_with_the_workers_that_are_there(
    command: Callable[..., Any], raysweep: Run, tmp_path: Path, comes: bool
) -> None:
    """Of two nodes with a worker each, which share the weights, one goes; later, another one may come."""
    cluster, steps = start(free_port()), 3000 if comes else 1500
    try:
        nodes = [cluster.add_node(num_cpus=3) for _ in range(2)]
        sweep = changed(
            pretrain={
                "steps": steps, "batch_size": 64, "milestones": [100, steps], "checkpoint_every": 200
            },
            resources={
                "workers": 2,
                "min_workers": 1,
                "resize_every": 5.0,
                "sharding": "full",
                "per_worker": {"CPU": 2},
                "evaluate": {"CPU": 1},
            },
            axes={"seed": [0]},
        )  # fmt: skip
        driver = begun(command, cluster, tmp_path, sweep=sweep)
        cluster.remove_node(nodes[1], allow_graceful=False)
        if comes:
            deadline = time.monotonic() + 300
            while sizes(tmp_path) != ["2", "1"]:
                assert driver.poll() is None, "".join(driver.communicate())
                assert time.monotonic() < deadline
                time.sleep(0.5)
            cluster.add_node(num_cpus=3)
        out, err = driver.communicate(timeout=900)
        assert driver.returncode == 0, out + err
        assert "Traceback" not in err
    finally:
        cluster.shutdown()
        ray.shutdown()
    frame = table(raysweep, tmp_path / "tiny.yaml", tmp_path / "results")
    assert sorted(frame.step.unique()) == [100, steps]
    [run] = (tmp_path / "results" / "tiny" / "runs").iterdir()
    assert sizes(tmp_path) == ["2", "1", "2"][: 3 if comes else 2]
    files = [sorted(step.glob("model*")) for step in sorted((run / "checkpoints").iterdir())]
    assert [len(found) for found in files] == [2, 2 if comes else 1]


def test_a_node_that_hangs_is_replaced(
    cluster: Cluster, command: Callable[..., Any], raysweep: Run, expected: pd.DataFrame, tmp_path: Path
) -> None:
    """Its raylet and all of its processes stand still for longer than Ray's health check allows."""
    driver = begun(command, cluster, tmp_path)
    [node] = cluster.worker_nodes
    [raylet] = node.all_processes["raylet"]
    still = [raylet.process.pid, *descendants(raylet.process.pid)]
    for pid in still:
        os.kill(pid, signal.SIGSTOP)
    cluster.add_node(num_cpus=1)
    deadline = time.monotonic() + 300
    while len(workers(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    for pid in still:
        os.kill(pid, signal.SIGCONT)
    ends_as(driver, raysweep, tmp_path, expected)
    # The worker that wakes may remove the state from which its successor starts, which then starts again.
    assert len(workers(tmp_path)) in (2, 3)


def test_a_launch_waits_for_its_head_and_goes_on(
    command: Callable[..., Any], raysweep: Run, expected: pd.DataFrame, tmp_path: Path
) -> None:
    port = free_port()
    cluster = start(port)
    try:
        cluster.add_node(num_cpus=1)
        driver = begun(command, cluster, tmp_path, "--reconnect", "5")
        cluster.shutdown()
        time.sleep(15)
        assert driver.poll() is None, "".join(driver.communicate())
        cluster = start(port)
        cluster.add_node(num_cpus=1)
        said = ends_as(driver, raysweep, tmp_path, expected)
        assert "waiting for the cluster for 5 min" in said
    finally:
        cluster.shutdown()
        ray.shutdown()
