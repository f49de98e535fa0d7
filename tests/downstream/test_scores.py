"""Scores of predictions, against their definitions."""

import math

import numpy as np
import pytest

from raysweep.downstream.scores import scores
from raysweep.languages.base import Task

GENERATOR = np.random.default_rng(0)


def score(metric, predicted, labels, classes=("no", "yes")):
    task = Task(name="x", classes=classes, description="", metrics=(metric,))
    return scores(task, np.asarray(predicted), np.asarray(labels))[metric]


def test_classes_against_the_table_of_counts():
    predicted, labels = GENERATOR.integers(0, 2, (2, 200))
    tp, tn, fp, fn = (
        int(((predicted == p) & (labels == y)).sum()) for p, y in ((1, 1), (0, 0), (1, 0), (0, 1))
    )
    assert score("accuracy", predicted, labels) == pytest.approx((tp + tn) / 200)
    assert score("f1", predicted, labels) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    below = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert score("matthews", predicted, labels) == pytest.approx((tp * tn - fp * fn) / below)


def test_f1_of_several_classes_is_their_mean():
    predicted, labels = GENERATOR.integers(0, 3, (2, 300))
    each = [score("f1", predicted == k, labels == k) for k in range(3)]
    assert score("f1", predicted, labels, ("a", "b", "c")) == pytest.approx(np.mean(each))


def test_correlations_against_their_definitions():
    labels = GENERATOR.normal(size=100)
    predicted = labels + GENERATOR.normal(size=100)
    assert score("pearson", predicted, labels, ()) == pytest.approx(np.corrcoef(predicted, labels)[0, 1])
    ranks = [np.argsort(np.argsort(values)) for values in (predicted, labels)]
    assert score("spearman", predicted, labels, ()) == pytest.approx(np.corrcoef(*ranks)[0, 1])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", ["matthews", "pearson", "spearman", "f1"])
def test_constant_predictions_show_no_relation(metric):
    assert score(metric, np.zeros(4), np.array([0, 1, 0, 1])) == 0.0
