"""Seconds of a training step of runs without history, measured here and now."""

from __future__ import annotations

import time
from collections.abc import Iterable

from raysweep.compiled.threads import one_thread
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.run import RunSpec
from raysweep.training.timing import step_seconds

#: Most operations of one measurement: some ten seconds on one core (6 operations a parameter and word).
MOST_OPERATIONS = 5e11


def measure(sweep: Sweep, runs: Iterable[RunSpec], *, steps: int = 20) -> dict[str, float]:
    """Return run id -> seconds of a training step for those of `runs` that train.

    Runs with the same language, model, algorithm and batch are timed once, on one thread of this machine;
    settings of an algorithm that are real numbers, such as its rate, change no step's work.  Seconds are
    those of the processor, so that other work on the machine does not count.
    Runs that are meant for GPUs, or would take longer than some seconds here, are not timed.
    """
    if sweep.resources.per_worker.get("GPU", 0) > 0:
        return {}
    with one_thread():
        return _measure(sweep, runs, steps)


def _measure(sweep: Sweep, runs: Iterable[RunSpec], steps: int) -> dict[str, float]:
    timed: dict[str, float | None] = {}
    found: dict[str, float] = {}
    for spec in runs:
        if not spec.trains:
            continue
        algorithm = {k: v for k, v in spec.algorithm.encode().items() if not isinstance(v, float)}
        work = (spec.language.encode(), spec.model.encode(), algorithm)
        key = canonical([*work, spec.pretrain.batch_size, spec.pretrain.mask])
        if key not in timed:
            timed[key] = _timed(sweep, spec, steps)
        seconds = timed[key]
        if seconds is not None:
            found[spec.run_id] = seconds
    return found


def _timed(sweep: Sweep, spec: RunSpec, steps: int) -> float | None:
    """Return the seconds of a training step of a run; None where they would take too long to measure."""
    language = sweep.language(spec)
    words = spec.pretrain.batch_size * language.max_length
    if 6 * spec.model.parameters(language) * words * steps > MOST_OPERATIONS:
        return None
    return step_seconds(
        language, spec.model, spec.algorithm, spec.pretrain, steps=steps, clock=time.thread_time
    )
