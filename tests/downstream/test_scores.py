"""Scores of predictions, against their definitions."""

import math

import numpy as np
import pytest

from raysweep.downstream.scores import scores, sentence_error
from raysweep.languages.base import Task


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def score(metric, predicted, labels, classes=("no", "yes")):
    task = Task(name="x", classes=classes, description="", metrics=(metric,))
    return scores(task, np.asarray(predicted), np.asarray(labels))[metric]


def test_classes_against_the_table_of_counts(generator):
    predicted, labels = generator.integers(0, 2, (2, 200))
    tp, tn, fp, fn = (
        int(((predicted == p) & (labels == y)).sum()) for p, y in ((1, 1), (0, 0), (1, 0), (0, 1))
    )
    assert score("accuracy", predicted, labels) == pytest.approx((tp + tn) / 200)
    assert score("f1", predicted, labels) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    below = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert score("matthews", predicted, labels) == pytest.approx((tp * tn - fp * fn) / below)


def test_f1_of_several_classes_is_their_mean(generator):
    predicted, labels = generator.integers(0, 3, (2, 300))
    each = [score("f1", predicted == k, labels == k) for k in range(3)]
    assert score("f1", predicted, labels, ("a", "b", "c")) == pytest.approx(np.mean(each))


def test_f1_depends_on_the_classes_of_the_task_and_not_on_those_that_occur():
    predicted, labels = np.array([0, 1, 1, 0, 1, 0]), np.array([0, 1, 0, 0, 1, 1])
    each = [score("f1", predicted == k, labels == k) for k in range(2)]
    assert score("f1", predicted, labels, ("a", "b", "c")) == pytest.approx(sum(each) / 3)
    assert score("f1", predicted, labels) == pytest.approx(each[1])
    # The third class is in one of six groups, and the jackknife leaves it out once.
    predicted[5] = labels[5] = 2
    without = []
    for k in range(6):
        kept = np.arange(6) != k
        without.append(score("f1", predicted[kept], labels[kept], ("a", "b", "c")))
    found = sentence_error("f1", predicted[None], labels, classes=3)
    assert found == pytest.approx(np.std(without) * math.sqrt(5))


def test_correlations_against_their_definitions(generator):
    labels = generator.normal(size=100)
    predicted = labels + generator.normal(size=100)
    assert score("pearson", predicted, labels, ()) == pytest.approx(np.corrcoef(predicted, labels)[0, 1])
    ranks = [np.argsort(np.argsort(values)) for values in (predicted, labels)]
    assert score("spearman", predicted, labels, ()) == pytest.approx(np.corrcoef(*ranks)[0, 1])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", ["matthews", "pearson", "spearman", "f1"])
def test_constant_predictions_show_no_relation(metric):
    assert score(metric, np.zeros(4), np.array([0, 1, 0, 1])) == 0.0


def test_the_error_of_an_accuracy_is_that_of_a_mean_over_sentences(generator):
    labels, predicted = generator.integers(0, 2, 40), generator.integers(0, 2, (3, 40))
    each = [np.mean([answers[k] == labels[k] for answers in predicted]) for k in range(40)]
    found = sentence_error("accuracy", predicted, labels, classes=2)
    assert found == pytest.approx(np.std(each, ddof=1) / math.sqrt(40))
    # A jackknife that leaves out one sentence gives the same.
    without = [np.mean([np.delete(each, k)]) for k in range(40)]
    assert found == pytest.approx(np.std(without) * math.sqrt(39))
    assert sentence_error("accuracy", predicted[:, :1], labels[:1], classes=2) is None


@pytest.mark.parametrize("metric", ["f1", "matthews", "pearson", "spearman"])
def test_the_error_of_other_scores_is_their_spread_between_samples_of_sentences(metric, generator):
    values, errors = [], []
    for k in range(100):
        labels = generator.normal(size=300)
        predicted = labels + generator.normal(size=(2, 300))
        if metric in ("f1", "matthews"):
            labels, predicted = (labels > 0).astype(int), (predicted > 0).astype(int)
        classes = ("no", "yes") if metric in ("f1", "matthews") else ()
        values.append(np.mean([score(metric, answers, labels, classes) for answers in predicted]))
        # Each takes 100 scores, and its own error is 10 %.
        if k < 8:
            errors.append(sentence_error(metric, predicted, labels, classes=len(classes)))
    # The spread of 100 values is known to 7 %, and the mean error to 4 %.
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values), rel=0.2)
