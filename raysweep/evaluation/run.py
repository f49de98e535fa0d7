"""Running an evaluation whole, in this process."""

from __future__ import annotations

from collections.abc import Callable

from raysweep.evaluation.base import Evaluation, Metric, Subject


def run_evaluation(
    evaluation: Evaluation, subject: Subject, *, progress: Callable[[int, int], None] | None = None
) -> list[Metric]:
    """Measure all shards in order and combine them; `progress` is told how many of how many are done."""
    count, shards = evaluation.shards(), []
    for shard in range(count):
        shards.append(evaluation.measure(subject, shard))
        if progress is not None:
            progress(shard + 1, count)
    return evaluation.combine(shards)
