"""Processes of a test's own, killed at its end, and those of a launch, found by their parents in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def forked(work: Callable[[Callable[[], None]], None]) -> Iterator[int]:
    """Run `work` in a process of its own until the block ends, then kill it.

    `work` gets a function to call when it is ready; the block starts then.  The process is a fork, because a
    new interpreter would spend seconds on importing torch.
    """
    ready, started = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work(lambda: os.close(started))
        os._exit(1)
    os.close(started)
    try:
        os.read(ready, 1)  # returns when the child closes its end
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            found[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants(pid: int) -> dict[int, str]:
    """Return the command lines of all processes below `pid`, by process id."""
    parents = _parents()
    below, todo = {}, [pid]
    while todo:
        parent = todo.pop()
        for child in [one for one, its in parents.items() if its == parent]:
            todo.append(child)
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            below[child] = line.replace(b"\0", b" ").decode(errors="replace").strip()
    return below


def find(pid: int, text: str) -> int | None:
    """Return a process below `pid` with `text` in its command line; None where there is none."""
    return next((one for one, line in descendants(pid).items() if text in line.split(" --")[0]), None)
