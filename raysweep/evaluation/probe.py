"""The linear probe at a milestone (`raysweep.downstream.probe` defines it).

Training and test sentences are the two task splits of `raysweep.languages.splits`, which share no sentence.
They, projections and orders are keyed by the evaluation's seed alone, so all runs and milestones are probed
with the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, field_validator

from raysweep.downstream.probe import Chunk, linear_probe
from raysweep.evaluation.base import Arrays, Evaluation, Subject
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.languages.base import Language
from raysweep.languages.splits import Split, draw_split
from raysweep.registry import suggest
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


def _as_name(value: Any) -> Any:
    """Return a whole number as a name: tasks of hidden Markov models are called "6", "10"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class ProbeConfig(Evaluation):
    """Accuracy of linear heads on frozen representations, for each of `tasks` (all when None)."""

    kind: Literal["probe"] = "probe"

    tasks: tuple[Annotated[str, BeforeValidator(_as_name)], ...] | None = None
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

    @field_validator("tasks")
    @classmethod
    def _tasks_are_named_once(cls, tasks: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if tasks is not None and not tasks:
            raise ValueError("names no task; leave it out to probe all tasks")
        if tasks is not None and len(set(tasks)) != len(tasks):
            raise ValueError(f"a task is named twice in {list(tasks)}")
        return tasks

    def problems(self, language: Language) -> list[tuple[str, str]]:
        known = list(language.tasks)
        if not known:
            return [("tasks", "the language has no downstream tasks; leave the probe out")]
        return [
            (
                f"tasks.{k}",
                f"unknown task '{task}'{suggest(task, known)}; the language has {', '.join(known)}",
            )
            for k, task in enumerate(self.tasks or ())
            if task not in known
        ]

    def shards(self) -> int:
        """One: all seeds and tasks share one pass over the features."""
        return 1

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return `accuracy.<task>` [seeds] and `majority.<task>` [1], float64."""
        if shard != 0:
            raise IndexError(f"shard {shard} of 1")
        tasks = tuple(subject.language.tasks) if self.tasks is None else self.tasks
        results = linear_probe(
            self._chunks(subject, tasks, "train", self.train),
            self._chunks(subject, tasks, "test", self.test),
            {task: len(subject.language.tasks[task].classes) for task in tasks},
            seeds=self.seeds,
            seed=derive(self.seed, "probe"),
            projection=self.projection,
            epochs=self.epochs,
            learning_rate=self.lr,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
            standardize=self.standardize,
        )
        arrays: Arrays = {}
        for task, result in results.items():
            arrays[f"accuracy.{task}"] = result.accuracy.numpy()
            arrays[f"majority.{task}"] = np.array([result.majority])
        return arrays

    def _chunks(self, subject: Subject, tasks: Sequence[str], split: Split, n: int) -> Iterator[Chunk]:
        """Yield features and labels of the first `n` sentences of a split, some thousand at a time."""
        for start in range(0, n, _CHUNK):
            size = min(_CHUNK, n - start)
            sample = draw_split(subject.language, split, size, seed=self.seed, start=start)
            yield (
                subject.features(sample.ids),
                {task: subject.language.labels(task, sample) for task in tasks},
            )

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
