"""The start of a Ray, and the connection to one."""

from __future__ import annotations

import gc
import os
import subprocess
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private.node import Node

from raysweep.engine import cluster as module
from raysweep.engine.cluster import connect, connected
from raysweep.errors import StorageError


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


def test_no_thread_frees_a_reference_while_ray_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reference:
        """Part of a circle, so that only a search for garbage frees it."""

        def __init__(self) -> None:
            self.circle = self

    seen: list[tuple[bool, bool]] = []
    monkeypatch.setattr(module.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(module.ray, "shutdown", lambda: seen.append((left() is None, gc.isenabled())))
    monkeypatch.setattr(module, "connect", lambda *_, **__: SimpleNamespace(session=None))
    with connected():
        left = weakref.ref(Reference())
    assert seen == [(True, False)]
    assert gc.isenabled()


def test_a_cluster_that_does_not_answer_is_tried_once_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch, tmp_path, failures=9)
    monkeypatch.setattr(module, "check_cluster", lambda address: None)
    with pytest.raises(StorageError, match=r"the Ray cluster at head:6379 cannot be reached: .*--address"):
        connect("head:6379")
    assert starts.calls == ["head:6379"]
