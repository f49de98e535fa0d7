"""Processes of a test's own, killed at its end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator


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
