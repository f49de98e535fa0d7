"""Work that the workers of a run do together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

from raysweep.errors import RaysweepError, RunFailedError, StorageError
from raysweep.training.data import World

T = TypeVar("T")


def on_all(world: World, work: Callable[[], T]) -> list[T]:
    """Call `work` on all ranks and return all results, by rank; if it fails on one, all ranks fail alike.

    A rank whose work failed raises its own error, and the others that of the first such rank.  For them an
    `OSError` becomes a `StorageError`, because failing storage is not a failure of the run.
    """
    if world.size == 1:
        return [work()]
    who = f"worker {world.rank}"
    mine: tuple[Any, BaseException | None] = None, None
    outcomes: list[Any] = [None] * world.size
    try:
        mine = work(), None
    except (RaysweepError, KeyboardInterrupt, SystemExit) as error:
        mine = None, error
        raise
    except OSError as error:
        mine = None, StorageError(f"{who}: {type(error).__name__}: {error}")
        raise
    except BaseException as error:
        mine = None, RunFailedError(f"{who}: {type(error).__name__}: {error}")
        raise
    finally:
        distributed.all_gather_object(outcomes, mine)
    for _, failure in outcomes:
        if failure is not None:
            raise failure
    return [result for result, _ in outcomes]


def on_first(world: World, work: Callable[[], T]) -> T:
    """Call `work` on rank 0 and return its result on all ranks; if it fails, all fail as in `on_all`."""
    results: list[Any] = on_all(world, work if world.rank == 0 else lambda: None)
    result: T = results[0]
    return result


def summed(world: World, values: list[float], device: torch.device) -> list[float]:
    """Return the sums of `values` over all ranks; all ranks call this together."""
    if world.size == 1:
        return values
    together = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(together)
    return together.tolist()
