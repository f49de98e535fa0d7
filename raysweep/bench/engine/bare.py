"""The least that a sweep can cost: `python -m raysweep.bench.engine.bare FILE STORAGE`.

One process trains and evaluates all runs of a sweep file, one after another, and records them in the same
ledger as a launch does.  A run comes after the one that it starts from.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from raysweep.evaluation.run import run_evaluation
from raysweep.models.subject import ModelSubject
from raysweep.sweep import RunSpec, Sweep, load_sweep
from raysweep.sweep.sentences import training_of
from raysweep.training import load_model, pretrain


def run_all(sweep: Sweep) -> None:
    """Train and evaluate the runs of a sweep in this process."""
    for spec in sweep.runs:
        run_one(sweep, spec)


def run_one(sweep: Sweep, spec: RunSpec) -> None:
    """Train and evaluate one run in this process."""
    run, language = sweep.ledger().run(spec), sweep.language(spec)
    training = training_of(spec, language, sweep.storage) if spec.trains else None
    if training is not None:
        pretrain(
            language=language,
            model=spec.model,
            algorithm=spec.algorithm,
            pretrain=spec.pretrain,
            seed=spec.seeds,
            journal=run,
            training=training,
            start=None if spec.source is None else spec.source.start(run),
        )
    for step in spec.milestones:
        subject: Any
        if training is None:
            subject = spec.algorithm.subject(language)
        else:
            model = load_model(run.checkpoint_directory(step), spec.model, language)
            subject = ModelSubject(language, model, training=training)
        for evaluation in spec.evaluations.values():
            started, cpu = time.perf_counter(), time.process_time()
            found = run_evaluation(evaluation, subject)
            run.record_evaluation(
                step,
                evaluation,
                found.metrics,
                seconds=time.perf_counter() - started,
                cpu_seconds=time.process_time() - cpu,
                notes=found.notes,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_all(load_sweep(Path(sys.argv[1]), storage=sys.argv[2]))
