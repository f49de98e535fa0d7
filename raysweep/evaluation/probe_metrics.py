"""The results of a linear probe as arrays of a shard, and the metrics that these make.

Arrays of a task are over L layers, B sizes of the training set and S seeds.  Where there are several sizes,
the names of the metrics of each end with its number of labels.

The headline is the first of the task's metrics, as in fine-tuning: accuracy, or what GLUE asks of the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from raysweep.downstream.probe import Convex, ProbeResult
from raysweep.downstream.scores import scores, sentence_error
from raysweep.evaluation.base import Arrays
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.notes import text_arrays, text_of
from raysweep.languages.base import Estimate, Task, TaskMetric

PROBE = Quantity(
    name="probe/{task}", heading="probe accuracy", short="probe", unit="accuracy", kind="accuracy",
    better="more", baseline="majority/{task}", ceiling="best/{task}", live=True, report=True,
)  # fmt: skip
PROBE_AREA = PROBE.model_copy(
    update={
        "name": "probe_area/{task}",
        "heading": "area under the probe curve",
        "short": "probe area",
    }
)
PROBE_STD = Quantity(
    name="probe_std/{task}", heading="standard deviation of the probe between seeds", unit="accuracy"
)
PROBE_SENTENCES = Quantity(
    name="probe_sentence_error/{task}", heading="standard error of the probe over test sentences",
    unit="accuracy",
)  # fmt: skip
PROBE_GAP = Quantity(
    name="probe_gap/{task}", heading="largest distance of a head's objective from the least", unit="nats"
)
PROBE_L2 = Quantity(name="probe_l2/{task}", heading="median over seeds of the chosen penalty", unit="l2")
PROBE_LAYER = Quantity(
    name="probe_layer/{task}/{layer}", heading="probe accuracy at a layer", unit="accuracy", kind="accuracy",
    better="more", baseline="majority/{task}", ceiling="best/{task}",
)  # fmt: skip
PROBE_SCORE = Quantity(
    name="probe_{score}/{task}", heading="score of the probe", unit="score", kind="accuracy", better="more"
)
# Control labels are drawn once for all seeds, so the standard errors of these two leave that draw out.
CONTROL = Quantity(name="probe_control/{task}", heading="probe accuracy on the control task", unit="accuracy")
SELECTIVITY = Quantity(
    name="probe_selectivity/{task}", heading="probe accuracy less that on the control task", unit="accuracy"
)
CODE_LENGTH = Quantity(
    name="probe_code_length/{task}", heading="description length of the labels", unit="nats", better="less"
)
COMPRESSION = Quantity(
    name="probe_compression/{task}", heading="uniform description length divided by that of the labels",
    unit="×", better="more",
)  # fmt: skip
MAJORITY = Quantity(name="majority/{task}", heading="share of the most frequent label", unit="accuracy")

BEST = Quantity(name="best/{task}", heading="best possible accuracy", unit="accuracy")

NOT_CONVERGED = "not converged"


def arrays_of(
    task: Task,
    result: ProbeResult,
    control: ProbeResult | None,
    best: Estimate | None,
    *,
    sizes: Sequence[int],
    chosen: bool,
) -> Arrays:
    """Return the arrays of a task: `<name>.<task>`, given the results of its control task.

    `best` is the best possible accuracy, `chosen` says that there was a choice of l2.  `error` and `majority`
    are of the headline; where that is no accuracy, its name is the text `headline`.
    """
    headline = task.metrics[0]
    found: Arrays = {
        "accuracy": result.accuracy.numpy(),
        "error": _sentence_errors(task, result),
        "gap": result.gap.double().numpy(),
        "l2": result.l2.double().numpy(),
        "majority": np.array([_majority_score(task, result)]),
        "sizes": np.array(sizes),
        "test": np.array([result.n]),
    }
    if headline != "accuracy":
        found |= text_arrays({"headline": headline})
    elif best is not None:
        found["best"] = np.array([best.value, np.nan_to_num(best.standard_error)])
    if control is not None:
        found["control"] = control.accuracy.numpy()
    if result.code_length is not None:
        found["code"] = result.code_length.numpy()
        found["uniform"] = np.array([max(sizes) * math.log(len(task.classes))])
    if chosen:
        found["chosen"] = np.array([1])
    for metric in task.metrics:
        if metric != "accuracy":
            found[f"score/{metric}"] = _scored(task, result, metric)
    return {f"{name}.{task.name}": array for name, array in found.items()}


def _scored(task: Task, result: ProbeResult, metric: TaskMetric) -> np.ndarray:
    """Return one of the task's metrics of all predictions [L, B, S]."""
    predicted, labels = result.predicted.numpy(), result.labels.numpy()
    flat = [scores(task, one, labels)[metric] for one in predicted.reshape(-1, result.n)]
    return np.array(flat).reshape(predicted.shape[:3])


def _sentence_errors(task: Task, result: ProbeResult) -> np.ndarray:
    """Return the standard errors over test sentences of the headline [1, B] of the last layer.

    They are nan for a single sentence.
    """
    if task.metrics[0] == "accuracy":
        return result.sentence_error[-1:].numpy()
    predicted, labels = result.predicted[-1].numpy(), result.labels.numpy()
    errors = [
        sentence_error(task.metrics[0], answers, labels, classes=len(task.classes)) for answers in predicted
    ]
    return np.array([[math.nan if error is None else error for error in errors]])


def _majority_score(task: Task, result: ProbeResult) -> float:
    """Return the headline of answering the most frequent training label to all test sentences."""
    if task.metrics[0] == "accuracy":
        return result.majority
    labels = result.labels.numpy()
    return scores(task, np.full_like(labels, result.most_frequent), labels)[task.metrics[0]]


def metrics_of(task: str, arrays: Mapping[str, np.ndarray], *, solver: Convex | None) -> list[Metric]:
    """Return the metrics of a task; `solver` is None where it promises no gap.

    Standard errors are over seeds, given the test sentences, but for those of the accuracy of the most
    frequent label and of the best possible accuracy, which are over test sentences.
    """
    sizes, n = arrays["sizes"].tolist(), int(arrays["test"][0])
    found = [metric for b in range(len(sizes)) for metric in _of_size(task, arrays, b, solver)]
    of, unit = {"task": task}, _headline(arrays)
    if len(sizes) > 1:
        doubts = [_doubts(arrays["gap"][-1, b], solver, size) for b, size in enumerate(sizes)]
        areas = area(sizes, _values(arrays)[-1])
        found.append(
            _in_unit(PROBE_AREA, unit).mean(areas, of=of, reservations=next(filter(None, doubts), []))
        )
    if "code" in arrays:
        found.append(CODE_LENGTH.mean(arrays["code"][-1], of=of))
        found.append(COMPRESSION.mean(arrays["uniform"] / arrays["code"][-1], of=of))
    if "best" in arrays:
        best, spread = arrays["best"].tolist()
        found.append(BEST.number(best, n=n, standard_error=spread if n > 1 else None, of=of))
    majority = float(arrays["majority"][0])
    if unit != "accuracy":
        guess = MAJORITY.model_copy(update={"unit": unit, "heading": "score of one answer to all"})
        return [*found, guess.number(majority, n=n, of=of)]
    error = math.sqrt(majority * (1 - majority) / n)
    return [*found, MAJORITY.number(majority, n=n, standard_error=error, of=of)]


def _of_size(task: str, arrays: Mapping[str, np.ndarray], b: int, solver: Convex | None) -> Iterator[Metric]:
    """Yield the metrics of one size of the training set."""
    sizes, n = arrays["sizes"].tolist(), int(arrays["test"][0])
    of: dict[str, str | int | float] = {"task": task}
    if len(sizes) > 1:
        of["labels"] = sizes[b]
    layers, unit = _values(arrays)[:, b], _headline(arrays)
    headline, gap, l2 = layers[-1], arrays["gap"][:, b], arrays["l2"][-1, b]
    doubts = [_doubts(heads, solver, sizes[b]) for heads in gap]

    def judged(quantity: Quantity) -> Quantity:
        return _named(_in_unit(quantity, unit), of)

    yield judged(PROBE).mean(headline, of=of, reservations=doubts[-1])
    if len(headline) > 1:
        yield judged(PROBE_STD).number(float(headline.std(ddof=1)), n=len(headline), of=of)
    if n > 1:
        yield judged(PROBE_SENTENCES).number(float(arrays["error"][-1, b]), n=n, of=of)
    yield _named(PROBE_GAP, of).number(float(gap.max()), n=gap.size, of=of)
    if "chosen" in arrays:
        yield _named(PROBE_L2, of).number(float(np.median(l2)), n=len(l2), of=of)
    if len(layers) > 1:
        for layer, values in enumerate(layers):
            place: dict[str, str | int | float] = {"task": task, "layer": layer, **of}
            yield judged(PROBE_LAYER).mean(values, of=place, reservations=doubts[layer])
    if "control" in arrays:
        control = arrays["control"][-1, b]
        yield _named(CONTROL, of).mean(control, of=of)
        yield _named(SELECTIVITY, of).mean(arrays["accuracy"][-1, b] - control, of=of)
    others = {key.removeprefix("score/"): each for key, each in arrays.items() if key.startswith("score/")}
    for score, values in ({"accuracy": arrays["accuracy"]} | others).items():
        if score != unit:
            quantity = PROBE_SCORE.model_copy(update={"unit": score})
            yield _named(quantity, of).mean(values[-1, b], of={"score": score} | of)


def _headline(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the name of the metric that the task is judged by."""
    return text_of(arrays, "headline") or "accuracy"


def _values(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the headline of each head [L, B, S]."""
    unit = _headline(arrays)
    return arrays["accuracy" if unit == "accuracy" else f"score/{unit}"]


def _in_unit(quantity: Quantity, unit: str) -> Quantity:
    """Return a quantity of the headline; the best possible value is known of an accuracy only."""
    if unit == "accuracy":
        return quantity
    heading = quantity.heading.replace("accuracy", unit)
    return quantity.model_copy(update={"unit": unit, "heading": heading, "ceiling": None})


def _doubts(gaps: np.ndarray, solver: Convex | None, size: int) -> list[str]:
    """Return the reservations on heads of so many sentences with these gaps."""
    return [NOT_CONVERGED] if solver is not None and gaps.max() > solver.near(size) else []


def _named(quantity: Quantity, of: Mapping[str, object]) -> Quantity:
    """Return the quantity at one size of several where `of` has a number of labels."""
    return of_labels(quantity) if "labels" in of else quantity


def of_labels(quantity: Quantity) -> Quantity:
    """Return a quantity of the probe at each of several numbers of labels.

    >>> of_labels(PROBE).name
    'probe/{task}/{labels}'
    """
    return quantity.model_copy(update={"name": quantity.name + "/{labels}", "live": False, "report": False})


def area(sizes: Sequence[int], accuracy: np.ndarray) -> np.ndarray:
    """Return the mean of scores [B, S] over the logarithm of the B sizes [S], by the trapezoidal rule.

    >>> area([10, 100, 10000], np.array([[0.0], [0.6], [0.9]])).round(6).tolist()
    [0.6]
    """
    x = np.log(np.asarray(sizes, dtype=np.float64))
    return np.trapezoid(accuracy, x, axis=0) / (x[-1] - x[0])
