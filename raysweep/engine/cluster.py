"""Connecting to Ray: embedded on this machine by default, or a cluster by address.

Everything that must be said to Ray before it starts is said here, once.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysweep.errors import ConfigError, StorageError
from raysweep.sweep import Resources

#: The Train controller polls its workers every two seconds by default, which delays the end of every short
#: run; there is no preemption notice to watch for outside a managed cloud; the loggers that Tune adds
#: write files that the ledger already covers; Tune's own Ctrl-C handling would swallow ours.
ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a connected cluster offers."""

    address: str
    embedded: bool
    nodes: int
    resources: Mapping[str, float]
    dashboard: str


def _describe(embedded: bool) -> Cluster:
    context = ray.get_runtime_context()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return Cluster(
        address=context.gcs_address,
        embedded=embedded,
        nodes=len(alive),
        resources=ray.cluster_resources(),
        dashboard=ray._private.worker.get_dashboard_url() or "",
    )


def _quiet() -> None:
    for name in ("ray", "ray.tune", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def connect(address: str | None = None) -> Cluster:
    """Connect to Ray, unless the caller is connected already, and stay connected.

    `address` (or RAY_ADDRESS) names a running cluster; without one an embedded Ray is started on this
    machine, its dashboard on 127.0.0.1.  Raises `StorageError` where no cluster answers.
    """
    if ray.is_initialized():
        return _describe(embedded=False)
    address = address or os.environ.get("RAY_ADDRESS") or None
    os.environ.update({key: value for key, value in ENVIRONMENT.items() if key not in os.environ})
    try:
        if address is None:
            # "local" rather than None: None would join whatever cluster was last started on this machine.
            # The dashboard stays on: without its state API, placement groups of stopped trials leak.
            ray.init(
                address="local",
                include_dashboard=True,
                dashboard_host="127.0.0.1",
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        else:
            ray.init(
                address=address,
                logging_level=logging.ERROR,
                log_to_driver=False,
                runtime_env={"env_vars": dict(ENVIRONMENT)},
            )
    except (ConnectionError, ValueError, RuntimeError, TimeoutError, AssertionError) as error:
        where = f"the Ray cluster at {address}" if address else "an embedded Ray"
        raise StorageError(
            f"{where} cannot be reached or started: {error} "
            "(check --address / RAY_ADDRESS, or leave both out to run on this machine)"
        ) from error
    _quiet()
    return _describe(embedded=address is None)


@contextmanager
def connected(address: str | None = None) -> Iterator[Cluster]:
    """Connect as `connect` does, and disconnect at the end if the connection was made here."""
    ours = not ray.is_initialized()
    cluster = connect(address)
    try:
        yield cluster
    finally:
        if ours:
            ray.shutdown()


@ray.remote(num_cpus=0, max_retries=2)
def _sees(path: str) -> bool:
    return Path(path).exists()


def check_storage(directory: Path) -> None:
    """Check that every node sees the sweep's folder; raises `StorageError` naming a node that does not."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    marker = directory / f".seen-by-all-{uuid.uuid4().hex[:8]}"
    marker.touch()
    try:
        for node in nodes:
            pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            if not ray.get(_sees.options(scheduling_strategy=pinned).remote(str(marker)), timeout=120):
                raise StorageError(
                    f"storage {directory} is not visible on node {node['NodeManagerAddress']}: "
                    "use --storage (or RAYSWEEP_STORAGE) with a folder that all nodes mount, e.g. NFS"
                )
    finally:
        marker.unlink(missing_ok=True)


def concurrency(requested: int | str, per_run: Mapping[str, float], cluster: Cluster) -> int:
    """Return how many runs train at once: as many as fit, or `requested` if that is a number.

    The run's driver takes no CPU, so without a cap every run would start and wait for workers that never
    find room.  Raises `ConfigError` where not even one fits.
    """
    if isinstance(requested, int):
        return requested
    fits = []
    for name, need in per_run.items():
        if need > 0:
            total = cluster.resources.get(name, 0.0)
            fits.append(int(total / need + 1e-9))
            if fits[-1] == 0:
                raise ConfigError(
                    f"resources: a run needs {need:g} {name} but the cluster has {total:g}; lower "
                    "resources.workers or resources.per_worker, or, where nodes are added on demand, set "
                    "resources.max_concurrent to a number"
                )
    return max(1, min(fits, default=1))


def per_run(resources: Resources) -> dict[str, float]:
    """Return what all workers of one run take together."""
    return {name: amount * resources.workers for name, amount in resources.per_worker.items()}
