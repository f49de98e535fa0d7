"""Compiles what evaluations need, while a launch compiles what training needs.

The first launch after an installation has all kernels to compile.  Evaluations would compile theirs when the
first checkpoints are there, on processors that train.  Here a small example of each kind of evaluation is
measured, on a new model of each kind and on what is not trained.  Only the machine code is kept
(`raysweep.compiled.cache`), and nothing waits for it.

The launch names the examples (`examples`).  `python -m raysweep.engine.compiling DIRECTORY FILES EXAMPLE...`
measures them, without Ray, in a fork of the fork server (`raysweep.engine.forks.compile_ahead`).
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

from raysweep.engine.worker import prepare
from raysweep.evaluation import ModelSubject
from raysweep.evaluation.run import run_evaluation
from raysweep.sweep import RunSpec, Sweep
from raysweep.sweep.storage import storage_root
from raysweep.sweep.stored import load_stored

#: Most parameters of a model that is made for this: larger ones take long beside what is compiled.
MOST = 2**24

#: Between the id of a run and the name of one of its evaluations.
_BETWEEN = ":"


def examples(sweep: Sweep) -> list[str]:
    """Return a run and an evaluation of it, as `run:evaluation`, for each of their kinds in a sweep.

    The kinds are those of language, of model and of evaluation.  What is not trained comes first, because
    training does not compile the exact conditionals that it needs.  The model is the largest, because smaller
    ones may leave out a part of what it computes, but none has more than `MOST` parameters.  A language that
    reads its conditionals off a large model is left out.
    """
    different = {
        (spec.language_fingerprint, str(spec.model.encode()) if spec.trains else spec.algorithm.kind): spec
        for spec in sweep.runs
    }
    sized = []
    for spec in different.values():
        language = sweep.language(spec)
        size = spec.model.parameters(language) if spec.trains else 0
        if size <= MOST and not language.stores_conditionals:
            sized.append((spec.trains, -size, spec))
    found: dict[tuple[str, str, str], str] = {}
    for *_, spec in sorted(sized, key=itemgetter(0, 1)):
        for name, evaluation in spec.evaluations.items():
            kind = spec.model.kind if spec.trains else spec.algorithm.kind
            found.setdefault((spec.language.kind, kind, evaluation.kind), f"{spec.run_id}{_BETWEEN}{name}")
    return list(found.values())


def main(directory: str, files: str, *wanted: str) -> None:
    """Measure examples of the sweep that is stored in a directory; `files` is a folder for what they read."""
    logging.disable()
    prepare()
    sweep = load_stored(storage_root(directory))
    runs = {spec.run_id: spec for spec in sweep.runs}
    for example in wanted:
        run_id, _, name = example.partition(_BETWEEN)
        # What is wrong with it will be said by the evaluation itself.
        with suppress(Exception):
            measure(sweep, runs[run_id], name, Path(files))


def measure(sweep: Sweep, spec: RunSpec, name: str, files: Path) -> None:
    """Measure a small evaluation of the kind of one of a run's, on a new model or on what is not trained."""
    evaluation = type(spec.evaluations[name]).example(files)
    language = sweep.language(spec)
    if spec.trains:
        run_evaluation(evaluation, ModelSubject(language, spec.model.build(language, seed=0)))
    else:
        run_evaluation(evaluation, spec.algorithm.subject(language))


if __name__ == "__main__":
    main(*sys.argv[1:])
