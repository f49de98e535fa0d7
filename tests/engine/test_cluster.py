"""Runs that train at once, and requests that fit nowhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private.node import Node

from raysweep.engine import cluster as module
from raysweep.engine.cluster import Cluster, concurrency, connect, per_run
from raysweep.errors import ConfigError, StorageError
from raysweep.sweep import Resources


def cluster(*nodes: dict[str, float], embedded: bool = True) -> Cluster:
    names = {name for node in nodes for name in node}
    total = {name: sum(node.get(name, 0.0) for node in nodes) for name in names}
    session = Path("session") if embedded else None
    return Cluster(address="", session=session, nodes=nodes, resources=total)


@pytest.mark.parametrize(
    ("resources", "nodes", "expected"),
    [
        (Resources(), [{"CPU": 1.0}], 1),
        # Two cores: both train; a free one would be idle half of the time.
        (Resources(), [{"CPU": 2.0}], 2),
        # Three and more: one is left to evaluations.
        (Resources(), [{"CPU": 3.0}], 2),
        (Resources(), [{"CPU": 8.0}], 7),
        (Resources(evaluate={"CPU": 4.0}), [{"CPU": 8.0}], 4),
        # GPUs are not shared with evaluations on CPUs.
        (Resources(per_worker={"GPU": 1.0}), [{"CPU": 64.0, "GPU": 4.0}], 4),
        (Resources(per_worker={"CPU": 7.0, "GPU": 1.0}), [{"CPU": 16.0, "GPU": 4.0}], 2),
        (Resources(workers=4), [{"CPU": 4.0}, {"CPU": 4.0}], 2),
        (Resources(per_worker={}), [{"CPU": 2.0}], 1),
        (Resources(max_concurrent=7), [{"CPU": 2.0}], 7),
    ],
)
def test_as_many_as_fit(resources: Resources, nodes: list[dict[str, float]], expected: int) -> None:
    assert concurrency(resources, cluster(*nodes)) == expected


def test_a_scheduler_needs_evaluations_beside_training() -> None:
    assert concurrency(Resources(), cluster({"CPU": 2.0}), spare=True) == 1
    assert concurrency(Resources(), cluster({"CPU": 1.0}), spare=True) == 1


def test_no_room_is_kept_for_evaluations_that_share_the_cpus_of_training() -> None:
    assert concurrency(Resources(), cluster({"CPU": 8.0}), shared=True) == 8
    assert concurrency(Resources(workers=2), cluster({"CPU": 5.0}), shared=True) == 2
    with pytest.raises(ConfigError, match="a run needs"):
        concurrency(Resources(workers=9), cluster({"CPU": 8.0}), shared=True)


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (Resources(per_worker={"GPU": 1.0}), r"resources.per_worker: \{GPU: 1\} fits on none"),
        (Resources(evaluate={"CPU": 4.0}), r"resources.evaluate: \{CPU: 4\} fits on none.*CPU: 2"),
        (Resources(per_worker={"CPU": 3.0}), r"resources.per_worker: \{CPU: 3\}"),
        (Resources(workers=9), "a run needs {CPU: 9} but the cluster has {CPU: 8}"),
        (Resources(evaluate={"GPU": 1.0}, max_concurrent=2), "resources.evaluate"),
    ],
)
def test_what_never_fits_is_refused(resources: Resources, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        concurrency(resources, cluster(*[{"CPU": 2.0}] * 4))


def test_a_growing_cluster_is_taken_at_its_word() -> None:
    resources = Resources(per_worker={"GPU": 1.0}, max_concurrent=3)
    assert concurrency(resources, cluster({"CPU": 0.0}, embedded=False)) == 3
    with pytest.raises(ConfigError, match=r"set resources\.max_concurrent to a number"):
        concurrency(Resources(per_worker={"GPU": 1.0}), cluster({"CPU": 0.0}, embedded=False))


def test_a_run_takes_what_its_workers_take() -> None:
    assert per_run(Resources(workers=4, per_worker={"CPU": 2.0, "GPU": 1.0})) == {"CPU": 8.0, "GPU": 4.0}


class Starts:
    """A stand-in for `ray.init` that fails so many times, each time with a process left behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, session: Path, failures: int) -> None:
        self.left: list[subprocess.Popen[bytes]] = []
        self.calls: list[str] = []
        self._session, self._failures = session, failures
        monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
        monkeypatch.setattr(module, "fork_server", lambda: None)
        monkeypatch.setattr(module, "_describe", lambda session=None: session)
        monkeypatch.setattr(module.ray, "is_initialized", lambda: False)
        monkeypatch.setattr(module.ray, "shutdown", lambda: None)
        monkeypatch.setattr(module.ray, "init", self)

    def __call__(self, address: str, **_: Any) -> Any:
        self.calls.append(address)
        if len(self.calls) <= self._failures:
            node = Node.__new__(Node)
            node.kill_all_processes = lambda **_: self.left[-1].kill()  # type: ignore[method-assign]
            self.left.append(subprocess.Popen(["sleep", "600"]))
            self._give_up(node)
        return SimpleNamespace(address_info={"session_dir": str(self._session)})

    @staticmethod
    def _give_up(self: Node) -> None:
        raise Exception("The current node\ntimed out during startup.")


def test_a_failed_start_of_ray_is_cleared_away_and_repeated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch, tmp_path / "session_1", failures=1)
    monkeypatch.setattr(module, "claim", lambda session: session.mkdir())
    ended: list[str] = []
    monkeypatch.setattr(module, "_end_log_monitor", lambda: ended.append("log monitor"))
    assert connect() == tmp_path / "session_1"  # type: ignore[comparison-overlap]
    assert ended == ["log monitor"]
    assert starts.calls == ["local", "local"]
    assert [process.wait(10) for process in starts.left] == [-9]


def test_where_ray_never_starts_no_address_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, tmp_path, failures=9)
    with pytest.raises(StorageError, match="the machine may be busy") as raised:
        connect()
    assert "Ray does not start on this machine (The current node timed out during startup.)" in str(
        raised.value
    )
    assert str(raised.value).endswith("the same command goes on")
    assert "address" not in str(raised.value)
    assert starts.calls == ["local", "local"]
    assert [process.wait(10) for process in starts.left] == [-9, -9]


def test_a_cluster_that_does_not_answer_is_tried_once_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch, tmp_path, failures=9)
    monkeypatch.setattr(module, "check_cluster", lambda address: None)
    with pytest.raises(StorageError, match=r"the Ray cluster at head:6379 cannot be reached: .*--address"):
        connect("head:6379")
    assert starts.calls == ["head:6379"]
