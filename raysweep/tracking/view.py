"""The view of a sweep in MLflow: plain values, made from ledger records alone.

A view is a pure function of durable records, so the same records always give the same points with the same
timestamps: replaying them after a kill writes nothing twice, and a lost store can be rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from raysweep.evaluation.metric import Kind, Metric
from raysweep.sweep.ledger import curve_of
from raysweep.sweep.records import EvaluationRecord
from raysweep.training.checkpoint import CheckpointRecord

#: MLflow's names for the state of a run; KILLED is a run that is neither done, failed nor under way.
Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
#: The states of runs with which a launch is done.
OVER = ("FINISHED", "FAILED")

#: The sections into which MLflow's charts sort metrics, by what comes before a slash: the training curve,
#: standard errors, and what is neither a loss, nor flatness, nor an accuracy.  All others keep their names.
TRAINING, ERRORS, OTHERS = "train", "uncertainty", "various"

# MLflow accepts these characters in the names of metrics and params, and no others.
_FORBIDDEN = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True, order=True)
class Point:
    """One metric point; `step` counts training steps, `time_ms` is when it was recorded (unix ms).

    With `model`, it is also a metric of the checkpoint at that step.
    """

    key: str
    step: int
    time_ms: int
    value: float
    model: bool = False


@dataclass(frozen=True, kw_only=True)
class SweepView:
    """A sweep as MLflow shows it: an experiment with one parent run.

    On a shared server, `directory` distinguishes sweeps of one name.  It is empty for a store of the sweep's
    own, because its folder may be moved.
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    git_commit: str | None = None
    directory: str = ""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as MLflow shows it: a child run.

    `name` is what people call it, `params` are its settings, `config` is the whole configuration (plain
    JSON), `shown` the metrics that the report shows by their kinds.  `start_ms` and `end_ms` are unix
    milliseconds; `end_ms` is None while the run is RUNNING.
    """

    run_id: str
    identity: str
    name: str
    params: Mapping[str, str]
    config: Mapping[str, Any]
    points: tuple[Point, ...]
    shown: Mapping[str, Kind]
    status: Status
    start_ms: int
    end_ms: int | None
    note: str = ""

    @property
    def digest(self) -> str:
        """Return a hash of everything shown; a view with the digest of the last one need not be written."""
        shown = [
            self.run_id,
            self.identity,
            self.name,
            dict(self.params),
            self.config,
            [[p.key, p.step, p.time_ms, repr(p.value), p.model] for p in self.points],
            [self.status, self.start_ms, self.end_ms, self.note],
        ]
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def metric_name(name: str) -> str:
    """Return `name` with every character that MLflow refuses replaced by `_`.

    >>> metric_name("trace/layers.0"), metric_name("probe/a&b")
    ('trace/layers.0', 'probe/a_b')
    """
    return _FORBIDDEN.sub("_", name)


def keys(metric: Metric) -> tuple[str, str]:
    """Return the names in MLflow of a metric and of its standard error.

    >>> from raysweep.evaluation.probe_metrics import MAJORITY, PROBE
    >>> keys(PROBE.number(0.9, n=5, of={"task": "A"}))
    ('probe/A', 'uncertainty/probe.A')
    >>> keys(MAJORITY.number(0.3, n=9, of={"task": "A"}))[0]
    'various/majority.A'
    """
    within = metric.name.replace("/", ".")
    own = metric.report or metric.kind != "diagnostic"
    return metric_name(metric.name if own else f"{OTHERS}/{within}"), metric_name(f"{ERRORS}/{within}")


def run_view(
    *,
    run_id: str,
    identity: str,
    name: str,
    params: Mapping[str, Any],
    config: Mapping[str, Any],
    checkpoints: Iterable[CheckpointRecord],
    evaluations: Iterable[EvaluationRecord],
    status: Status,
    note: str = "",
) -> RunView:
    """Return the view of one run.

    The training curve becomes `train/loss`, and if known `train/tokens_per_second` and `train/mfu`, at its
    own steps and times.  Every metric of an evaluation becomes a point at the evaluated step, and so does
    its standard error (see `keys`).  What has a name of its own is also a metric of the checkpoint.
    """
    checkpoints, evaluations = list(checkpoints), list(evaluations)
    steps = {checkpoint.step for checkpoint in checkpoints}
    points: dict[tuple[str, int], Point] = {}

    def add(key: str, step: int, time_ms: int, value: float, *, model: bool = False) -> None:
        points[key, step] = Point(key, step, time_ms, float(value), model)

    for point in curve_of(checkpoints):
        add(f"{TRAINING}/loss", point.step, point.time_ms, point.loss)
        for key, speed in (("tokens_per_second", point.tokens_per_second), ("mfu", point.mfu)):
            if speed is not None:
                add(f"{TRAINING}/{key}", point.step, point.time_ms, speed)
    shown: dict[str, Kind] = {}
    for record in sorted(evaluations, key=lambda record: record.time):
        time_ms = round(record.time * 1000)
        for metric in record.metrics:
            key, error = keys(metric)
            add(
                key,
                record.step,
                time_ms,
                metric.value,
                model=record.step in steps and not key.startswith(OTHERS),
            )
            if metric.standard_error is not None:
                add(error, record.step, time_ms, metric.standard_error)
            if metric.report:
                shown[key] = metric.kind

    times = [p.time_ms for p in points.values()] + [round(c.time * 1000) for c in checkpoints]
    start_ms = min(times, default=0)
    return RunView(
        run_id=run_id,
        identity=identity,
        name=name,
        params={metric_name(path): _text(value) for path, value in params.items()},
        config=config,
        points=tuple(sorted(points.values())),
        shown=shown,
        status=status,
        start_ms=start_ms,
        end_ms=None if status == "RUNNING" else max([*times, start_ms]),
        note=note,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
