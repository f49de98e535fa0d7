"""Evaluations that take something from all models of a sweep, such as a shape that holds every one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raysweep.evaluation.base import Evaluation
from raysweep.models.base import ModelConfig
from raysweep.sweep.run import RunSpec


def together(
    runs: Sequence[RunSpec], others: Sequence[ModelConfig] = ()
) -> tuple[tuple[RunSpec, ...], tuple[str, ...]]:
    """Return runs whose evaluations know the models that they compare (`Evaluation.among`), and remarks.

    `others` are models to be compared, too, that no run has yet.
    """
    models: dict[str, dict[int, ModelConfig]] = {}
    for run in runs:
        for kind in run.evaluations if run.trains else ():
            models.setdefault(kind, {id(m): m for m in others})[id(run.model)] = run.model
    # Runs share their evaluations, so each is asked once.
    known: dict[int, tuple[Evaluation, Evaluation]] = {}
    remarks: dict[str, None] = {}
    found = []
    shared: dict[int, dict[str, Evaluation]] = {}
    for run in runs:
        for kind, evaluation in run.evaluations.items():
            if id(evaluation) not in known and kind in models:
                other, remark = evaluation.among(list(models[kind].values()))
                known[id(evaluation)] = (evaluation, other)
                remarks |= {remark: None} if remark is not None else {}
        if id(run.evaluations) not in shared:
            own = {k: known.get(id(e), (e, e))[1] for k, e in run.evaluations.items()}
            shared[id(run.evaluations)] = own
        found.append(replace(run, evaluations=shared[id(run.evaluations)]))
    return tuple(found), tuple(remarks)
