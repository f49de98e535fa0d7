"""Scores of a task's predictions: the metrics of GLUE, from scikit-learn and scipy.

Accuracy, F1 of class 1, Matthews' correlation coefficient, Pearson's and Spearman's correlation, as in Wang
et al., "GLUE: a multi-task benchmark and analysis platform for natural language understanding", ICLR 2019.
F1 of more than two classes is the mean of the classes' F1, and that of a class without rows is 0.  Where a
coefficient is not defined, because all predictions or all labels are equal, it is 0, as scikit-learn says of
Matthews' coefficient: such predictions show no relation.

>>> task = Task(name="cola", classes=("no", "yes"), description="", metrics=("matthews", "accuracy"))
>>> scores(task, np.array([0, 1, 1, 1]), np.array([0, 1, 1, 0]))
{'matthews': 0.5773502691896258, 'accuracy': 0.75}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np

from raysweep.languages.base import Task, TaskMetric

_GROUPS = 50  # of a jackknife: each costs one score, and the error of the error is 10 %


def scores(task: Task, predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the task's metrics of predictions [n] and labels [n]: classes, or numbers of a regression."""
    return {metric: _score(metric, predicted, labels, len(task.classes)) for metric in task.metrics}


def sentence_error(
    metric: TaskMetric, predicted: np.ndarray, labels: np.ndarray, *, classes: int
) -> float | None:
    """Return the standard error over test sentences of the mean score of several predictors.

    `predicted` [S, n] are their answers to the same n sentences, `labels` [n], and `classes` is the number of
    classes, 0 for a regression.  The error of an accuracy is that of a mean.  Other scores have that of a
    jackknife that leaves out one of at most 50 groups of sentences (Shao and Tu, "The jackknife and
    bootstrap", 1995, section 2.3).  None for a single sentence.
    """
    n = len(labels)
    if n < 2:
        return None
    if metric == "accuracy":
        return float((predicted == labels).mean(axis=0).std(ddof=1) / math.sqrt(n))
    groups = min(n, _GROUPS)
    without = np.empty(groups)
    for k in range(groups):
        kept = np.arange(n) % groups != k
        without[k] = np.mean([_score(metric, answers[kept], labels[kept], classes) for answers in predicted])
    return float(without.std() * math.sqrt(groups - 1))


def _score(metric: TaskMetric, predicted: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """Return one score; which F1 it is depends on the task's classes, never on those that occur."""
    return _f1(predicted, labels, classes) if metric == "f1" else _SCORES[metric](predicted, labels)


def _accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(predicted == labels))


# The libraries take a second to import, so that is left to the first score.
def _f1(predicted: np.ndarray, labels: np.ndarray, classes: int) -> float:
    import sklearn.metrics

    average = "binary" if classes == 2 else "macro"
    of = None if classes == 2 else range(classes)
    return float(sklearn.metrics.f1_score(labels, predicted, labels=of, average=average, zero_division=0.0))


def _matthews(predicted: np.ndarray, labels: np.ndarray) -> float:
    import sklearn.metrics

    return float(sklearn.metrics.matthews_corrcoef(labels, predicted))


def _correlation(kind: Literal["pearsonr", "spearmanr"], predicted: np.ndarray, labels: np.ndarray) -> float:
    import scipy.stats

    if np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(getattr(scipy.stats, kind)(predicted, labels).statistic)


_SCORES: Mapping[TaskMetric, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": _accuracy,
    "matthews": _matthews,
    "pearson": partial(_correlation, "pearsonr"),
    "spearman": partial(_correlation, "spearmanr"),
}
