"""Scores of a task's predictions: the metrics of GLUE, from scikit-learn and scipy.

Accuracy, F1 of class 1, Matthews' correlation coefficient, Pearson's and Spearman's correlation, as in Wang
et al., "GLUE: a multi-task benchmark and analysis platform for natural language understanding", ICLR 2019.
F1 of more than two classes is the mean of the classes' F1.  Where a coefficient is not defined, because all
predictions or all labels are equal, it is 0, as scikit-learn says of Matthews' coefficient: such predictions
show no relation.

>>> task = Task(name="cola", classes=("no", "yes"), description="", metrics=("matthews", "accuracy"))
>>> scores(task, np.array([0, 1, 1, 1]), np.array([0, 1, 1, 0]))
{'matthews': 0.5773502691896258, 'accuracy': 0.75}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np

from raysweep.languages.base import Task, TaskMetric


def scores(task: Task, predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the task's metrics of predictions [n] and labels [n]: classes, or numbers of a regression."""
    return {metric: float(_SCORES[metric](predicted, labels)) for metric in task.metrics}


def _accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(predicted == labels))


# The libraries take a second to import, so that is left to the first score.
def _f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    import sklearn.metrics

    average = "binary" if max(predicted.max(), labels.max()) <= 1 else "macro"
    return float(sklearn.metrics.f1_score(labels, predicted, average=average, zero_division=0.0))


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
    "f1": _f1,
    "matthews": _matthews,
    "pearson": partial(_correlation, "pearsonr"),
    "spearman": partial(_correlation, "spearmanr"),
}
