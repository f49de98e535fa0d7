"""The records of a run's ledger: one small JSON file per fact.

records/checkpoint-00000500.json                       a durable checkpoint with its manifest
records/evaluation-00000500-trace-3f9a1c27be.json      an evaluation at a step, under one identity
records/failure-001.json                               the run cannot go on (retried-001.json after a retry)
records/stopped-00000500-3f9a1c27be.json               a search stopped the run by the rule of the digest
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from raysweep.evaluation.metric import Metric
from raysweep.sweep.identity import DIGITS


class Record(BaseModel):
    """Base of records: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RunRecord(Record):
    """The identity of the run that a folder belongs to."""

    run_id: str
    #: sha256 of `content`.
    identity: str
    content: dict[str, Any]
    #: The language's configuration, for reading only; its content's fingerprint is in `content`.
    language: dict[str, Any]


class EvaluationRecord(Record):
    """One evaluation of one checkpoint; `time` is in unix seconds, `seconds` is the work spent.

    `cpu_seconds` is the processor time of that work, None where an older raysweep has measured.

    `kind` is what the sweep calls the evaluation: its name, or its kind where it has none.
    `notes` describe the way of measuring (see `Evaluation.notes`).
    """

    kind: str
    step: int
    config: dict[str, Any]
    identity: str
    metrics: tuple[Metric, ...]
    time: float
    seconds: float
    cpu_seconds: float | None = None
    notes: dict[str, str] = {}


#: The class of the error of a run that a person has cancelled.
CANCELLED = "Cancelled"


class FailureRecord(Record):
    """The reason why a run stopped: `error` is the class of the error, `step` its step if known."""

    message: str
    error: str
    step: int | None
    time: float

    @property
    def cancelled(self) -> bool:
        """Whether a person has asked for it."""
        return self.error == CANCELLED


class StopRecord(Record):
    """The decision of a search's scheduler to train a run no further than `step`.

    `value` is that of `metric` there.
    """

    by: str
    step: int
    metric: str
    value: float
    time: float


@dataclass(frozen=True)
class RecordName:
    """The content of a record's file name."""

    type: Literal["checkpoint", "evaluation", "failure", "retried", "stopped"]
    #: Step; for failures their number.
    step: int
    kind: str = ""
    #: Head of the evaluation's identity, or of the digest of the rule that stopped the run.
    head: str = ""


_NAME = re.compile(
    r"(?:checkpoint-(?P<checkpoint>\d+)"
    r"|evaluation-(?P<evaluation>\d+)-(?P<kind>.+)-(?P<head>[0-9a-f]{" + str(DIGITS) + r"})"
    r"|stopped-(?P<stopped>\d+)-(?P<rule>[0-9a-f]{" + str(DIGITS) + r"})"
    r"|failure-(?P<failure>\d+)|retried-(?P<retried>\d+))\.json\Z"
)


@lru_cache(maxsize=4096)
def parse_name(name: str) -> RecordName | None:
    """Return the parts of a file name, or None if it does not name a record.

    >>> parse_name("evaluation-00000500-trace-0123456789.json")
    RecordName(type='evaluation', step=500, kind='trace', head='0123456789')
    """
    match = _NAME.match(name)
    if match is None:
        return None
    found = match.lastgroup
    if found == "head":
        return RecordName("evaluation", int(match["evaluation"]), match["kind"], match["head"])
    if found == "rule":
        return RecordName("stopped", int(match["stopped"]), head=match["rule"])
    if found == "checkpoint":
        return RecordName("checkpoint", int(match["checkpoint"]))
    if found == "failure":
        return RecordName("failure", int(match["failure"]))
    return RecordName("retried", int(match["retried"]))


def parsed_names(names: Iterable[str]) -> list[tuple[str, RecordName]]:
    """Return the file names of records with their parts, by type and step.

    >>> [name for name, _ in parsed_names(["checkpoint-100000000.json", "checkpoint-00000009.json", "x"])]
    ['checkpoint-00000009.json', 'checkpoint-100000000.json']
    """
    found = [(name, parsed) for name in names if (parsed := parse_name(name)) is not None]
    return sorted(found, key=lambda one: (one[1].type, one[1].step, one[0]))


def checkpoint_name(step: int) -> str:
    """Return the file name of a checkpoint's record."""
    return f"checkpoint-{step:08d}.json"


def evaluation_name(step: int, kind: str, identity: str) -> str:
    """Return the file name of an evaluation's record."""
    return f"evaluation-{step:08d}-{kind}-{identity[:DIGITS]}.json"


def stop_name(step: int, rule: str) -> str:
    """Return the file name of the record of a stop."""
    return f"stopped-{step:08d}-{rule[:DIGITS]}.json"


def encode(record: BaseModel) -> bytes:
    """Return the bytes of a record; numbers that are not finite are kept (pydantic would write null)."""
    return (json.dumps(record.model_dump(mode="python"), indent=1) + "\n").encode()
