"""The linear probe at a milestone (`raysweep.downstream.probe` defines it).

Training and test sentences are the two task splits of `raysweep.languages.splits`, which share no sentence.
They, projections and orders are keyed by the evaluation's seed alone, so all runs and milestones are probed
with the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field

from raysweep.downstream.probe import Chunk, linear_probe
from raysweep.downstream.tasks import TaskGroup
from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.tasks import TaskEvaluation
from raysweep.languages.base import Language
from raysweep.languages.splits import Split
from raysweep.seeding import derive

PROBE = Quantity(
    name="probe/{task}", heading="probe accuracy", short="probe", unit="accuracy", kind="accuracy",
    better="more", baseline="majority/{task}", live=True, report=True,
)  # fmt: skip
PROBE_STD = Quantity(
    name="probe_std/{task}", heading="standard deviation of accuracy between seeds", unit="accuracy"
)
MAJORITY = Quantity(name="majority/{task}", heading="share of the most frequent label", unit="accuracy")

_CHUNK = 4096  # sentences whose features are in memory at once; the first chunk gives the statistics


class ProbeConfig(TaskEvaluation):
    """Accuracy of linear heads on frozen representations, for each of `tasks` (all when None)."""

    kind: Literal["probe"] = "probe"

    #: Projections and training orders.
    seeds: int = Field(default=5, gt=0)
    #: Sentences trained on, of the task split `train`.
    train: int = Field(default=100_000, gt=0)
    #: Sentences tested on, of the task split `test`.
    test: int = Field(default=100_000, gt=0)
    #: Width of the random projection.
    projection: int = Field(default=512, gt=0)
    epochs: int = Field(default=100, gt=0)
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    batch_size: int = Field(default=256, gt=0)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    standardize: bool = True
    seed: int = Field(default=0, ge=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(train=96, test=64, projection=16, epochs=3, seeds=2)

    def problems(self, language: Language) -> list[tuple[str, str]]:
        found = super().problems(language)
        if not found:
            found = self.shortage(language, "train", "train", self.train)
            found += self.shortage(language, "test", "test", self.test)
        return found

    def shards(self) -> int:
        """One: all seeds and tasks share one pass over the features."""
        return 1

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return `accuracy.<task>` [seeds] and `majority.<task>` [1], float64."""
        if shard != 0:
            raise IndexError(f"shard {shard} of 1")
        arrays: Arrays = {}
        for group in self.groups(subject.language):
            results = linear_probe(
                self._chunks(subject, group, "train", self.train),
                self._chunks(subject, group, "test", self.test),
                {name: len(task.classes) for name, task in group.tasks.items()},
                seeds=self.seeds,
                seed=derive(self.seed, "probe"),
                projection=self.projection,
                epochs=self.epochs,
                learning_rate=self.lr,
                batch_size=self.batch_size,
                weight_decay=self.weight_decay,
                standardize=self.standardize,
            )
            for name, result in results.items():
                arrays[f"accuracy.{name}"] = result.accuracy.numpy()
                arrays[f"majority.{name}"] = np.array([result.majority])
        return arrays

    def _chunks(self, subject: Subject, group: TaskGroup, split: Split, n: int) -> Iterator[Chunk]:
        """Yield features and labels of the first `n` examples of a split, some thousand at a time."""
        for examples in group.batches(split, n, seed=self.seed, size=_CHUNK):
            yield subject.features(examples.ids), examples.labels

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return mean and standard deviation over seeds, and the accuracy of always guessing one class.

        The standard error of `probe/<task>` is over seeds, given the test sentences, which are the same for
        every run; that of `majority/<task>` is over test sentences.
        """
        (arrays,) = shards
        metrics = []
        for key, accuracy in arrays.items():
            name, _, task = key.partition(".")
            if name != "accuracy":
                continue
            of = {"task": task}
            metrics.append(PROBE.mean(accuracy, of=of))
            if len(accuracy) > 1:
                std = float(accuracy.std(ddof=1))
                metrics.append(PROBE_STD.number(std, n=len(accuracy), of=of))
            majority = float(arrays[f"majority.{task}"][0])
            error = math.sqrt(majority * (1 - majority) / self.test)
            metrics.append(MAJORITY.number(majority, n=self.test, standard_error=error, of=of))
        return metrics
