"""Recipes that make a Ray cluster for one sweep: manifests for KubeRay, and a script for Slurm.

A node of theirs holds at least one training process of a run beside one evaluation.  The number of nodes is
that which all runs at once would fill, and not more than asked for.
"""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import ray
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from raysweep.engine.cluster import ENVIRONMENT
from raysweep.errors import ConfigError
from raysweep.sweep import Sweep
from raysweep.sweep.shipment import Shipment

#: CPUs beside each GPU, and GiB of memory for each CPU, of a node whose sweep does not ask for more.
CPUS_PER_GPU, GIB_PER_CPU = 8, 4

#: Most GPUs of a node.
_GPUS = 8

#: Most bytes of the sweep files in a manifest; Kubernetes takes no more.
_MOST = 1_000_000

#: The folder of the sweep files in the container of the head.
_SWEEP = "/sweep"

#: Settings that Ray must have before it starts.
_SETTINGS = (
    *("RAY_USAGE_STATS_ENABLED", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"),
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS",
)


@dataclass(frozen=True)
class Recipes:
    """The recipes for a sweep, whose launch has the arguments `words` behind the sweep file."""

    sweep: Sweep
    shipment: Shipment
    words: Sequence[str]
    #: Folder of all sweeps, or the address of a store.
    storage: str
    #: Container image with raysweep.
    image: str
    #: Claim of the volume that holds the storage.
    claim: str
    #: Most nodes that work at once.
    nodes: int

    @cached_property
    def _node(self) -> dict[str, float]:
        """Return the resources of a node, in whole numbers but for the sweep's own ones."""
        train, evaluate = self.sweep.resources.per_worker, self.sweep.resources.evaluate
        node = {name: max(train.get(name, 0), evaluate.get(name, 0)) for name in {**train, **evaluate}}
        node["GPU"] = math.ceil(node.get("GPU", 0))
        cpus = math.ceil(train.get("CPU", 0) + evaluate.get("CPU", 0))
        node["CPU"] = max(1, cpus, node["GPU"] * CPUS_PER_GPU)
        memory = train.get("memory", 0) + evaluate.get("memory", 0)
        node["memory"] = max(math.ceil(memory / 2**30), node["CPU"] * GIB_PER_CPU)
        return node

    @cached_property
    def _processes(self) -> int:
        """Return the number of training processes at once if there is room for all."""
        most = self.sweep.resources.max_concurrent
        runs = sum(run.trains for run in self.sweep.runs) + self.sweep.to_choose
        return max(1, min(runs, most) if isinstance(most, int) else runs) * self.sweep.resources.workers

    @cached_property
    def _each(self) -> int:
        """Return the number of training processes that a node holds beside an evaluation, at least 1."""
        needs, room = self.sweep.resources, {**self._node, "memory": self._node["memory"] * 2**30}
        left = {name: n - needs.evaluate.get(name, 0) for name, n in room.items()}
        fits = (int(left[name] / n + 1e-9) for name, n in needs.per_worker.items() if n > 0)
        return max(1, min(fits, default=1))

    @cached_property
    def _workers(self) -> int:
        """Return the most nodes for training."""
        return min(self.nodes, math.ceil(self._processes / self._each))

    @property
    def _fewer(self) -> str:
        """Return a sentence on nodes that may be asked for and are not, "" where there are none."""
        if self._workers == self.nodes:
            return ""
        return f"Of {self.nodes} nodes (--nodes) it asks for {self._workers}: all runs at once fill no more."

    @property
    def _name(self) -> str:
        """Return a name that Kubernetes and Slurm take."""
        return "raysweep-" + re.sub(r"[^a-z0-9]+", "-", self.sweep.name.lower())[:32].strip("-")

    @property
    def _is_store(self) -> bool:
        """Return whether the storage is an object store, which no volume brings."""
        return "://" in self.storage

    def _command(self, recipe: str) -> str:
        options = {"--image": self.image} if "kuberay" in recipe else {}
        options |= {} if not options or self._is_store else {"--claim": self.claim}
        options |= {"--nodes": str(self.nodes), "--print": recipe}
        given = [word for option in options.items() for word in option]
        return shlex.join(["raysweep", "submit", str(self.sweep.path), *self.words, *given])

    def kuberay(self) -> str:
        """Return the manifest of a RayJob: the sweep's files, and a cluster for the time of the launch."""
        place = f"{_SWEEP}/{self.shipment.files[0]}"
        texts = {
            f"file-{k}": (self.shipment.root / file).read_text(encoding="utf-8")
            for k, file in enumerate(self.shipment.files)
        }
        if sum(len(text.encode()) for text in texts.values()) > _MOST:
            raise ConfigError(f"{self.sweep.path}: is too large for a manifest; use --print kuberay-cluster")
        items = [
            {"key": key, "path": str(file)} for key, file in zip(texts, self.shipment.files, strict=True)
        ]
        sweep = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self._name},
            "data": {key: LiteralScalarString(text) for key, text in texts.items()},
        }
        cluster = self._cluster({"name": "sweep", "configMap": {"name": self._name, "items": items}})
        job = {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": self._name},
            "spec": {
                "entrypoint": shlex.join(["raysweep", "launch", place, "--address", "auto", *self.words]),
                "backoffLimit": 3,
                "shutdownAfterJobFinishes": True,
                "ttlSecondsAfterFinished": 600,
                "rayClusterSpec": cluster,
            },
        }
        return self._document(
            "kuberay",
            "A sweep on Kubernetes, by KubeRay: its files, and a Ray cluster with workers on demand, for as "
            "long as the launch takes.",
            f"  kubectl apply -f FILE\n  kubectl logs -f job/{self._name}",
            "When the cluster or the launch is lost, KubeRay starts the job anew up to `backoffLimit` times, "
            "and it goes on from there.",
            [sweep, job],
        )

    def kuberay_cluster(self) -> str:
        """Return the manifest of a RayCluster that takes jobs."""
        cluster = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": self._name},
            "spec": self._cluster(),
        }
        submit = [
            "raysweep",
            "submit",
            str(self.sweep.path),
            *self.words,
            "--address",
            "http://localhost:8265",
        ]
        token = f"kubectl get secret {self._name} -o jsonpath='{{.data.auth_token}}' | base64 -d"
        return self._document(
            "kuberay-cluster",
            "A Ray cluster on Kubernetes, by KubeRay, that takes sweeps as jobs and has workers on demand.",
            f"  kubectl apply -f FILE\n  kubectl port-forward service/{self._name}-head-svc 8265 &\n"
            f'  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$({token})"\n  {shlex.join(submit)}',
            "It stays until `kubectl delete -f FILE`.",
            [cluster],
        )

    def _document(
        self, recipe: str, title: str, commands: str, after: str, parts: Sequence[Mapping[str, Any]]
    ) -> str:
        image = "a container image with raysweep installed as README says (and bash and wget, which KubeRay's"
        needs = [
            f"{'To change: IMAGE, ' if self.image == 'IMAGE' else 'The image is '}{image} probes call).",
            "All nodes reach the storage with credentials of their own, such as a service account's."
            if self._is_store
            else f"The claim `{self.claim}` is a volume that many nodes can write (ReadWriteMany).",
            "KubeRay makes a token that all of Ray asks for.",
            "A lost node, such as a spot one, costs the time since the last checkpoint.",
            after,
        ]
        needs += [self._fewer] if self._fewer else []
        text = f"{title}  Printed by\n\n  {self._command(recipe)}\n\n{commands}\n\n{'  '.join(needs)}"
        out = io.StringIO()
        yaml = YAML()
        yaml.width = 110
        yaml.indent(mapping=2, sequence=4, offset=2)
        yaml.dump_all(parts, out)
        return _comment(text) + out.getvalue()

    def _cluster(self, *volumes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the specification of a cluster whose head sees further volumes."""
        node = self._node
        own = {name: n for name, n in node.items() if name not in ("CPU", "GPU", "memory")}
        size = {"cpu": str(node["CPU"]), "memory": f"{node['memory']}Gi"}
        if node["GPU"]:
            size["nvidia.com/gpu"] = str(node["GPU"])
        start = {"resources": shlex.quote(json.dumps(own))} if own else {}
        return {
            "rayVersion": ray.__version__,
            "authOptions": {"mode": "token"},
            "enableInTreeAutoscaling": True,
            "headGroupSpec": {
                # Drivers and trials take no CPU.  Training must not run on the head.
                "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                "template": self._pod({"cpu": "2", "memory": "8Gi"}, volumes),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "gpu" if node["GPU"] else "cpu",
                    "replicas": 0,
                    "minReplicas": 0,
                    "maxReplicas": self._workers,
                    "rayStartParams": start,
                    "template": self._pod(size, ()),
                }
            ],
        }

    def _pod(self, size: Mapping[str, str], volumes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the template of a pod that sees the storage and further volumes."""
        mounts, every = {"results": self.storage, "sweep": _SWEEP}, list(volumes)
        if not self._is_store:
            every.insert(0, {"name": "results", "persistentVolumeClaim": {"claimName": self.claim}})
        container = {
            "name": "ray",
            "image": self.image,
            "env": [{"name": name, "value": ENVIRONMENT[name]} for name in _SETTINGS],
            # A node counts its CPUs by the request; it may use those of others that are idle.
            "resources": {
                "requests": dict(size),
                "limits": {name: n for name, n in size.items() if name != "cpu"},
            },
            "volumeMounts": [{"name": one["name"], "mountPath": mounts[one["name"]]} for one in every],
        }
        return {"spec": {"containers": [container], "volumes": every}}

    def slurm(self) -> str:
        """Return a script for `sbatch` that starts Ray on the nodes of a job, and the launch on the first."""
        nodes = self._workers
        gpus = math.ceil(self.sweep.resources.per_worker.get("GPU", 0) * self._processes / nodes)
        texts = {
            "COMMAND": self._command("slurm") + " > job.sh",
            "FEWER": f"# {self._fewer}\n#\n" if self._fewer else "",
            "NAME": self._name,
            "NODES": str(nodes),
            "GPUS": f"#SBATCH --gpus-per-node={min(gpus, _GPUS)}\n" if gpus else "",
            "ARGUMENTS": shlex.join([str(self.sweep.path), *self.words]),
        }
        template = files("raysweep.engine").joinpath("slurm.sh").read_text()
        return re.sub(r"@([A-Z]+)@", lambda found: texts[found[1]], template)


def _comment(text: str) -> str:
    """Return text as a YAML comment of at most 110 characters a line; indented lines stay as they are."""
    lines = []
    for line in text.split("\n"):
        lines += [line] if line.startswith(" ") else textwrap.wrap(line, 106) or [""]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
