"""A tiny sweep file, an evaluation that needs no model, and what training would leave of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raysweep.evaluation.base import Arrays, Evaluation, Subject
from raysweep.evaluation.metric import Metric
from raysweep.languages.base import Language
from raysweep.sweep import RunLedger, RunSpec
from raysweep.training.checkpoint import CheckpointRecord, CurvePoint, FileDigest

HEAD = """\
name: tiny
language: {kind: hmm, states: 4, vocabulary: 6, length: 4, blocks: 2, tasks: [2]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw, lr: 1e-3}
pretrain: {steps: 100, batch_size: 8, milestones: [50, 100]}
"""

#: `counted` is registered by the fixtures of tests/sweep.
BASE = HEAD + "evaluate: {counted: {n: 3}}\n"

AXES = """\
axes:
  model.shape: [16/1/1/32, 16/2/2/32]
  seed: [0, 1]
"""


class CountedConfig(Evaluation):
    """Counts; `weighted` is the same for models only."""

    kind: Literal["counted"] = "counted"
    n: int = Field(default=1, ge=1)
    tasks: tuple[str, ...] = ("2",)

    def problems(self, language: Language) -> list[tuple[str, str]]:
        return [
            (f"tasks.{k}", f"'{task}' is no task of the language; it has {', '.join(language.tasks)}")
            for k, task in enumerate(self.tasks)
            if task not in language.tasks
        ]

    def shards(self) -> int:
        return 1

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        return {"count": np.ones(self.n)}

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        return [Metric(name="count", value=1.0, standard_error=None, n=self.n, unit="")]


class WeightedConfig(CountedConfig):
    """An evaluation of parameters."""

    kind: Literal["weighted"] = "weighted"  # type: ignore[assignment]
    needs_parameters: ClassVar[bool] = True


def checkpoint(
    run: RunLedger, step: int, *, milestone: bool = True, seconds: float = 1.0, busy: float | None = None
) -> CheckpointRecord:
    """Commit a checkpoint of a step as training would, with something in its folder.

    `busy` is the share of the `seconds` in which a processor was used, where the record tells it.
    """
    folder = run.checkpoint_directory(step)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    record = CheckpointRecord(
        step=step,
        milestone=milestone,
        files={"model.safetensors": FileDigest(sha256="0" * 64, size=7)},
        curve=(CurvePoint(step=step, loss=1.0 / max(step, 1), time_ms=1000 * step),),
        time=float(step),
        train_seconds=seconds,
        train_cpu_seconds=None if busy is None else busy * seconds,
    )
    run.commit(record)
    return record


def measured(value: float = 1.0, error: float | None = 0.1) -> list[Metric]:
    """Return a metric."""
    return [Metric(name="count", value=value, standard_error=error, n=3, unit="nats")]


def finish(run: RunLedger, spec: RunSpec) -> None:
    """Record everything of a run."""
    for step in spec.milestones:
        if spec.trains:
            checkpoint(run, step, seconds=0.5 * step)
        for evaluation in spec.evaluations.values():
            run.record_evaluation(step, evaluation, measured(float(step)), seconds=2.0)
