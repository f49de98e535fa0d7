"""Results in a real S3-compatible store: killed launches, faults, and nodes that share nothing else."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
from ray.cluster_utils import Cluster

from helpers.hadoop import hadoop_server
from helpers.object_store import Fault, ObjectStore
from helpers.real_sweeps import LONG, changed, write
from raysweep.remote import RemotePath

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]


def table(raysweep: Run, file: Path, root: RemotePath) -> pd.DataFrame:
    target = file.with_suffix(".parquet")
    code, out, err = raysweep("export", file, "-o", target, "--storage", root)
    assert code == 0, out + err
    return pd.read_parquet(target)


def wait_for(root: RemotePath, pattern: str, number: int, driver: Any, sweep: str = "tiny") -> list[Path]:
    """Return the objects of runs whose names fit a pattern, once there are so many."""
    deadline = time.monotonic() + 1200
    while len(found := list((root / sweep / "runs").glob(pattern))) < number:
        assert driver.poll() is None, "".join(driver.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def wait_for_records(root: RemotePath, number: int, driver: Any) -> None:
    wait_for(root, "*/records/*.json", number, driver)


def launch_and_kill_and_launch_again(
    command: Callable[..., Any], raysweep: Run, file: Path, root: RemotePath
) -> pd.DataFrame:
    """Kill a launch after two records, launch again, and return the table."""
    driver = command("launch", file, "--storage", root)
    wait_for_records(root, 2, driver)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    code, out, err = raysweep("launch", file, "--storage", root)
    assert code == 0, out + err
    assert "Traceback" not in err
    return table(raysweep, file, root)


def test_a_killed_launch_goes_on_under_faults_with_the_same_table(
    command: Callable[..., Any], raysweep: Run, expected: pd.DataFrame, store: ObjectStore, tmp_path: Path
) -> None:
    chance = random.Random(0)
    # Every tenth write or so is refused, or carried out without an answer.
    for pattern in ("/records/", "/checkpoints/", "/arrays/", "/lock/", "sweep.json"):
        store.faults.append(Fault("PUT", pattern, times=chance.randint(2, 4), refused=True))
        store.faults.append(Fault("PUT", pattern, times=chance.randint(1, 2), unanswered=True))
    store.faults.append(Fault("GET", "list-type=2", times=5, refused=True))
    store.faults.append(Fault("GET", "/checkpoints/", times=3, refused=True))
    file = write(tmp_path / "tiny.yaml", LONG)
    found = launch_and_kill_and_launch_again(command, raysweep, file, store.root)
    pd.testing.assert_frame_equal(found, expected)
    assert not any(fault.times for fault in store.faults)
    # Nothing of the results came to a disk: a machine that knows only the URL shows all of them.
    assert not (tmp_path / "results").exists()
    other = {"RAYSWEEP_CACHE": str(tmp_path / "other")}
    code, out, err = raysweep("status", "tiny", "--storage", store.root, env=other)
    assert code == 0, err
    assert "done" in out
    code, out, err = raysweep("logs", "tiny", "--storage", store.root, env=other)
    assert code == 0, err
    assert out.count("raysweep.launch: launch, pid") == 2


def test_a_killed_launch_goes_on_in_hadoop_with_the_same_table(
    command: Callable[..., Any], raysweep: Run, expected: pd.DataFrame, tmp_path: Path
) -> None:
    file = write(tmp_path / "tiny.yaml", LONG)
    with hadoop_server(tmp_path) as server:
        found = launch_and_kill_and_launch_again(command, raysweep, file, server.root)
    pd.testing.assert_frame_equal(found, expected)
    assert not (tmp_path / "results").exists()


def test_a_second_launch_is_refused_and_the_first_can_be_cancelled(
    command: Callable[..., Any], raysweep: Run, store: ObjectStore, tmp_path: Path
) -> None:
    # One run leaves a processor to the launch, whose lock is lost where it gets none for half a minute.
    training = {"steps": 100_000, "milestones": [300, 100_000]}
    file = write(tmp_path / "tiny.yaml", changed(pretrain=training, axes={"seed": [0]}))
    driver = command("launch", file, "--storage", store.root)
    wait_for_records(store.root, 1, driver)
    code, _, err = raysweep("launch", file, "--storage", store.root)
    assert code == 2, err
    assert "is in use by process" in err
    code, out, err = raysweep("cancel", "tiny", "--storage", store.root)
    assert code == 0, out + err
    driver.communicate(timeout=300)
    assert driver.returncode == 130


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Three nodes of one CPU that share no folder of raysweep, and a head that runs nothing."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": True})
    try:
        for k in range(3):
            monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / f"node-{k}"))
            cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "driver"))
        yield cluster
    finally:
        cluster.shutdown()
        ray.shutdown()


def launch_and_lose_a_node(
    command: Callable[..., Any], nodes: Cluster, store: ObjectStore, file: Path, timeout: float
) -> None:
    """Launch a sweep on the nodes, lose the one that trains the first run, and wait for the end."""
    driver = command("launch", file, "--storage", store.root, "--address", nodes.address)
    wait_for(store.root, "*/records/*.json", 1, driver, file.stem)
    # Logs are sent every few seconds, so the first one may come behind the first record.
    log = wait_for(store.root, "*/logs/train-0.log", 1, driver, file.stem)[0]
    nodes.remove_node(_node_of(nodes, int(log.read_text().split("pid ")[1].split()[0])), False)
    out, err = driver.communicate(timeout=timeout)
    assert driver.returncode == 0, out + err


@pytest.mark.slow
def test_three_nodes_share_nothing_but_the_store_and_one_is_lost(
    command: Callable[..., Any],
    raysweep: Run,
    expected: pd.DataFrame,
    store: ObjectStore,
    nodes: Cluster,
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "tiny.yaml", LONG)
    launch_and_lose_a_node(command, nodes, store, file, timeout=900)
    pd.testing.assert_frame_equal(table(raysweep, file, store.root), expected)


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_the_main_job_on_three_nodes_with_one_lost_has_the_table_of_one_machine(
    command: Callable[..., Any], raysweep: Run, store: ObjectStore, nodes: Cluster, tmp_path: Path
) -> None:
    """It takes twice the time of the main job, which README states."""
    file = Path(__file__).parents[2] / "sweeps" / "scaling.yaml"
    launch_and_lose_a_node(command, nodes, store, file, timeout=5400)
    code, out, err = raysweep("launch", file, "--storage", tmp_path / "results", timeout=5400)
    assert code == 0, out + err
    tables = []
    for storage in (store.root, tmp_path / "results"):
        code, out, err = raysweep("export", file, "--storage", storage)
        assert code == 0, err
        tables.append(out)
    assert tables[0] == tables[1]
    assert tables[0].count("\n") > 1000


def _node_of(cluster: Cluster, pid: int) -> Any:
    from helpers.processes import descendants

    return next(
        node
        for node in cluster.worker_nodes
        if pid in descendants(node.all_processes["raylet"][0].process.pid)
    )
