"""What one run still lacks, read from its ledger."""

from __future__ import annotations

from raysweep.errors import CheckpointError
from raysweep.sweep.ledger import RunLedger
from raysweep.sweep.run import RunSpec
from raysweep.training import verify


def evaluated(run: RunLedger, spec: RunSpec, step: int) -> bool:
    """Return whether every evaluation of a milestone is recorded."""
    return all(run.evaluation(step, evaluation) is not None for evaluation in spec.evaluations.values())


def lacking_checkpoints(run: RunLedger, spec: RunSpec, *, check: bool) -> list[int]:
    """Return the milestones that must be trained to, ascending.

    A milestone needs its checkpoint until everything is measured on it.  With `check`, files are compared
    with the manifest, and a torn or altered checkpoint is quarantined and counts as lacking.
    """
    if not spec.trains:
        return []
    there = run.steps_on_disk()
    lacking = []
    for step in spec.milestones:
        record = run.checkpoint(step)
        if record is None:
            lacking.append(step)
        elif not evaluated(run, spec, step):
            if step in there and check:
                try:
                    verify(run.checkpoint_directory(step), record.files)
                except CheckpointError as error:
                    run.quarantine(record, str(error))
                    there.discard(step)
            if step not in there:
                lacking.append(step)
    return lacking


def finished(run: RunLedger, spec: RunSpec) -> bool:
    """Return whether every milestone is trained to and measured."""
    return all(
        (not spec.trains or run.checkpoint(step) is not None) and evaluated(run, spec, step)
        for step in spec.milestones
    )


def metrics_at(run: RunLedger, spec: RunSpec, step: int) -> dict[str, float]:
    """Return all metrics that are recorded for a step, standard errors as `<metric>_se`."""
    found: dict[str, float] = {}
    for evaluation in spec.evaluations.values():
        record = run.evaluation(step, evaluation)
        for metric in record.metrics if record is not None else ():
            found[metric.name] = metric.value
            if metric.standard_error is not None:
                found[f"{metric.name}_se"] = metric.standard_error
    return found
