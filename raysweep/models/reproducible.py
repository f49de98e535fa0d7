"""Sums in a fixed order on a GPU, so that two trainings are bitwise equal on one kind of it.

The exception is torch's attention on rows of more than 128 positions (`raysweep.models.packed`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@cache
def settle() -> None:
    """Prepare this process for sums in a fixed order; best before its first product on a GPU."""
    # What torch asks for; it is the size that it gives matrix products on current GPUs anyhow.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Of attention there is one version alone (see above).
    warnings.filterwarnings("ignore", message=".*non-deterministic algorithm", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*not have a deterministic", category=UserWarning)


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Let torch's kernels on a GPU add in a fixed order within this context; on a CPU they do anyhow.

    By default the gradient of an embedding of few words is added up in the order in which threads come.
    """
    if device.type != "cuda":
        yield
        return
    settle()
    flags = torch.are_deterministic_algorithms_enabled()
    utils: Any = torch.utils.deterministic
    warns, fills = torch.is_deterministic_algorithms_warn_only_enabled(), utils.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    # New memory is written before it is read, so filling it would only take time.
    utils.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(flags, warn_only=warns)
        utils.fill_uninitialized_memory = fills
