"""The best possible accuracy of a task: that of the classifier that knows the language (Bayes).

    best = E_x max_c Pr(label = c | x)

The mean is over the test sentences of the task, and the standard error is over them, so that headroom is
known before anything is trained.  Where the label is a function of the sentence, the best accuracy is one.

>>> from raysweep.languages.hmm import HMM
>>> language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,))
>>> best_accuracy(language, "2", 512, seed=0).value < 1
True
"""

from __future__ import annotations

from functools import lru_cache

from raysweep.languages.base import Estimate, Language
from raysweep.languages.known import Known
from raysweep.languages.splits import certainty, draw_split


def best_accuracy(language: Language, task: str, n: int, *, seed: int) -> Estimate | None:
    """Estimate the best possible accuracy on the first `n` test sentences of `seed`; None if it is unknown.

    It is known for a language's own tasks where the language gives `label_posterior`, and exactly one where
    the label is a function of the sentence.  Raises `DataError` for an unknown task.  Results are kept in
    this process, because they are the same for every model.
    """
    if task in language.data_tasks:
        return None
    if task in language.tasks and language.determined(task):
        return Estimate(value=1.0, standard_error=0.0, n=n)
    return _estimate(Known(language), task, n, seed)


@lru_cache(maxsize=64)
def _estimate(known: Known, task: str, n: int, seed: int) -> Estimate | None:
    values = certainty(known.language, task, draw_split(known.language, "test", n, seed=seed).ids)
    return None if values is None else Estimate.of(values)
