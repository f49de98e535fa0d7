"""An orderly end on request: Ctrl-C, SIGTERM of a batch system, SIGHUP of a closed terminal."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Seconds after which a second Ctrl-C is meant as one; wrappers of a command often pass the first on again.
_AGAIN = 1.0

#: Exit code of a command that was interrupted.
INTERRUPTED = 130


class Interrupts:
    """Lets the first of SIGINT, SIGTERM and SIGHUP raise `KeyboardInterrupt`, for as long as it is entered.

    Later signals are ignored while the work is wound down, except that a second Ctrl-C ends the process at
    once.  A signal that was ignored before, such as SIGHUP under `nohup`, stays ignored.  Outside the main
    thread, nothing is changed.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._terminals: list[int] = []
        self._since: float | None = None
        #: Whether another thread has asked for an end that no signal can bring.
        self.asked = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._terminals = [handle for handle in (0, 1, 2) if _is_terminal(handle)]
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before != signal.SIG_IGN:
                    self._before[number] = before
            self.install()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:
            # The handler of `ray.init` was in force for a moment.
            raise KeyboardInterrupt from error

    def install(self) -> None:
        """Take the signals again: `ray.init` sets a handler of its own for SIGTERM."""
        for number in self._before:
            signal.signal(number, self._interrupt)

    def ask(self) -> None:
        """End the work as SIGTERM does, from another thread; where that is not ours to take, set `asked`."""
        main = threading.main_thread().ident
        if signal.SIGTERM in self._before and main is not None:
            # A call that the main thread waits in, such as a sleep, ends at once.
            signal.pthread_kill(main, signal.SIGTERM)
        else:
            self.asked = True

    def _interrupt(self, number: int, _: Any) -> None:
        if number == signal.SIGHUP:
            self._detach()
        now = time.monotonic()
        if self._since is None:
            self._since = now
            raise KeyboardInterrupt
        if number == signal.SIGINT and now - self._since > _AGAIN:
            # Ray's processes on this machine die with this one.
            os._exit(INTERRUPTED)

    def _detach(self) -> None:
        """Send what is written to the closed terminal nowhere: writing to it would be an error."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for handle in self._terminals:
            os.dup2(nowhere, handle)
        os.close(nowhere)


def _is_terminal(handle: int) -> bool:
    try:
        return os.isatty(handle)
    except OSError:
        return False
