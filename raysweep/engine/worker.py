"""The process of a Ray task: its language, its threads, its device, and whether it sees the storage."""

from __future__ import annotations

import socket
from functools import lru_cache
from typing import Any

import torch

from raysweep.engine.turns import long_turns
from raysweep.errors import StorageError
from raysweep.languages import Language
from raysweep.sweep import RunLedger
from raysweep.training.memory import keep_freed_memory


@lru_cache(maxsize=4)
def built(config: Any) -> Language:
    """Return the language of a config, built once in each process."""
    return config.build()


def check_visible(run: RunLedger) -> None:
    """Raise `StorageError` on a node that does not see the storage, such as one that joined later."""
    if not run.visible:
        raise StorageError(
            f"storage {run.storage} is not visible on node {socket.gethostname()}: use "
            "--storage (or RAYSWEEP_STORAGE) with a folder that all nodes mount, e.g. NFS, or an object "
            "store that all nodes may use, e.g. s3://BUCKET/FOLDER"
        )


def prepare(threads: int = 1) -> None:
    """Set torch's threads, keep freed memory and ask for long turns, in the thread that is to compute.

    A task has one CPU, and two such processes beat one with two threads.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    long_turns()


def device() -> str:
    """Return the device of a task: `cuda` if the task was given a GPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"
