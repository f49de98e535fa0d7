"""Ray tasks that measure: one shard of one evaluation at one milestone.

A task is a pure function of its arguments and writes its result under a name that depends on them alone.  So
a retry, a repeat after a crash, or two tasks that do the same thing give the same files.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numpy as np
import ray

from raysweep.engine.references import reference_folder, stored_reference
from raysweep.engine.window import RETRIES
from raysweep.engine.worker import built, check_visible, device, prepare
from raysweep.models.subject import ModelSubject
from raysweep.sweep import RunLedger, RunSpec, arrays_identity
from raysweep.sweep.sentences import training_of
from raysweep.training import load_model


@lru_cache(maxsize=2)
def _cached_model(path: str, model: Any, language: Any, device: str) -> Any:
    return load_model(path, model, built(language), device=device)


def _model(run: RunLedger, spec: RunSpec, step: int, device: str) -> Any:
    return _cached_model(str(run.checkpoint_directory(step)), spec.model, spec.language, device)


def _measure_shard(
    spec: RunSpec, run: RunLedger, step: int, kind: str, shard: int, reference: np.ndarray | None
) -> tuple[float, float]:
    """Measure one shard of one evaluation at one milestone and store its arrays in the ledger.

    Returns the seconds of work that it took, and those of processor time.
    """
    prepare()
    check_visible(run)
    start, cpu = time.perf_counter(), time.process_time()
    evaluation = spec.evaluations[kind]
    language = built(spec.language).to(device())
    subject: Any
    if spec.trains:
        training = training_of(spec, language, run.storage)
        subject = ModelSubject(language, _model(run, spec, step, device()), training=training)
    else:
        subject = spec.algorithm.subject(language)
    if reference is None and evaluation.needs_reference:
        # Where nothing is stored, `measure` computes the conditionals itself, in smaller pieces.
        folder = reference_folder(run.storage, language, evaluation)
        if folder is not None:
            reference = stored_reference(language, evaluation, shard, folder)
    arrays = evaluation.measure(subject, shard, reference)
    run.save_arrays(step, kind, arrays_identity(evaluation), shard, arrays)
    return time.perf_counter() - start, time.process_time() - cpu


_AS_TASK: Any = ray.remote(**RETRIES)
measure_shard = _AS_TASK(_measure_shard)
