"""The log of a launch in its sweep's folder: what a person would have seen, for later and for `status`."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any, Self

from raysweep.errors import RaysweepError
from raysweep.sweep.logs import LAUNCH_LOG, BoundedLog
from raysweep.sweep.run_state import LaunchState
from raysweep.sweep.told import Told
from raysweep.sweep.under_way import Teller


class _Beside(BoundedLog):
    """Keeps the warnings of this process, which are printed as they would be without it."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if record.levelno >= logging.WARNING and not self._shown(record.name) and logging.lastResort:
            logging.lastResort.handle(record)

    def _shown(self, name: str) -> bool:
        """Return whether another handler takes the records of a logger."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


class Chronicle:
    """Writes the beginning of a launch, each change of a run, warnings and the end, while it is entered.

    What is under way now is in a file of its own (`raysweep.sweep.under_way`).
    """

    def __init__(self, directory: Path) -> None:
        self._under_way = Teller(directory)
        self._log = _Beside(directory / LAUNCH_LOG)
        self._told = Told()

    def __enter__(self) -> Self:
        logging.getLogger("raysweep").addHandler(self._log)
        self._under_way.__enter__()
        self.say(f"launch, pid {os.getpid()} on {socket.gethostname()}")
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        logging.getLogger("raysweep").removeHandler(self._log)
        self._under_way.__exit__()
        if isinstance(error, KeyboardInterrupt):
            self.say("interrupted")
        elif isinstance(error, RaysweepError):
            self.say(f"ended: {error}")
        elif error is not None:
            self.say("ended with an error", (kind, error, trace))
        else:
            self.say("ended")
        self._log.close()

    def __call__(self, state: LaunchState) -> None:
        """Write what has changed since the last state."""
        for line in self._told.changes(state.runs):
            self.say(line)
        self._under_way(state)

    def say(self, line: str, error: Any = None) -> None:
        """Write a line, and the traceback of an error."""
        record = logging.LogRecord("raysweep.launch", logging.INFO, "", 0, line, None, error)
        self._log.handle(record)
