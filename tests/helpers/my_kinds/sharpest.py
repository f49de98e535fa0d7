"""The probability of the most probable first word: a metric with a column in the live view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field

from raysweep.evaluation import Arrays, Evaluation, Metric, Quantity, Subject
from raysweep.evaluation.sharding import draw_sentences, shard_range

SHARPEST = Quantity(
    name="sharpest", heading="largest probability", short="p_max", unit="probability", kind="diagnostic",
    better="more", live=True, report=True,
)  # fmt: skip


class SharpestConfig(Evaluation):
    """Mean over `sentences` of the largest probability at the first position."""

    kind: Literal["sharpest"] = "sharpest"
    sentences: int = Field(default=4096, gt=1)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(sentences=40)

    def shards(self) -> int:
        return 1

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        numbers = shard_range(self.sentences, self.sentences, shard)
        ids = draw_sentences(subject.language, numbers, seed=self.seed, purpose="sharpest")
        log_probs = subject.log_probs(ids, torch.zeros(len(ids), dtype=torch.int64))
        return {"largest": log_probs.exp().amax(dim=1).cpu().numpy()}

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        return [SHARPEST.mean(np.concatenate([shard["largest"] for shard in shards]))]
