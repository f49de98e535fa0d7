"""Work that the workers of a run do together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

from raysweep.errors import RaysweepError, RunFailedError, StorageError
from raysweep.training.data import World

T = TypeVar("T")


def on_first(world: World, work: Callable[[], T]) -> T:
    """Call `work` on rank 0 and return its result on all ranks; if it fails, all ranks fail alike.

    Rank 0 raises the original error.  On the other ranks an `OSError` becomes a `StorageError`, because
    failing storage is not a failure of the run.
    """
    if world.size == 1:
        return work()
    outcome: list[Any] = [None, None]
    try:
        if world.rank == 0:
            outcome = [work(), None]
    except (RaysweepError, KeyboardInterrupt, SystemExit) as error:
        outcome = [None, error]
        raise
    except OSError as error:
        outcome = [None, StorageError(f"worker 0: {type(error).__name__}: {error}")]
        raise
    except BaseException as error:
        outcome = [None, RunFailedError(f"worker 0: {type(error).__name__}: {error}")]
        raise
    finally:
        distributed.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def summed(world: World, values: list[float], device: torch.device) -> list[float]:
    """Return the sums of `values` over all ranks; all ranks call this together."""
    if world.size == 1:
        return values
    together = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(together)
    return together.tolist()
