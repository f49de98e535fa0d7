"""Launches on a cluster that grows, and that they share.  Several raylets on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.state import available_resources_per_node
from ray.cluster_utils import Cluster

from helpers.processes import descendants, find
from helpers.real_sweeps import changed, write

pytestmark = [pytest.mark.ray, pytest.mark.slow]

Command = Callable[..., Any]

#: Seconds until a node that joins trains: Tune starts a trial, and Ray Train a worker.
SOON = 90.0


#: Commands in the configuration of a cluster; none is needed here.
COMMANDS = ["initialization", "setup", "worker_setup", "head_setup", "worker_start_ray", "head_start_ray"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head without processors, and one node of one processor."""
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": 0}
    made = Cluster(initialize_head=True, connect=True, head_node_args=head)
    made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def autoscaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head without processors, whose autoscaler adds at most two nodes of one processor on demand."""
    port = free_port()
    worker = {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2}
    config = {
        "cluster_name": "growing",
        "max_workers": 2,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 10,
        "provider": {
            "type": "fake_multinode",
            "disable_node_updaters": True,
            "use_node_id_as_ip": True,
            "gcs_address": f"{ray.util.get_node_ip_address()}:{port}",
        },
        # Ray's validator would fill in the rest, but the wheel lacks the defaults of this provider.
        **{key: {} for key in ("auth", "file_mounts", "head_node")},
        **{f"{name}_commands": [] for name in COMMANDS},
        "cluster_synced_files": [],
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": worker,
        },
    }
    file = tmp_path / "autoscaling.json"
    file.write_text(json.dumps(config))
    monkeypatch.setenv("RAY_FAKE_CLUSTER", "1")
    monkeypatch.setenv("AUTOSCALER_UPDATE_INTERVAL_S", "1")
    # A raylet on a busy machine takes its time.
    monkeypatch.setenv("AUTOSCALER_HEARTBEAT_TIMEOUT_S", "120")
    head = {
        **{"num_cpus": 0, "gcs_server_port": port, "include_dashboard": True, "dashboard_port": 0},
        "autoscaling_config": str(file),
    }
    made = Cluster(initialize_head=True, connect=True, head_node_args=head)
    yield made
    # The nodes that the autoscaler has started outlive it.
    monitor = find(os.getpid(), "monitor.py")
    left = [] if monitor is None else [*descendants(monitor)]
    ray.shutdown()
    made.shutdown()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def launched(command: Command, cluster: Cluster, folder: Path, runs: int, engine: str) -> Any:
    """Start a launch of some runs, each of some ten seconds of training."""
    data = changed(
        name=folder.name,
        pretrain={"steps": 4000, "batch_size": 64, "milestones": [4000], "checkpoint_every": 1000},
        axes={"seed": list(range(runs))},
        resources={"engine": engine},
    )
    data["evaluate"] = {"excess_loss": {"sentences": 96}}
    file = write(folder / "tiny.yaml", data)
    return command("launch", file, "--storage", folder / "results", "--address", cluster.address)


def log_of(folder: Path) -> str:
    log = folder / "results" / folder.name / "launch.log"
    return log.read_text() if log.exists() else ""


def trained(folder: Path) -> list[tuple[datetime, datetime]]:
    """Return first and last line of each training, in the order of their beginnings."""
    found = []
    for log in (folder / "results" / folder.name / "runs").glob("*/logs/train-0.log"):
        times = [datetime.fromisoformat(at) for at in re.findall(r"^(\S+ \S+?),", log.read_text(), re.M)]
        found.append((times[0], times[-1]))
    return sorted(found)


def wait(what: Callable[[], object], *drivers: Any, seconds: float = 300.0) -> float:
    """Wait for something while launches go on; return the seconds that it took."""
    began = time.monotonic()
    while not what():
        for driver in drivers:
            assert driver.poll() is None, "".join(driver.communicate())
        assert time.monotonic() - began < seconds
        time.sleep(0.2)
    return time.monotonic() - began


def busy(node: Any) -> bool:
    return available_resources_per_node()[node.node_id].get("CPU", 0.0) < 0.5


def ends(driver: Any) -> None:
    out, err = driver.communicate(timeout=900)
    assert driver.returncode == 0, out + err
    assert "Traceback" not in err


@pytest.mark.parametrize("engine", ["nested", "lanes"])
def test_a_node_that_joins_is_used(cluster: Cluster, command: Command, tmp_path: Path, engine: str) -> None:
    [first] = cluster.worker_nodes
    driver = launched(command, cluster, tmp_path, 4, engine)
    wait(lambda: busy(first), driver)
    second = cluster.add_node(num_cpus=1)
    assert wait(lambda: busy(second), driver, seconds=SOON) < SOON
    ends(driver)
    assert "2 runs at once from now on" in log_of(tmp_path)
    assert len(trained(tmp_path)) == 4


def test_two_launches_share_a_cluster(cluster: Cluster, command: Command, tmp_path: Path) -> None:
    """Lanes keep their workers, so the first gives some back for the second, and takes them again."""
    cluster.add_node(num_cpus=1)
    one, two = tmp_path / "one", tmp_path / "two"
    first = launched(command, cluster, one, 6, "lanes")
    wait(lambda: all(map(busy, cluster.worker_nodes)), first)
    second = launched(command, cluster, two, 2, "lanes")
    ends(second)
    assert first.poll() is None
    ends(first)
    assert re.findall(r"(\d+) runs? at once from now on", log_of(one)) == ["1", "2"]
    assert re.findall(r"(\d+) runs? at once from now on", log_of(two)) == ["1"]
    ours, theirs = trained(one), trained(two)
    assert (len(ours), len(theirs)) == (6, 2)
    # Neither waits for the end of the other.
    assert ours[0][0] < theirs[0][0] < ours[-1][0]


def test_launches_that_are_more_than_fit_take_turns(
    cluster: Cluster, command: Command, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = launched(command, cluster, one, 2, "lanes")
    wait(lambda: all(map(busy, cluster.worker_nodes)), first)
    second = launched(command, cluster, two, 1, "lanes")
    ends(first)
    ends(second)
    ours, theirs = trained(one), trained(two)
    assert (len(ours), len(theirs)) == (2, 1)
    assert theirs[0][0] < ours[-1][0]


def test_the_share_of_a_killed_launch_goes_to_the_other(
    cluster: Cluster, command: Command, tmp_path: Path
) -> None:
    cluster.add_node(num_cpus=1)
    one, two = tmp_path / "one", tmp_path / "two"
    first = launched(command, cluster, one, 6, "nested")
    wait(lambda: all(map(busy, cluster.worker_nodes)), first)
    second = launched(command, cluster, two, 3, "nested")
    wait(lambda: trained(two), first, second)
    os.kill(first.pid, signal.SIGKILL)
    wait(lambda: "2 runs at once from now on" in log_of(two), second, seconds=60)
    ends(second)
    assert len(trained(two)) == 3


def test_a_launch_makes_a_cluster_grow(autoscaled: Cluster, command: Command, tmp_path: Path) -> None:
    """There is no room for a run at first, and three runs ask for more than the two nodes that may come."""

    def nodes() -> int:
        return sum(node["Alive"] for node in ray.nodes()) - 1

    assert nodes() == 0
    driver = launched(command, autoscaled, tmp_path, 3, "nested")
    wait(lambda: nodes() == 2, driver)
    wait(lambda: "2 runs at once from now on" in log_of(tmp_path), driver, seconds=60)
    ends(driver)
    assert len(trained(tmp_path)) == 3
