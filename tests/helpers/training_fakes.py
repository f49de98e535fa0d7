"""A run's journal in a folder of JSON files, a small language, and what a worker process does."""

import errno
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from raysweep import seeding
from raysweep.languages.base import Language, Sample, Task
from raysweep.models import EncoderConfig
from raysweep.registry import algorithms
from raysweep.training import CheckpointRecord, PretrainConfig, World, pretrain
from raysweep.training.step import Stepper


class Walk(Language):
    """A walk upwards modulo V, a step of 0 or 1 a word, of length T or, every third sentence, T - 2.

    Tasks: how far it has come by its third word, and whether it starts in the lower half.
    """

    def __init__(self, vocabulary_size: int = 9, max_length: int = 6) -> None:
        self.vocabulary_size, self.max_length = vocabulary_size, max_length

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {
            "way": Task(name="way", classes=("0", "1", "2"), description="steps up to the third word"),
            "start": Task(name="start", classes=("low", "high"), description="half of the first word"),
        }

    def sample_latent(self, n: int, *, seed: int, start: int = 0) -> Sample:
        index = torch.arange(start, start + n)
        u = seeding.uniforms(seed, "walk", index, self.max_length)
        first = (u[:, :1] * self.vocabulary_size).long()
        ids = torch.cat([first, (u[:, 1:] < 0.7).long()], dim=1).cumsum(dim=1) % self.vocabulary_size
        ids[index % 3 == 0, self.max_length - 2 :] = self.pad_id
        return Sample(ids=ids)

    def labels(self, task: str, sample: Sample) -> Tensor:
        first, third = sample.ids[:, 0], sample.ids[:, 2]
        if task == "way":
            return (third - first) % self.vocabulary_size
        return (2 * first >= self.vocabulary_size).long()

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        raise NotImplementedError

    def log_prob(self, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def content(self) -> bytes:
        return b"walk"


class FolderJournal:
    """One JSON file a record; a quarantined record is renamed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def _place(self, step: int) -> Path:
        return self.directory / f"checkpoint-{step:08d}.json"

    def checkpoints(self) -> list[CheckpointRecord]:
        paths = sorted(self.directory.glob("checkpoint-*.json"), reverse=True)
        return [CheckpointRecord.model_validate_json(path.read_bytes()) for path in paths]

    def commit(self, record: CheckpointRecord) -> None:
        place = self._place(record.step)
        if place.exists():
            first = CheckpointRecord.model_validate_json(place.read_bytes())
            record = record.model_copy(update={"curve": first.curve, "time": first.time})
        temporary = place.with_suffix(".tmp")
        temporary.write_text(record.model_dump_json())
        os.replace(temporary, place)

    def quarantine(self, record: CheckpointRecord, reason: str) -> None:
        aside = self.directory / f"quarantined-{record.step:08d}.txt"
        aside.write_text(reason)
        self._place(record.step).unlink()


def arguments(**options: Any) -> dict[str, Any]:
    """Return the arguments of `pretrain`, small, with dropout, odd milestones and rolling checkpoints."""
    pretraining = {"steps": 60, "batch_size": 13, "milestones": (20, 60), "checkpoint_every": 7}
    pretraining.update(options.pop("pretrain", {}))
    model = {"shape": "8/2/2/16", **options.pop("model", {})}
    algorithm = {"kind": "adamw", "warmup_steps": 10, "lr": 1e-2, **options.pop("algorithm", {})}
    return {
        "language": Walk(),
        "model": EncoderConfig.decode(model),
        "algorithm": algorithms.decode(algorithm),
        "pretrain": PretrainConfig.decode(pretraining),
        "seed": 5,
        **options,
    }


def work(
    directory: Path, world: World, rendezvous: Path, options: dict[str, Any], seconds: float, fate: str
) -> None:
    """Train one run in this process, as one of the workers of `world`.

    Every step takes `seconds` longer.  `fate` is "" for a quiet life, "stop" for being asked to on the last
    rank alone, or what `arrange` arranges on the first.
    """
    torch.set_num_threads(1)
    if world.size > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=world.rank, world_size=world.size
        )
    journal = FolderJournal(directory)
    if fate not in ("", "stop") and world.rank == 0:
        arrange(fate)

    def stop() -> bool:
        time.sleep(seconds)
        return fate == "stop" and world.rank == world.size - 1

    try:
        pretrain(journal=journal, world=world, stop=stop, **arguments(**options))
    except Exception as error:
        (directory / f"error-{world.rank}.txt").write_text(f"{type(error).__name__}: {error}")
        raise
    if world.size > 1:
        distributed.destroy_process_group()


def work_in_turn(directory: Path, world: World, rendezvous: Path, jobs: Mapping[str, Any]) -> None:
    """Train one run after another in this process, each in the folder of its name."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=world.rank, world_size=world.size
    )
    for name, options in jobs.items():
        pretrain(journal=FolderJournal(directory / name), world=world, **arguments(**options))
    distributed.destroy_process_group()


def arrange(fate: str) -> None:
    """Make this process kill itself in a step or around checkpoint 3, or find the disk full there.

    The disk is full for the checkpoint's files, or ("record refused") for its record alone.
    """
    owner, name, count, after = {
        "in a step": (Stepper, "update", 33, False),
        "between two files": (os, "fsync", 12, True),
        "before the renaming": (os, "rename", 3, False),
        "after the renaming": (os, "rename", 3, True),
        "before the record": (FolderJournal, "commit", 3, False),
        "after the record": (FolderJournal, "commit", 3, True),
        "disk full": (os, "fsync", 12, False),
        "record refused": (FolderJournal, "commit", 3, False),
    }[fate]
    real, calls = getattr(owner, name), []

    def call(*args: Any) -> Any:
        calls.append(None)
        if len(calls) == count and fate in ("disk full", "record refused"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(calls) == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)
