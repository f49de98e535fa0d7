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
from raysweep.sweep.cancel import requested, withdraw
from raysweep.sweep.lock import SweepLock

log = logging.getLogger("raysweep.launch")

#: Seconds between two looks for a request.
PERIOD = 1.0


@contextmanager
def heeded(lock: SweepLock, interrupts: Interrupts, say: Callable[[str], None]) -> Iterator[None]:
    """Interrupt the work once somebody asks the holder of a lock to stop; earlier requests are withdrawn."""
    directory = lock.path.parent
    withdraw(directory)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(PERIOD):
            asked = requested(directory, lock.started)
            if asked is not None:
                say(f"asked to stop by {asked}")
                interrupts.ask()
                return

    thread = threading.Thread(target=watch, name="raysweep-heed", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        withdraw(directory)


class Requests(tune.Stopper):
    """Ends a Tuner once somebody asks the holder of its sweep's lock to stop; workers write a checkpoint."""

    def __init__(self, directory: Path, board: Board) -> None:
        self._directory, self._board = directory, board
        self._lock_taken: float | None = None
        self._next = 0.0
        #: Whether the Tuner was asked to stop.
        self.heard = False

    def begin(self, lock: SweepLock) -> None:
        """Heed requests to the holder of a lock; earlier ones are withdrawn."""
        withdraw(self._directory)
        self._lock_taken, self.heard = lock.started, False

    def end(self) -> None:
        """Withdraw a request that was heeded."""
        withdraw(self._directory)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether one trial ends alone: never."""
        return False

    def stop_all(self) -> bool:
        """Return whether all trials end; Tune asks in each turn of its loop."""
        if self.heard or self._lock_taken is None or time.monotonic() < self._next:
            return self.heard
        self._next = time.monotonic() + PERIOD
        asked = requested(self._directory, self._lock_taken)
        if asked is not None:
            self.heard = True
            log.warning("asked to stop by %s: fit ends, and the same program continues", asked)
            wind_down(self._board)
        return self.heard


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
