"""Runs a whole evaluation in this process, and finds stored shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raysweep.evaluation.base import Arrays, Evaluation, Subject
from raysweep.evaluation.metric import Metric
from raysweep.training.memory import keep_freed_memory


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The result of an evaluation: its metrics, and its notes on the way of measuring."""

    metrics: list[Metric]
    notes: dict[str, str]


def run_evaluation(
    evaluation: Evaluation, subject: Subject, *, progress: Callable[[int, int], None] | None = None
) -> Measured:
    """Fit an evaluation to the subject's language, measure all wanted shards in order, and combine them.

    `progress` receives the number of shards that are done, and the number that is known to be wanted.  From
    then on this process keeps freed memory (`raysweep.training.memory`), as it does after training.
    """
    keep_freed_memory()
    evaluation, shards = evaluation.fitted(subject.language), list[Arrays]()
    while (wanted := evaluation.next_shards(shards)) > len(shards):
        for shard in range(len(shards), wanted):
            shards.append(evaluation.measure(subject, shard))
            if progress is not None:
                progress(shard + 1, wanted)
    return Measured(metrics=evaluation.metrics(shards), notes=evaluation.notes(shards))


def stored_shards(
    evaluation: Evaluation, load: Callable[[int], Arrays | None]
) -> tuple[list[Arrays], list[int]]:
    """Return the shards that count, in order, and the numbers of the shards still to be measured.

    `load` gives the arrays of a shard, None where they are not there.  Where the second list is empty, the
    first is all that the evaluation wants.  Stored shards that are not wanted do not matter, so the answer
    does not depend on the order of measuring.
    """
    shards: list[Arrays] = []
    while (wanted := evaluation.next_shards(shards)) > len(shards):
        found = {shard: load(shard) for shard in range(len(shards), wanted)}
        missing = [shard for shard, arrays in found.items() if arrays is None]
        if missing:
            return shards, missing
        shards += [arrays for arrays in found.values() if arrays is not None]
    return shards, []
