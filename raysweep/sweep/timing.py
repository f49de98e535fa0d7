"""Seconds a step of runs that nobody has timed yet, from a few steps done here and now."""

from __future__ import annotations

import torch

from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.training.timing import step_seconds

#: Of training for a measurement: some ten seconds on one core (6 operations a parameter and word).
MOST_OPERATIONS = 5e11


def measure(sweep: Sweep, *, steps: int = 20) -> dict[str, float]:
    """Return run id -> seconds a step for every run that trains and has no record yet.

    Runs with the same language, model, algorithm and batch are timed once, on one thread of this machine.
    What is meant for GPUs, or would take longer than some seconds here, is not timed.
    """
    if sweep.resources.per_worker.get("GPU", 0) > 0:
        return {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(sweep, steps)
    finally:
        torch.set_num_threads(threads)


def _measure(sweep: Sweep, steps: int) -> dict[str, float]:
    ledger = sweep.ledger()
    timed: dict[str, float] = {}
    found: dict[str, float] = {}
    for spec in sweep.runs:
        if not spec.trains or ledger.open(spec.run_id).record_names():
            continue
        parts = (spec.language, spec.model, spec.algorithm)
        key = canonical([*(part.encode() for part in parts), spec.pretrain.batch_size, spec.pretrain.mask])
        language = sweep.language(spec)
        words = spec.pretrain.batch_size * language.max_length
        if 6 * spec.model.parameters(language) * words * steps > MOST_OPERATIONS:
            continue
        if key not in timed:
            timed[key] = step_seconds(language, spec.model, spec.algorithm, spec.pretrain, steps=steps)
        found[spec.run_id] = timed[key]
    return found
