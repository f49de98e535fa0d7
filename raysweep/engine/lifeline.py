"""A watch over Ray itself: its control store (GCS) and this node's raylet.

Without them no call to Ray returns in time, and after a minute Ray ends the process without a word.  The
watch needs nothing of Ray: it only connects to their ports.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ray

from raysweep.engine.guard import LOST
from raysweep.errors import StorageError

#: Seconds between two looks, and seconds without an answer after which a part counts as lost.
PERIOD = 1.0
PATIENCE = 10.0


@dataclass(frozen=True)
class Part:
    """A part of Ray that a launch cannot do without, and its port."""

    name: str
    host: str
    port: int

    def answers(self) -> bool:
        """Return True if the part takes a connection."""
        try:
            socket.create_connection((self.host, self.port), timeout=PATIENCE).close()
        except OSError:
            return False
        return True


def parts() -> list[Part]:
    """Return the parts that this process depends on; needs a connected Ray."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    [mine] = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    return [
        Part("GCS", host.strip("[]"), int(port)),
        Part("raylet", mine["NodeManagerAddress"], int(mine["NodeManagerPort"])),
    ]


def end(part: Part) -> None:
    """End this process with one sentence; calls into Ray would keep it waiting."""
    sys.stderr.write(
        f"\nraysweep: Ray's {part.name} at {part.host}:{part.port} has died; "
        "nothing is lost: launch again to continue\n"
    )
    leave(StorageError.exit_code)


def hand_over(part: Part) -> None:
    """End this process in a way that lets its guard wait for the cluster (`raysweep.engine.guard`)."""
    sys.stderr.write(f"\nraysweep: Ray's {part.name} at {part.host}:{part.port} does not answer\n")
    leave(LOST)


def leave(code: int) -> None:
    """End this process at once, with the cursor of a terminal shown again."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def watched(watched_parts: list[Part], on_loss: Callable[[Part], None] = end) -> Iterator[None]:
    """Call `on_loss` from a thread as soon as a part has not answered for `PATIENCE` seconds."""
    ended = threading.Event()

    def watch() -> None:
        since = {part: time.monotonic() for part in watched_parts}
        while not ended.wait(PERIOD):
            for part in watched_parts:
                if part.answers():
                    since[part] = time.monotonic()
                elif time.monotonic() - since[part] > PATIENCE and not ended.is_set():
                    on_loss(part)
                    return

    threading.Thread(target=watch, name="raysweep-lifeline", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
