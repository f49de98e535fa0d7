"""A small run in this process: a language, a journal in a folder, and the work of several processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from raysweep import seeding
from raysweep.algorithms import AlgorithmConfig
from raysweep.languages.base import Language, Sample, Task
from raysweep.models import EncoderConfig, ModelConfig
from raysweep.training import CheckpointRecord, PretrainConfig, World, pretrain


class Walk(Language):
    """A walk upwards modulo V in steps of 0 or 1; every third sentence has T - 2 words, the others T.

    Its tasks are the distance to the third word, and the half of the words in which the first one lies.
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
        return Sample(ids=self.sample_at(torch.arange(start, start + n), seed=seed))

    def sample_at(self, numbers: Tensor, *, seed: int) -> Tensor:
        u = seeding.uniforms(seed, "walk", numbers, self.max_length)
        first = (u[:, :1] * self.vocabulary_size).long()
        ids = torch.cat([first, (u[:, 1:] < 0.7).long()], dim=1).cumsum(dim=1) % self.vocabulary_size
        ids[numbers % 3 == 0, self.max_length - 2 :] = self.pad_id
        return ids

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


def small_run(
    algorithm: AlgorithmConfig, *, model: ModelConfig | None = None, pretrain: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the arguments of `raysweep.training.pretrain`, all but the journal, for 60 steps."""
    settings = {"steps": 60, "batch_size": 13, "milestones": [20, 60], "checkpoint_every": 7}
    return {
        "language": Walk(),
        "model": EncoderConfig(shape="8/2/2/16") if model is None else model,
        "algorithm": algorithm,
        "pretrain": PretrainConfig.decode({**settings, **(pretrain or {})}),
        "seed": 5,
    }


def work_in_turn(directory: Path, world: World, rendezvous: Path, jobs: Mapping[str, Any]) -> None:
    """Train one run after another as a worker of `world`, each in the folder of its name."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=world.rank, world_size=world.size
    )
    for name, options in jobs.items():
        pretrain(journal=FolderJournal(directory / name), world=world, **options)
    distributed.destroy_process_group()
