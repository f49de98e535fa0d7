"""The connection to Ray: embedded on this machine by default, or a cluster by address.

All settings that Ray must have before it starts stand here.
"""

from __future__ import annotations

import gc
import logging
import os
import traceback
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysweep.engine.forks import close_fork_server, fork_server
from raysweep.engine.reach import check_cluster
from raysweep.engine.scratch import claim, remove_left, remove_scratch
from raysweep.errors import ConfigError, StorageError
from raysweep.sweep import Resources
from raysweep.sweep.room import absent

#: By default the Train controller polls its workers every two seconds, which delays the end of every short
#: run; to poll takes processor time.  Outside a managed cloud there is no notice of preemption to watch for.
#: The loggers of Tune write files that the ledger makes superfluous.  Tune's handling of Ctrl-C would swallow
#: ours.
ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}

#: Of the Ray that is started here.  Its niceness of 15 starves workers beside anything else on the machine.
#: The others give all workers one environment, so that all are forked from one template: Ray would start the
#: first ones before it knows the job, and Tune and Train would set the two variables for some.  Metrics and
#: events of tasks serve its dashboard, which is not there, and cost each idle process time.  Processes
#: that evaluate are kept for the next milestone, where Ray would end them after an idle second.
EMBEDDED = {
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "PL_DISABLE_FORK": "1",
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_ray_events_report_interval_ms": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "10000",
}

log = logging.getLogger("raysweep.launch")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The resources of a connected cluster."""

    address: str
    #: The folder of a Ray that was started here; None for a cluster.
    session: Path | None = None
    #: Resources of each node that is alive.
    nodes: tuple[Mapping[str, float], ...]
    #: Resources of all nodes together.
    resources: Mapping[str, float]

    @property
    def embedded(self) -> bool:
        """True for a Ray that was started here."""
        return self.session is not None

    def __str__(self) -> str:
        where = "Ray on this machine" if self.embedded else f"Ray cluster {self.address}"
        cpus, gpus = self.resources.get("CPU", 0), self.resources.get("GPU", 0)
        return f"{where}: {len(self.nodes)} node(s), {cpus:g} CPU, {gpus:g} GPU"


def _describe(session: Path | None = None) -> Cluster:
    context = ray.get_runtime_context()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return Cluster(
        address=context.gcs_address,
        session=session,
        nodes=tuple(node["Resources"] for node in alive),
        resources=ray.cluster_resources(),
    )


def _quiet() -> None:
    for name in ("ray", "ray.tune", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def warmed_up(resources: Resources, address: str | None = None) -> Iterator[None]:
    """Begin to import what the workers of an embedded Ray will need, if `connect` will start one inside.

    Raises `ConfigError` where this machine does not have the resources, before Ray takes its time to start.
    If `connect` will join a cluster, check that it can, so that nothing is prepared for one that is absent.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    ours = not (ray.is_initialized() or address)
    if ours:
        if missing := list(absent(resources)):
            raise ConfigError("\n".join(missing))
        fork_server()
    elif address and not ray.is_initialized():
        check_cluster(address)
    try:
        yield
    finally:
        if ours:
            close_fork_server()


def connect(address: str | None = None, *, patience: float = 0.0) -> Cluster:
    """Connect to Ray, unless the caller is connected already, and stay connected.

    `address` (or RAY_ADDRESS) names a running cluster.  Without one, an embedded Ray is started on this
    machine, without its dashboard.  Ray ends this process if a cluster's control store does not
    answer for `patience` seconds, but not before its own limit of 60.  Raises `StorageError` if no cluster
    of this version answers, or if Ray does not start here.
    """
    if ray.is_initialized():
        return _describe()
    address = address or os.environ.get("RAY_ADDRESS") or None
    settings, session = dict(ENVIRONMENT), None
    if address is None:
        settings |= EMBEDDED
    elif patience > 60:
        settings["RAY_gcs_rpc_server_reconnect_timeout_s"] = f"{patience:.0f}"
    os.environ.update({key: value for key, value in settings.items() if key not in os.environ})
    if address is None:
        session = _start()
        _end_log_monitor()
        claim(session)
        remove_left(lock.parent for lock in session.parent.glob("session_*/lock"))
    else:
        _join(address)
    _quiet()
    return _describe(session)


def _start(attempts: int = 2) -> Path:
    """Start a Ray on this machine and return the folder of its session.

    On a busy machine Ray may give up before its parts are there.  Nothing depends on it yet, so a failed
    start is cleared away and repeated, up to so many `attempts` in all.
    """
    server = fork_server()
    try:
        # "local" and not None: None would join any cluster that was last started on this machine.
        # Ray's types do not know what an embedded Ray tells.
        with server.in_place_of_python() if server else nullcontext():
            started: Any = ray.init(
                address="local",
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        return Path(started.address_info["session_dir"])
    # Ray raises a bare `Exception` for a start that takes too long.
    except Exception as error:
        _clear(error)
        said = " ".join(str(error).split())
        if attempts == 1:
            raise StorageError(
                f"Ray does not start on this machine ({said}); the machine may be busy or short of memory; "
                "nothing is lost, and the same command goes on"
            ) from error
        log.warning("Ray did not start, and is started once more: %s", said)
    return _start(attempts - 1)


def _end_log_monitor() -> None:
    """End a process of Ray that reads all logs for drivers that ask for them: none does."""
    # Ray documents no setting for that.
    node: Any = worker.global_worker.node
    node.kill_log_monitor(check_alive=False)


def _clear(error: Exception) -> None:
    """End what a failed start of Ray has left: its processes would live as long as this one."""
    from ray._private.node import Node

    with suppress(Exception):
        ray.shutdown()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # The node that failed is known to nothing else.
        node = frame.f_locals.get("self")
        if isinstance(node, Node):
            with suppress(Exception):
                node.kill_all_processes(check_alive=False, allow_graceful=False)
            return


def _join(address: str) -> None:
    """Connect to a running cluster."""
    check_cluster(address)
    try:
        ray.init(
            address=address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env={"env_vars": dict(ENVIRONMENT)},
        )
    # As above.
    except Exception as error:
        with suppress(Exception):
            ray.shutdown()
        raise StorageError(
            f"the Ray cluster at {address} cannot be reached: {' '.join(str(error).split())} "
            "(check --address / RAY_ADDRESS, or leave both out to run on this machine)"
        ) from error


@contextmanager
def connected(address: str | None = None, *, patience: float = 0.0) -> Iterator[Cluster]:
    """Connect as `connect` does, and disconnect at the end if the connection was made here."""
    ours = not ray.is_initialized()
    cluster: Cluster | None = None
    try:
        cluster = connect(address, patience=patience)
        yield cluster
    finally:
        if ours:
            _disconnect()
            close_fork_server()
            if cluster is not None and cluster.session is not None:
                remove_scratch(cluster.session)


def _disconnect() -> None:
    """Leave Ray, with Python's search for garbage switched off meanwhile.

    A thread that frees a reference to an object while Ray closes makes Ray's C++ code end the process at
    once, with exit code 1, and a search for garbage may free one in any thread.
    """
    gc.collect()
    looks = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if looks:
            gc.enable()


@ray.remote(num_cpus=0, max_retries=2)
def _sees(path: Path) -> bool:
    return path.is_file()


def check_storage(directory: Path) -> None:
    """Check that every node sees the folder; raises `StorageError` with the name of a node that does not."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    marker = directory / f".seen-by-all-{uuid.uuid4().hex[:8]}"
    marker.touch()
    try:
        for node in nodes:
            pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            if not ray.get(_sees.options(scheduling_strategy=pinned).remote(marker), timeout=120):
                raise StorageError(
                    f"storage {directory} is not visible on node {node['NodeManagerAddress']}: "
                    "use --storage (or RAYSWEEP_STORAGE) with a folder that all nodes mount, e.g. NFS, or "
                    "an object store that all nodes may use, e.g. s3://BUCKET/FOLDER"
                )
    finally:
        marker.unlink(missing_ok=True)
