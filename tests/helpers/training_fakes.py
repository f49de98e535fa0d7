"""Small runs of the tests, and worker processes that stop, die or find the disk full."""

import errno
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from raysweep.models.encoder import Encoder
from raysweep.registry import algorithms, models
from raysweep.testing.training import FolderJournal, Walk, small_run
from raysweep.training import World, checkpoint, pretrain
from raysweep.training.step import Stepper

__all__ = ["FolderJournal", "Walk", "arguments", "share", "work", "work_in_turn"]


def arguments(**options: Any) -> dict[str, Any]:
    """Return the arguments of `pretrain`, small, with dropout, odd milestones and rolling checkpoints."""
    model = models.decode({"kind": "encoder", "shape": "8/2/2/16", **options.pop("model", {})})
    algorithm = {"kind": "adamw", "warmup_steps": 10, "lr": 1e-2, **options.pop("algorithm", {})}
    pretraining = options.pop("pretrain", {})
    return {**small_run(algorithms.decode(algorithm), model=model, pretrain=pretraining), **options}


def work_in_turn(
    rank: int, size: int, rendezvous: Path, jobs: list[tuple[Path, int, dict[str, Any]]]
) -> None:
    """Train one run after another as one of `size` workers.

    A job is the folder of a run, the number of workers that hold a copy of the weights together, and options.
    With the option `packed` an encoder trains on packed rows, as on a GPU.
    """
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    packs = Encoder.packs
    for directory, shards, options in jobs:
        given = dict(options)
        Encoder.packs = property(lambda _: True) if given.pop("packed", False) else packs
        pretrain(journal=FolderJournal(directory), world=World(rank, size, shards), **arguments(**given))
    distributed.destroy_process_group()


def share(
    world: World, rendezvous: Path, environment: Mapping[str, str], arguments: Mapping[str, Any]
) -> None:
    """Train one run, with these arguments of `pretrain`, as one of the workers of `world`."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=world.rank, world_size=world.size
    )
    pretrain(world=world, **arguments)
    distributed.destroy_process_group()


def work(
    directory: Path, world: World, rendezvous: Path, options: dict[str, Any], seconds: float, fate: str
) -> None:
    """Train one run in this process, as one of the workers of `world`.

    Every step takes `seconds` longer.  `fate` is "" for a quiet life, "stop" for being asked to on the last
    rank alone, or what `arrange` arranges: on the last rank where weights are sharded, else on the first.
    """
    torch.set_num_threads(1)
    if world.size > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=world.rank, world_size=world.size
        )
    journal = FolderJournal(directory)
    if fate not in ("", "stop") and world.rank == world.shards - 1:
        arrange(fate)

    def stop() -> bool:
        time.sleep(seconds)
        return fate == "stop" and world.rank == world.size - 1

    try:
        pretrain(journal=journal, world=world, stop=stop, **arguments(**options))
    except Exception as error:
        full = getattr(error.__cause__ or error, "errno", None) == errno.ENOSPC
        text = f"{type(error).__name__}: {error}" + ("\nno room" if full else "")
        (directory / f"error-{world.rank}.txt").write_text(text)
        raise
    if world.size > 1:
        distributed.destroy_process_group()


def arrange(fate: str) -> None:
    """Make this process kill itself in a step or around checkpoint 3, or find the disk full there.

    The disk is full for the checkpoint's files, or ("record refused") for its record alone.
    """
    owner, name, count, after = {
        "in a step": (Stepper, "update", 33, False),
        # A checkpoint writes three files, and the last of several workers that share it two.
        "between two files": (checkpoint, "write_new", 8, True),
        "between its two files": (checkpoint, "write_new", 5, True),
        "before the renaming": (checkpoint, "rename", 3, False),
        "after the renaming": (checkpoint, "rename", 3, True),
        "before the record": (FolderJournal, "commit", 3, False),
        "after the record": (FolderJournal, "commit", 3, True),
        "disk full": (checkpoint, "write_new", 8, False),
        "disk full for its files": (checkpoint, "write_new", 5, False),
        "record refused": (FolderJournal, "commit", 3, False),
    }[fate]
    real, calls = getattr(owner, name), []

    def call(*args: Any) -> Any:
        calls.append(None)
        if len(calls) == count and fate.startswith(("disk full", "record refused")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(calls) == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)
