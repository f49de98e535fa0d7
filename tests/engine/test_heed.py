"""A launch heeds requests that are for it, and no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raysweep.engine import heed
from raysweep.engine.heed import heeded
from raysweep.engine.interrupt import Interrupts
from raysweep.errors import StorageError
from raysweep.sweep import SweepLock
from raysweep.sweep.cancel import request, requested
from raysweep.sweep.lock import Holder, held


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heed, "PERIOD", 0.02)


def wait(done: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if done():
            return True
        time.sleep(0.02)
    return False


def test_a_request_interrupts_the_main_thread_even_in_a_sleep(tmp_path: Path) -> None:
    said: list[str] = []
    began = time.monotonic()

    def work() -> None:
        with SweepLock(tmp_path) as lock, Interrupts() as interrupts, heeded(lock, interrupts, said.append):
            launch = held(tmp_path)
            assert launch is not None
            request(tmp_path, launch)
            time.sleep(300)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.monotonic() - began < 250
    assert [text.partition(" process ")[0] for text in said] == ["asked to stop by"]
    # Nothing is left for the next launch.
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_lost_lock_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def work() -> None:
        with SweepLock(tmp_path) as lock, Interrupts() as interrupts, heeded(lock, interrupts, said.append):
            monkeypatch.setattr(SweepLock, "lost", property(lambda _: True))
            time.sleep(300)

    with pytest.raises(StorageError, match="another launch may have taken its lock; launch again"):
        work()
    assert said == [f"the lock of {tmp_path} is lost"]


def test_a_request_for_another_launch_is_none(tmp_path: Path) -> None:
    """One from before, and one for a launch that has just made way for this one."""
    earlier = Holder(1, "here", 12.5)
    request(tmp_path, earlier)
    assert requested(tmp_path, earlier.started) is not None
    with SweepLock(tmp_path) as lock, Interrupts() as interrupts, heeded(lock, interrupts, print):
        assert requested(tmp_path, earlier.started) is None
        request(tmp_path, earlier)
        time.sleep(0.5)
        assert not interrupts.asked


def test_a_launch_of_another_thread_is_asked_without_a_signal(tmp_path: Path) -> None:
    heard: list[bool] = []

    def work() -> None:
        with SweepLock(tmp_path) as lock, Interrupts() as interrupts, heeded(lock, interrupts, print):
            launch = held(tmp_path)
            assert launch is not None
            request(tmp_path, launch)
            heard.append(wait(lambda: interrupts.asked))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [True]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"launch": "x"}', "\x00"])
def test_a_request_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "cancel.json").write_text(content)
    assert requested(tmp_path, 12.5) is None


def test_workers_hear_of_a_request_before_their_time_for_a_checkpoint_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 10,000 runs, each asks every 40 s."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def training() -> int:
        return int(now[0] < 45.0)

    board: Any = SimpleNamespace(at_work=lambda: 10_000, request_stop=lambda: None, training=training)
    monkeypatch.setattr(heed, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    heed.wind_down(board)
    assert 45.0 <= now[0] < 45.5
    board.training = lambda: 1
    now[0] = 0.0
    heed.wind_down(board)
    assert 40.0 + heed.GRACE <= now[0] < 40.5 + heed.GRACE


def test_a_late_answer_does_not_end_the_wait_for_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def training() -> int:
        now[0] += 5.0
        if now[0] < 11.0:
            raise ray.exceptions.GetTimeoutError
        return 0

    board: Any = SimpleNamespace(at_work=lambda: 1, request_stop=lambda: None, training=training)
    monkeypatch.setattr(heed, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    heed.wind_down(board)
    assert now[0] == 15.0
