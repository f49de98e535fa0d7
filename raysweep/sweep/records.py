"""The records of a run's ledger: one small JSON file per fact.

records/checkpoint-00000500.json                       a checkpoint, durable, with its manifest
records/evaluation-00000500-trace-3f9a1c27be.json      an evaluation at a step, its settings' identity
records/failure-001.json                               the run cannot go on (retried-001.json: was retried)
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from raysweep.evaluation.metric import Metric
from raysweep.sweep.identity import DIGITS


class Record(BaseModel):
    """Base of records: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RunRecord(Record):
    """`run.json`: which run a folder belongs to."""

    run_id: str
    #: sha256 of `content`.
    identity: str
    content: dict[str, Any]
    #: The language's configuration, for reading only; its content's fingerprint is in `content`.
    language: dict[str, Any]


class EvaluationRecord(Record):
    """One evaluation of one checkpoint: `time` in unix seconds, `seconds` of work spent.

    `notes` say how it was measured (see `Evaluation.notes`).
    """

    kind: str
    step: int
    config: dict[str, Any]
    identity: str
    metrics: tuple[Metric, ...]
    time: float
    seconds: float
    notes: dict[str, str] = {}


class FailureRecord(Record):
    """The reason why a run stopped: `error` is the class of the error, `step` its step if that is known."""

    message: str
    error: str
    step: int | None
    time: float


@dataclass(frozen=True)
class RecordName:
    """The facts that the name of a record's file holds."""

    type: Literal["checkpoint", "evaluation", "failure", "retried"]
    #: Step; for failures their number.
    step: int
    kind: str = ""
    #: Head of the evaluation's identity.
    head: str = ""


_NAME = re.compile(
    r"(?:checkpoint-(?P<checkpoint>\d+)"
    r"|evaluation-(?P<evaluation>\d+)-(?P<kind>.+)-(?P<head>[0-9a-f]{" + str(DIGITS) + r"})"
    r"|failure-(?P<failure>\d+)|retried-(?P<retried>\d+))\.json\Z"
)


def parse_name(name: str) -> RecordName | None:
    """Return what a file name says, or None where it is no record's.

    >>> parse_name("evaluation-00000500-trace-0123456789.json")
    RecordName(type='evaluation', step=500, kind='trace', head='0123456789')
    """
    match = _NAME.match(name)
    if match is None:
        return None
    found = match.lastgroup
    if found == "head":
        return RecordName("evaluation", int(match["evaluation"]), match["kind"], match["head"])
    if found == "checkpoint":
        return RecordName("checkpoint", int(match["checkpoint"]))
    if found == "failure":
        return RecordName("failure", int(match["failure"]))
    return RecordName("retried", int(match["retried"]))


def checkpoint_name(step: int) -> str:
    """Return the file name of a checkpoint's record."""
    return f"checkpoint-{step:08d}.json"


def evaluation_name(step: int, kind: str, identity: str) -> str:
    """Return the file name of an evaluation's record."""
    return f"evaluation-{step:08d}-{kind}-{identity[:DIGITS]}.json"


def encode(record: BaseModel) -> bytes:
    """Return the bytes of a record; numbers that are not finite survive (pydantic would write null)."""
    return (json.dumps(record.model_dump(mode="python"), indent=1) + "\n").encode()
