"""Compiles what the evaluations of a sweep need, while the launch compiles what training needs.

The first launch after an installation compiles all kernels.  Without this, evaluations would compile theirs
when the first checkpoints are there, on processors that train.  Here each kind of evaluation measures a small
example, on a new model of each kind and on what is not trained.  Nothing of that is kept but the machine code
(`raysweep.compiled.cache`), and nothing waits for it.

`python -m raysweep.engine.ahead DIRECTORY FILES PART PARTS` takes every PARTS-th of these examples, from
number PART on, of the sweep in a directory; FILES is a folder for what they read.  It needs no Ray
(`raysweep.engine.forks.compile_ahead`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

from raysweep.engine.worker import prepare
from raysweep.evaluation import Evaluation, ModelSubject
from raysweep.evaluation.run import run_evaluation
from raysweep.sweep import RunSpec, Sweep
from raysweep.sweep.storage import storage_root
from raysweep.sweep.stored import load_stored

#: Most parameters of a model that is made for this: larger ones take long beside what is compiled.
MOST = 2**24


def main(directory: str, files: str, part: str, parts: str) -> None:
    """Measure a part of the examples of a stored sweep; say nothing of those that fail."""
    logging.disable()
    prepare()
    folder, _, name = directory.rpartition("/")
    sweep = load_stored(storage_root(folder) / name)
    for spec, evaluation in list(examples(sweep, Path(files)))[int(part) :: int(parts)]:
        # What is wrong with it will be said by the evaluation itself.
        with suppress(Exception):
            measure(sweep, spec, evaluation)


def examples(sweep: Sweep, files: Path) -> Iterator[tuple[RunSpec, Evaluation]]:
    """Yield a run and a small evaluation for each kind of language, of model and of evaluation.

    `files` is a folder for what evaluations read.  What is not trained comes first, because training
    does not compile the exact conditionals that it needs.  The model is the largest, because smaller ones may
    leave out a part of what it computes, but none has more than `MOST` parameters.  Languages that need a
    large model themselves are left out.
    """
    different = {
        (spec.language_fingerprint, spec.model.label if spec.trains else spec.algorithm.kind): spec
        for spec in sweep.runs
    }
    sized = []
    for spec in different.values():
        language = sweep.language(spec)
        size = spec.model.parameters(language) if spec.trains else 0
        if size <= MOST and not language.stores_conditionals:
            sized.append((spec.trains, -size, spec))
    seen = set()
    for *_, spec in sorted(sized, key=itemgetter(0, 1)):
        for evaluation in spec.evaluations.values():
            kind = spec.model.kind if spec.trains else spec.algorithm.kind
            key = spec.language.kind, kind, evaluation.kind
            if key not in seen:
                seen.add(key)
                yield spec, type(evaluation).example(files)


def measure(sweep: Sweep, spec: RunSpec, evaluation: Evaluation) -> None:
    """Measure a new model of a run, or what its algorithm gives without training."""
    language = sweep.language(spec)
    if spec.trains:
        run_evaluation(evaluation, ModelSubject(language, spec.model.build(language, seed=0)))
    else:
        run_evaluation(evaluation, spec.algorithm.subject(language))


if __name__ == "__main__":
    main(*sys.argv[1:])
