"""Data drawn ahead of the step, off the critical path, where that pays.

Beside a GPU it always pays.  On a CPU drawing mostly takes less time than a second thread costs, and where
all cores are busy a thread saves no wall time.  So drawing gets a thread of its own only once it takes a
noticeable share of the time, as with sentences of a large causal model, and a core is free for it.  The
batches are the same either way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")

NOTICEABLE = 0.05  # share of the time that drawing must take to get a thread


def drawn_ahead(chunks: Iterator[Sequence[T]]) -> Generator[T]:
    """Yield the items of `chunks`, each chunk made by a thread while the items before it are used.

    At most one chunk is ahead.  An error in the thread is raised here, unchanged, in the place of its chunk.
    The thread ends with the generator: when it is exhausted, fails or is closed.  `close` waits for the chunk
    that is being made.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="raysweep-data") as thread:
        coming = thread.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = thread.submit(next, chunks, None)
            yield from chunk


def drawn(chunks: Iterator[Sequence[T]], device: torch.device) -> Generator[T]:
    """Yield the items of `chunks` for a consumer on `device`, drawn ahead where that pays."""
    if device.type != "cpu" or (yield from _until_noticeable(chunks)):
        yield from drawn_ahead(chunks)


def _until_noticeable(chunks: Iterator[Sequence[T]]) -> Generator[T, None, bool]:
    """Yield items, drawing each chunk between uses; return True once drawing takes a noticeable share."""
    # A language builds its tables at first use, so the first chunk says nothing about drawing.
    judged = False
    while True:
        started = time.perf_counter()
        chunk = next(chunks, None)
        if chunk is None:
            return False
        drawing = time.perf_counter() - started
        started = time.perf_counter()
        yield from chunk
        using = time.perf_counter() - started
        if judged and drawing > NOTICEABLE * (drawing + using) and _processors() > torch.get_num_threads():
            return True
        judged = True


def _processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
