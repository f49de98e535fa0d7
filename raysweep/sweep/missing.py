"""The one answer to what a run lacks: milestones to train to, evaluations, and the step to resume from.

A milestone needs its checkpoint until every evaluation of it is recorded.  Training reaches the missing
milestones in order and starts from the newest checkpoint before the first of them.  A milestone that another
run starts from needs its checkpoint, too (`raysweep.sweep.starts`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from raysweep.errors import CheckpointError
from raysweep.evaluation.metric import Metric
from raysweep.sweep.ledger import RunLedger, heads
from raysweep.sweep.run import RunSpec
from raysweep.sweep.survey import RunRecords, survey_run
from raysweep.training import verify


@dataclass(frozen=True)
class Missing:
    """The part of a run that is not in the ledger, in the order of steps."""

    #: Milestones to train to.
    checkpoints: tuple[int, ...] = ()
    #: (step, kind) of the evaluations to compute.
    evaluations: tuple[tuple[int, str], ...] = ()
    #: Training starts from the checkpoint of this step; 0 means from the start.
    resume_step: int = 0

    @property
    def finished(self) -> bool:
        """True if nothing is missing."""
        return not self.checkpoints and not self.evaluations

    @property
    def train_to(self) -> int:
        """The last step to train to; 0 if there is nothing to train."""
        return self.checkpoints[-1] if self.checkpoints else 0

    @property
    def train_steps(self) -> int:
        """Number of steps to train."""
        return max(0, self.train_to - self.resume_step)


_NOTHING = Missing()


# Thousands of runs have the same milestones, evaluations and records.
@lru_cache(maxsize=256)
def _unmeasured(
    milestones: tuple[int, ...],
    wanted: tuple[tuple[str, str], ...],
    measured: frozenset[tuple[int, str, str]],
) -> tuple[tuple[int, str], ...]:
    """Return (step, kind) of the `wanted` evaluations, kinds with heads, that are not measured."""
    return tuple(
        (step, kind) for step in milestones for kind, head in wanted if (step, kind, head) not in measured
    )


def missing(
    spec: RunSpec,
    held: RunRecords,
    wanted: Mapping[str, str] | None = None,
    *,
    needed: Collection[int] = (),
) -> Missing:
    """Return what a run lacks, given its records.

    `wanted` is `heads(spec.evaluations)`, for callers that share it between runs.  `needed` are the steps
    whose checkpoints other runs start from.
    """
    wanted = heads(spec.evaluations) if wanted is None else wanted
    evaluations = _unmeasured(spec.milestones, tuple(wanted.items()), held.evaluations)
    if not spec.trains:
        return Missing(evaluations=evaluations)
    to_use = {step for step, _ in evaluations}.union(needed)
    if not to_use and held.recorded.issuperset(spec.milestones):
        return _NOTHING
    checkpoints = tuple(
        step
        for step in spec.milestones
        if step not in held.recorded or (step in to_use and step not in held.usable)
    )
    # Thousands of runs lack nothing, and the folders of their checkpoints are not looked for.
    older = [step for step in held.usable if step < checkpoints[0]] if checkpoints else []
    return Missing(checkpoints, evaluations, max(older, default=0))


def missing_now(
    run: RunLedger, spec: RunSpec, *, check_files: bool = False, needed: Collection[int] = ()
) -> Missing:
    """Read the ledger of a run and return what the run lacks; `needed` is as in `missing`.

    With `check_files`, the files of every checkpoint that is still to be evaluated or started from are
    compared with their manifest.  A torn or altered checkpoint is quarantined and counts as missing.
    """
    held = survey_run(run)
    found = missing(spec, held, needed=needed)
    if not check_files or not spec.trains:
        return found
    for step in {step for step, _ in found.evaluations}.union(needed) & held.usable:
        record = run.checkpoint(step)
        if record is None:
            held.recorded -= {step}
            continue
        try:
            verify(run.checkpoint_directory(step), record.files)
        except CheckpointError as error:
            run.quarantine(record, str(error))
            held.usable.discard(step)
    return missing(spec, held, needed=needed)


def metrics_at(run: RunLedger, spec: RunSpec, step: int) -> list[Metric]:
    """Return all metrics that are recorded for a step."""
    found: list[Metric] = []
    for evaluation in spec.evaluations.values():
        record = run.evaluation(step, evaluation)
        found += record.metrics if record is not None else ()
    return found
