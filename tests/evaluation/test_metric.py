"""A metric carries its description, and every room reads the same one."""

import math

import numpy as np
import pytest

from raysweep.errors import RunFailedError
from raysweep.evaluation.metric import Metric, Quantity, error_key, in_order, numbers
from raysweep.languages.base import Estimate

GUESS = Quantity(name="guess/{task}", heading="share of one label", unit="accuracy")
RIGHT = Quantity(
    name="right/{task}",
    heading="accuracy",
    unit="accuracy",
    kind="accuracy",
    better="more",
    baseline=GUESS.name,
    live=True,
    report=True,
)
FALL = Quantity(name="fall/lr-{lr:g}/batch-{batch}", unit="nats", kind="flatness")


def test_coordinates_are_data_and_make_the_name():
    metric = FALL.number(0.5, n=3, of={"lr": 0.010, "batch": 8})
    assert metric.name == "fall/lr-0.01/batch-8"
    assert (metric.quantity, metric.of) == (FALL.name, {"lr": 0.01, "batch": 8})
    right = RIGHT.number(0.9, n=3, of={"task": "6"})
    assert (right.name, right.baseline) == ("right/6", GUESS.number(0.5, n=1, of={"task": "6"}).name)


def test_a_stored_metric_is_the_same_again():
    metric = RIGHT.mean(np.array([0.5, 1.0]), of={"task": "6"}, reservations=["few seeds"])
    assert Metric.model_validate_json(metric.model_dump_json()) == metric
    assert (metric.kind, metric.better, metric.live, metric.report) == ("accuracy", "more", True, True)


def test_headings_for_a_figure_a_table_and_a_sentence():
    right = RIGHT.number(0.9, n=3, of={"task": "A"})
    assert (right.label, right.column, right.place) == ("accuracy, task A", "accuracy A", "A")
    fall = FALL.number(0.5, n=3, of={"lr": 0.01, "batch": 8})
    assert fall.label == fall.column == "fall/lr-0.01/batch-8 (nats)"
    loss = Quantity(name="loss", heading="held-out loss", unit="nats").number(1.0, n=1)
    assert (loss.label, loss.title) == ("held-out loss (nats)", "held-out loss")


def test_standard_errors_have_one_key():
    metrics = [
        RIGHT.mean(np.array([0.5, 1.0]), of={"task": "A"}),
        GUESS.estimate(Estimate(value=0.5, standard_error=math.nan, n=1), of={"task": "A"}),
    ]
    assert metrics[1].standard_error is None
    assert numbers(metrics) == {"right/A": 0.75, error_key("right/A"): 0.25, "guess/A": 0.5}


def test_people_see_losses_first():
    metrics = [
        GUESS.number(0.5, n=1, of={"task": "A"}),
        RIGHT.number(0.5, n=1, of={"task": "B"}),
        RIGHT.number(0.5, n=1, of={"task": "A"}),
        FALL.number(0.5, n=1, of={"lr": 1, "batch": 1}),
        Quantity(name="loss", unit="nats", kind="loss").number(0.5, n=1),
    ]
    names = [metric.name for metric in in_order(metrics)]
    assert names == ["loss", "fall/lr-1/batch-1", "right/A", "right/B", "guess/A"]


def test_a_number_that_is_not_finite_fails_the_run():
    with pytest.raises(RunFailedError, match="right/A is nan"):
        RIGHT.mean(np.array([math.nan]), of={"task": "A"})
