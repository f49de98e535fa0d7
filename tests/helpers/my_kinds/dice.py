"""Sentences of independent throws of a loaded die."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from raysweep.errors import DataError
from raysweep.languages.base import Language, LanguageConfig, Sample, Task, certain_length
from raysweep.languages.checks import check_conditionals, check_sentences
from raysweep.seeding import uniforms


class DiceConfig(LanguageConfig):
    """A die with `sides` faces, face k with weight k + 1, thrown `length` times."""

    kind: Literal["dice"] = "dice"
    sides: int = Field(default=6, ge=2)
    length: int = Field(default=8, ge=1)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(sides=4, length=3)

    def build(self) -> Dice:
        return Dice(self.sides, self.length)


class Dice(Language):
    """Independent words, so that a conditional is the probability of the word alone."""

    fixed_length = True

    def __init__(self, sides: int, length: int) -> None:
        self.vocabulary_size, self.max_length = sides, length
        weights = torch.arange(1, sides + 1, dtype=torch.float64)
        self._probabilities = weights / weights.sum()
        self.length_probabilities = certain_length(length)

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {"first": Task(name="first", classes=("low", "high"), description="half of the first word")}

    def sample_latent(self, n: int, *, seed: int, start: int = 0) -> Sample:
        u = uniforms(seed, "dice", torch.arange(start, start + n), self.max_length)
        ids = torch.bucketize(u, self._probabilities.cumsum(0)).clamp(max=self.vocabulary_size - 1)
        return Sample(ids=ids)

    def labels(self, task: str, sample: Sample) -> Tensor:
        if task not in self.tasks:
            raise DataError(f"no task '{task}'; there is first")
        return (2 * sample.ids[:, 0] >= self.vocabulary_size).long()

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        check_conditionals(self, ids, mask, dtype)
        real = ids != self.pad_id
        hidden = real if mask is None else mask & real
        log_probs = self._probabilities.log().to(dtype)
        return torch.where(hidden[:, :, None], log_probs, torch.nan)

    def log_prob(self, ids: Tensor) -> Tensor:
        lengths = check_sentences(self, ids)
        log_probs = self._probabilities.log()[ids.long().clamp(max=self.vocabulary_size - 1)]
        total = torch.where(ids != self.pad_id, log_probs, 0.0).sum(dim=1)
        return total.masked_fill(lengths != self.max_length, -torch.inf)

    def content(self) -> bytes:
        return repr((self.vocabulary_size, self.max_length)).encode()
