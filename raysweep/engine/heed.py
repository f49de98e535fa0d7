"""A launch heeds requests to stop, which may come from any machine that sees its storage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raysweep.engine.interrupt import Interrupts
from raysweep.sweep.cancel import requested, withdraw
from raysweep.sweep.lock import SweepLock

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
