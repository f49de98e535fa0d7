"""The recipes for clusters: what the Slurm script runs, and what the manifest for Kubernetes asks for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from raysweep.engine.cluster import ENVIRONMENT

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "sweeps" / "clusters" / "slurm.sh"

#: Stands in for each program that the script calls: writes down its arguments.
RECORDER = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "$CALLS"
"""


def run_script(folder: Path, *, nodes: int, launch: str) -> subprocess.Popen[bytes]:
    """Start the script with programs that write down their calls; `launch` is the body of `raysweep`."""
    programs = folder / "bin"
    programs.mkdir()
    bodies = {
        # Ray stays until it is ended.
        "ray": "exec sleep 60",
        "srun": "exec sleep 60",
        "scontrol": "",
        "hostname": "echo first",
        # It waits for the nodes, as the real one does.
        "python": """
            if [ "$1" = -c ]; then echo 10.0.0.1; exit; fi
            until grep -q "^ray " "$CALLS"; do sleep 0.1; done
            until [ "$3" = 1 ] || grep -q "^srun " "$CALLS"; do sleep 0.1; done
        """,
        "raysweep": launch,
    }
    for name, body in bodies.items():
        (programs / name).write_text(f"{RECORDER}{body}\n")
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_CPUS_ON_NODE": "16",
        "SLURM_GPUS_ON_NODE": "4",
    }
    arguments = ["bash", str(SCRIPT), "my.yaml", "--set", "a b=c d"]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL)


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_nodes_of_a_job_are_one_cluster_and_the_launch_decides_the_exit(
    tmp_path: Path, nodes: int
) -> None:
    job = run_script(tmp_path, nodes=nodes, launch='[ "$4" = "a b=c d" ] || exit 1; exit 3')
    assert job.wait(60) == 3
    found = calls(tmp_path)
    assert (
        "ray start --head --port 23456 --dashboard-host 127.0.0.1 --num-cpus 16 --num-gpus 4 --block" in found
    )
    others = (
        "srun --nodes 2 --ntasks 2 --exclude first "
        "ray start --address 10.0.0.1:23456 --num-cpus 16 --num-gpus 4 --block"
    )
    assert (others in found) == (nodes == 3)
    assert f"python - 10.0.0.1:23456 {nodes}" in found
    assert found[-1] == "raysweep launch my.yaml --set a b=c d --address 10.0.0.1:23456"


def test_a_launch_that_was_asked_to_stop_is_queued_again(tmp_path: Path) -> None:
    launch = (
        'trap \'kill $!; echo stopped >> "$CALLS"; exit 130\' TERM; sleep 60 &\necho ready >> "$CALLS"; wait'
    )
    job = run_script(tmp_path, nodes=1, launch=launch)
    deadline = time.monotonic() + 60
    while "ready" not in calls(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 130
    assert calls(tmp_path)[-2:] == ["stopped", "scontrol requeue 123456"]


@pytest.fixture
def manifest() -> dict[str, Any]:
    return YAML(typ="safe").load(ROOT / "sweeps" / "clusters" / "kuberay.yaml")


def test_the_manifest_launches_a_sweep_on_a_cluster_with_a_token(manifest: dict[str, Any]) -> None:
    spec = manifest["spec"]
    words = spec["entrypoint"].split()
    assert words[:2] == ["raysweep", "launch"]
    assert (ROOT / words[2].removeprefix("/opt/raysweep/")).is_file()
    assert words[words.index("--address") + 1] == "auto"
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    head = cluster["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    storage = words[words.index("--storage") + 1]
    for group in (head, *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        [node] = pod["containers"]
        assert storage in [mount["mountPath"] for mount in node["volumeMounts"]]
        assert {mount["name"] for mount in node["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


def test_recipes_set_what_ray_must_have_before_it_starts(manifest: dict[str, Any]) -> None:
    wanted = {
        name: ENVIRONMENT[name]
        for name in (
            *("RAY_USAGE_STATS_ENABLED", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"),
            "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS",
        )
    }
    script = SCRIPT.read_text()
    assert all(f"{name}={value}" in script for name, value in wanted.items())
    cluster = manifest["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        [node] = group["template"]["spec"]["containers"]
        assert wanted.items() <= {one["name"]: one["value"] for one in node["env"]}.items()
