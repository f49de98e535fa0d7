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
    `OSError` becomes a `StorageError`, because failing storage is not a failure of the run; it is the cause.
    """
    if world.size == 1:
        return [work()]
    who = f"worker {world.rank}"
    result: Any = None
    failure: BaseException | None = None
    cause: OSError | None = None
    outcomes: list[Any] = [None] * world.size
    try:
        result = work()
    except (RaysweepError, KeyboardInterrupt, SystemExit) as error:
        # What is sent to another process loses its cause.
        failure, cause = error, error.__cause__ if isinstance(error.__cause__, OSError) else None
        raise
    except OSError as error:
        failure, cause = StorageError(f"{who}: {type(error).__name__}: {error}"), error
        raise
    except BaseException as error:
        failure = RunFailedError(f"{who}: {type(error).__name__}: {error}")
        raise
    finally:
        distributed.all_gather_object(outcomes, (result, failure, cause))
    for _, theirs, why in outcomes:
        if theirs is not None:
            raise theirs from why
    return [each for each, _, _ in outcomes]


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
