"""A launch heeds requests to stop, which may come from any machine that sees its storage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune

from raysweep.engine.board import GRACE, Board, pause
from raysweep.engine.interrupt import Interrupts
from raysweep.errors import StorageError
from raysweep.remote import RemotePath
from raysweep.sweep.cancel import requested, withdraw
from raysweep.sweep.lease import BEAT
from raysweep.sweep.lock import SweepLock

log = logging.getLogger("raysweep.launch")

#: Seconds between two looks for a request.
PERIOD = 1.0


@contextmanager
def heeded(lock: SweepLock, interrupts: Interrupts, say: Callable[[str], None]) -> Iterator[None]:
    """Interrupt the work once somebody asks the holder of a lock to stop; earlier requests are withdrawn.

    Raises `StorageError` once the lock is lost.
    """
    directory = lock.path.parent
    withdraw(directory)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_period(directory)):
            if lock.lost:
                interrupts.ask()
                return
            asked = requested(directory, lock.started)
            if asked is not None:
                say(f"asked to stop by {asked}")
                interrupts.ask()
                return

    thread = threading.Thread(target=watch, name="raysweep-heed", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if not lock.lost:
            raise
        say(f"the lock of {directory} is lost")
        raise StorageError(
            f"storage {directory} was out of reach for so long that another launch may have taken its lock; "
            "launch again to continue"
        ) from None
    finally:
        ended.set()
        # A request may be for the launch that has taken a lost lock.
        if not lock.lost:
            withdraw(directory)


class Requests(tune.Stopper):
    """Ends a Tuner once somebody asks the holder of its sweep's lock to stop; workers write a checkpoint."""

    def __init__(self, directory: Path, board: Board) -> None:
        self._directory, self._board = directory, board
        self._lock: SweepLock | None = None
        self._next = 0.0
        #: Whether the Tuner was asked to stop.
        self.heard = False

    def __getstate__(self) -> dict[str, Any]:
        """Return what Tune stores of it: without the lock, which is this process's."""
        return {**vars(self), "_lock": None}

    def begin(self, lock: SweepLock) -> None:
        """Heed requests to the holder of a lock; earlier ones are withdrawn."""
        withdraw(self._directory)
        self._lock, self.heard = lock, False

    def end(self) -> None:
        """Withdraw a request that was heeded."""
        withdraw(self._directory)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether one trial ends alone: never."""
        return False

    def stop_all(self) -> bool:
        """Return whether all trials end; Tune asks in each turn of its loop."""
        if self.heard or self._lock is None or time.monotonic() < self._next:
            return self.heard
        self._next = time.monotonic() + _period(self._directory)
        asked = requested(self._directory, self._lock.started)
        if asked is not None:
            log.warning("asked to stop by %s: fit ends, and the same program continues", asked)
        if self._lock.lost:
            log.warning("the lock of %s is lost: fit ends, and the same program continues", self._directory)
        self.heard = asked is not None or self._lock.lost
        if self.heard:
            wind_down(self._board)
        return self.heard


def _period(directory: Path) -> float:
    return BEAT if isinstance(directory, RemotePath) else PERIOD


def wind_down(board: Board) -> None:
    """Ask the workers for a last checkpoint, and wait until they have left or `GRACE` seconds are over."""
    deadline = time.monotonic() + pause(board.at_work()) + GRACE
    with suppress(ray.exceptions.RayError):
        board.request_stop()
        while time.monotonic() < deadline:
            # A busy machine may answer late, and then its workers are late, too.
            with suppress(ray.exceptions.GetTimeoutError):
                if not board.training():
                    return
            time.sleep(0.2)
