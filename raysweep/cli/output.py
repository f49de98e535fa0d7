"""The two streams of a command: results on standard output, progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from rich.console import Console

#: Seconds between signs of life in a pipe.
HEARTBEAT = 60.0


def console(*, stderr: bool = False, pipe_width: int | None = None) -> Console:
    """Return a console that prints text as it is, square brackets included.

    A pipe has no width of its own, so `pipe_width` (rich's default if None) is used there.
    """
    width = None if sys.stdout.isatty() else pipe_width
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)


def say(line: str) -> None:
    """Print a line of progress on standard error, unwrapped."""
    console(stderr=True).print(line, soft_wrap=True)


@contextmanager
def remarks_of_ray(path: Path) -> Iterator[None]:
    """Send standard output to a file for a while: Ray prints remarks there, where only results belong."""
    with path.open("a") as log, redirect_stdout(log):
        yield


class Lines:
    """A view for a pipe: plain lines with the time of day, and a sign of life once a minute."""

    def __init__(self, target: Console) -> None:
        self._console = target
        self._spoke = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        return

    def say(self, line: str) -> None:
        """Print a line, unwrapped."""
        now = f"{datetime.now():%H:%M:%S}"
        self._console.print(f"{now} {line}", markup=False, highlight=False, soft_wrap=True)
        self._spoke = time.monotonic()

    @property
    def silent(self) -> bool:
        """True if nothing was said for a minute."""
        return time.monotonic() - self._spoke >= HEARTBEAT
