"""The recipes for clusters: what the Slurm script runs, and what the manifests for Kubernetes ask for."""

from __future__ import annotations

import io
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from helpers import tiny_sweeps as tiny
from raysweep.cli.app import run
from raysweep.engine.cluster import ENVIRONMENT

ROOT = Path(__file__).parents[1]
CLUSTERS = ROOT / "sweeps" / "clusters"
#: The schemas of KubeRay's v1 resources: `openAPIV3Schema` of its CRDs, without descriptions.
CRDS = json.loads(lzma.decompress((ROOT / "tests" / "oracles" / "kuberay-1.6.2.json.xz").read_bytes()))

#: Stands in for each program that the script calls: writes down its arguments.
RECORDER = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "$CALLS"
"""


def run_script(folder: Path, *, nodes: int, launch: str) -> subprocess.Popen[bytes]:
    """Start the script with programs that write down their calls; `launch` is the body of `raysweep`."""
    programs = folder / "bin"
    programs.mkdir()
    script = folder / "job.sh"
    script.write_text(printed(folder, "slurm", "--set", "tolerance=0.1"))
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
    arguments = ["bash", str(script), "--set", "a b=c d"]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL)


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_nodes_of_a_job_are_one_cluster_and_the_launch_decides_the_exit(
    tmp_path: Path, nodes: int
) -> None:
    job = run_script(tmp_path, nodes=nodes, launch='[ "$8" = "a b=c d" ] || exit 1; exit 3')
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
    launch = "launch mine.yaml --set tolerance=0.1 --storage /shared/our results --set a b=c d"
    assert found[-1] == f"raysweep {launch} --address 10.0.0.1:23456"


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


def test_the_script_is_clean_bash(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(printed(tmp_path, "slurm", "--set", 'description=it\'s "here"'))
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        found = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
        assert found.stdout == ""


@pytest.mark.parametrize(
    ("resources", "nodes", "gpus"),
    [
        ("{}", 6, None),
        ("{per_worker: {GPU: 1}}", 6, 1),
        ("{workers: 8, per_worker: {GPU: 1}}", 8, 6),
        ("{workers: 64, per_worker: {GPU: 1}, max_concurrent: 1}", 8, 8),
        ("{per_worker: {GPU: 0.25}, max_concurrent: 4}", 1, 1),
    ],
)
def test_the_script_asks_for_the_nodes_that_its_runs_fill(
    tmp_path: Path, resources: str, nodes: int, gpus: int | None
) -> None:
    settings = [f"resources={resources}", "pretrain.batch_size=64"]
    text = printed(tmp_path, "slurm", *(part for one in settings for part in ("--set", one)))
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))
    assert asked["job-name"] == "raysweep-my-own-sweep"
    assert asked["nodes"] == str(nodes)
    assert asked.get("gpus-per-node") == (None if gpus is None else str(gpus))
    told = f"# Of 8 nodes (--nodes) it asks for {nodes}: all runs at once fill no more.\n"
    assert (told in text) == (nodes < 8)
    assert ("(--nodes)" in text) == (nodes < 8)


def printed(folder: Path, recipe: str, *options: str, storage: str = "/shared/our results") -> str:
    """Return what `raysweep submit --print` prints for a sweep of six runs in a folder."""
    (folder / "base.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    axes = "axes: {seed: [0, 1, 2], algorithm.lr: [1e-3, 2e-3]}"
    (folder / "mine.yaml").write_text(f"extends: base.yaml\nname: My.own_sweep\n# Ein Kommentar: ä\n{axes}\n")
    return command(folder, ["submit", "mine.yaml", *options, "--storage", storage, "--print", recipe])


def command(folder: Path, words: list[str]) -> str:
    """Return what a command prints that is given in a folder."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.stdout", out)
        assert run(words) == 0
    return out.getvalue()


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, which Kubernetes would drop."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("pattern", None)
    closed = "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")
    return (
        {**found, "additionalProperties": False}
        if closed and isinstance(schema["properties"], dict)
        else found
    )


def checked(text: str) -> list[dict[str, Any]]:
    """Return the resources of a manifest, those of KubeRay checked by its own schemas and limits."""
    parts = list(YAML(typ="safe").load_all(text))
    for part in parts:
        name = part["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 47
        if part["kind"] in CRDS:
            schema = strict(CRDS[part["kind"]])
            schema["properties"]["metadata"] = {"type": "object"}
            jsonschema.Draft202012Validator(schema).validate(part)
    return parts


def test_the_check_of_manifests_is_not_a_rubber_stamp(tmp_path: Path) -> None:
    text = printed(tmp_path, "kuberay")
    for right, wrong in (("backoffLimit: 3", "backoffLimit: three"), ("maxReplicas: ", "maxReplica: ")):
        assert right in text
        with pytest.raises(jsonschema.ValidationError):
            checked(text.replace(right, wrong))


def test_a_manifest_holds_the_sweep_and_launches_it(tmp_path: Path) -> None:
    options = ["--set", "tolerance=0.1", "--only", "*seed 0*", "--image", "hub.io/me/ray:1", "--claim", "vol"]
    files, job = checked(printed(tmp_path, "kuberay", *options))
    assert (files["kind"], job["kind"]) == ("ConfigMap", "RayJob")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:5] == ["raysweep", "launch", "/sweep/mine.yaml", "--address", "auto"]
    assert words[5:9] == ["--set", "tolerance=0.1", "--only", "*seed 0*"]
    assert words[9:] == ["--storage", "/shared/our results"]
    cluster = job["spec"]["rayClusterSpec"]
    head, [workers] = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert (workers["minReplicas"], workers["maxReplicas"]) == (0, 2)
    volumes = {volume["name"]: volume for volume in head["template"]["spec"]["volumes"]}
    for item in volumes["sweep"]["configMap"]["items"]:
        assert files["data"][item["key"]] == (tmp_path / item["path"]).read_text()
    assert [item["path"] for item in volumes["sweep"]["configMap"]["items"]] == ["mine.yaml", "base.yaml"]
    assert volumes["sweep"]["configMap"]["name"] == files["metadata"]["name"]
    for group in (head, workers):
        pod = group["template"]["spec"]
        [node] = pod["containers"]
        assert node["image"] == "hub.io/me/ray:1"
        assert "/shared/our results" in [mount["mountPath"] for mount in node["volumeMounts"]]
        assert {mount["name"] for mount in node["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        assert {"claimName": "vol"} in [v.get("persistentVolumeClaim") for v in pod["volumes"]]


def test_a_manifest_for_an_object_store_asks_for_no_volume(tmp_path: Path) -> None:
    text = printed(tmp_path, "kuberay-cluster", storage="s3://bucket/results")
    [cluster] = checked(text)
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        assert group["template"]["spec"]["volumes"] == []
    assert "claim" not in text.lower()
    assert "credentials" in text


@pytest.mark.parametrize(
    ("resources", "pod", "most"),
    [
        ("{}", {"cpu": "2", "memory": "8Gi"}, 6),
        ("{max_concurrent: 2}", {"cpu": "2", "memory": "8Gi"}, 2),
        ("{per_worker: {CPU: 3, memory: 42949672960}}", {"cpu": "4", "memory": "40Gi"}, 6),
        ("{per_worker: {GPU: 1}}", {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}, 6),
        ("{workers: 4, per_worker: {GPU: 1}}", {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}, 8),
        (
            "{per_worker: {GPU: 0.5}, max_concurrent: 3}",
            {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"},
            2,
        ),
    ],
)
def test_a_cluster_has_the_nodes_that_its_runs_fill(
    tmp_path: Path, resources: str, pod: dict[str, str], most: int
) -> None:
    text = printed(tmp_path, "kuberay-cluster", "--set", f"resources={resources}")
    [cluster] = checked(text)
    assert cluster["kind"] == "RayCluster"
    [workers] = cluster["spec"]["workerGroupSpecs"]
    [node] = workers["template"]["spec"]["containers"]
    assert node["resources"]["requests"] == pod
    assert workers["maxReplicas"] == most
    told = f"Of 8 nodes (--nodes) it asks for {most}: all runs at once fill no more."
    assert (told in " ".join(text.replace("\n# ", " ").split())) == (most < 8)
    assert "raysweep submit mine.yaml" in text


def test_resources_of_the_owner_are_named_to_ray(tmp_path: Path) -> None:
    [cluster] = checked(
        printed(tmp_path, "kuberay-cluster", "--set", "resources={per_worker: {CPU: 1, disk: 2}}")
    )
    [workers] = cluster["spec"]["workerGroupSpecs"]
    assert json.loads(shlex.split(workers["rayStartParams"]["resources"])[0]) == {"disk": 2}


@pytest.mark.parametrize("name", ["kuberay.yaml", "kuberay-cluster.yaml", "slurm.sh"])
def test_the_files_beside_the_sweeps_are_what_the_command_in_them_prints(name: str) -> None:
    text = (CLUSTERS / name).read_text()
    [told] = re.findall(r"^# +(raysweep submit .*--print [\w-]+)(?: > job.sh)?$", text, re.MULTILINE)
    assert command(ROOT, shlex.split(told)[1:]) == text
    if name.endswith(".yaml"):
        checked(text)


def test_recipes_set_what_ray_must_have_before_it_starts() -> None:
    wanted = {
        name: ENVIRONMENT[name]
        for name in (
            *("RAY_USAGE_STATS_ENABLED", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"),
            "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS",
        )
    }
    script = (CLUSTERS / "slurm.sh").read_text()
    assert all(f"{name}={value}" in script for name, value in wanted.items())
    _, job = checked((CLUSTERS / "kuberay.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        [node] = group["template"]["spec"]["containers"]
        assert wanted.items() <= {one["name"]: one["value"] for one in node["env"]}.items()
