"""The head of a record: what it says besides its long parts, which readers of many records need seldom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from raysweep.evaluation.metric import Metric
from raysweep.sweep.ledger import RunLedger
from raysweep.sweep.records import (
    EvaluationRecord,
    FailureRecord,
    RecordName,
    RunRecord,
    StopRecord,
    parse_name,
)
from raysweep.training.checkpoint import CheckpointRecord, CurvePoint

#: The name of a run's identity among its records.
IDENTITY = "run.json"

_CLASSES: dict[str, type[BaseModel]] = {
    "checkpoint": CheckpointRecord,
    "evaluation": EvaluationRecord,
    "failure": FailureRecord,
    "retried": FailureRecord,
    "stopped": StopRecord,
}

_ALL: tuple[type[BaseModel], ...] = (*_CLASSES.values(), RunRecord, CurvePoint, Metric)
#: Types of records whose brief repeats what their name says.
TOLD = ("checkpoint", "evaluation")
#: The fields of all records, which change with the code.
FIELDS = {cls.__name__: sorted(cls.model_fields) for cls in _ALL}


class Brief(NamedTuple):
    """The part of the record of a checkpoint, an evaluation or a run that readers of many runs need.

    `seconds` is the work, that of a checkpoint since the run began, `used` its processor time, nan where that
    is not known, and `bytes` the size of the files.
    """

    step: int = -1
    seconds: float = 0.0
    time: float = 0.0
    bytes: int = 0
    used: float = math.nan
    #: Kind and identity of an evaluation; a run has an identity alone.
    kind: str = ""
    identity: str = ""


#: A brief without names: thousands are made in a fraction of the time.
PlainBrief = tuple[int, float, float, int, float, str, str]


def brief_of(name: str, head: Mapping[str, Any]) -> Brief:
    """Return what counts of the head of a record of that name."""
    parsed = parse_name(name)
    if parsed is not None and parsed.type == "checkpoint":
        used = _number(head["train_cpu_seconds"])
        return Brief(head["step"], head["train_seconds"], head["time"], head["bytes"], used)
    if parsed is not None and parsed.type == "evaluation":
        used = _number(head["cpu_seconds"])
        return Brief(head["step"], head["seconds"], head["time"], 0, used, head["kind"], head["identity"])
    return Brief(identity=head["identity"]) if name == IDENTITY else Brief()


def tells(parsed: RecordName, step: int, kind: str, identity: str) -> bool:
    """Return whether the brief of a record with that step, kind and identity matches the record's name."""
    if parsed.type == "checkpoint":
        return step == parsed.step
    return (step, kind) == (parsed.step, parsed.kind) and identity.startswith(parsed.head)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def read_head(run: RunLedger, name: str) -> dict[str, Any] | None:
    """Read a record of one run and return its head, as `Snapshot.head` does."""
    record = read_any(run, name)
    return None if record is None else parts_of(record)[0]


def read_any(run: RunLedger, name: str) -> BaseModel | None:
    """Return a record, None where it is absent or damaged."""
    parsed = parse_name(name)
    return run.identity() if parsed is None else run.read(name, _CLASSES[parsed.type])


def parts_of(record: BaseModel) -> tuple[dict[str, Any], Sequence[CurvePoint], Sequence[Metric]]:
    """Return the head of a record, its curve and its metrics."""
    head = dict(vars(record))
    match record:
        case RunRecord():
            return {"identity": record.identity}, (), ()
        case CheckpointRecord():
            del head["curve"], head["files"]
            head["bytes"] = sum(file.size for file in record.files.values())
            return head, record.curve, ()
        case EvaluationRecord():
            del head["metrics"], head["config"]
            return head, (), record.metrics
    return head, (), ()
