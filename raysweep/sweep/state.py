"""What the ledger knows of many runs at once, read with one directory listing a run where it can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import BaseModel

from raysweep.sweep.config import RunSpec
from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.records import EvaluationRecord, FailureRecord, RecordName
from raysweep.training.checkpoint import CheckpointRecord


@dataclass
class RunState:
    """Records of one run: `usable` checkpoints are recorded and their files are there."""

    recorded: set[int] = field(default_factory=set)
    usable: set[int] = field(default_factory=set)
    #: (step, kind, head of identity).
    evaluations: set[tuple[int, str, str]] = field(default_factory=set)
    #: (step, kind), whatever the settings.
    evaluated: set[tuple[int, str]] = field(default_factory=set)
    #: Message of the last failure that nobody asked to retry.
    failure: str | None = None
    #: Newest checkpoint's record and the evaluations' records, where they were opened.
    checkpoint: CheckpointRecord | None = None
    opened: list[EvaluationRecord] = field(default_factory=list)


def read_states(ledger: Ledger, specs: Iterable[RunSpec], *, verify: bool) -> dict[str, RunState]:
    """Return the state of each run that has a folder; with `verify` every record is opened.

    Raises `IdentityError` where a folder belongs to another configuration.
    """
    present = set(ledger.run_ids())
    states = {}
    for spec in specs:
        if spec.run_id in present:
            ledger.check(spec)
            states[spec.run_id] = _read(ledger.open(spec.run_id), verify)
    return states


_CLASSES: dict[str, type[BaseModel]] = {"checkpoint": CheckpointRecord, "evaluation": EvaluationRecord}


def _read(run: RunLedger, verify: bool) -> RunState:
    state = RunState()
    found = run.record_names()
    failures = [name for name, parsed in found if parsed.type == "failure"]
    newest = max((p.step for _, p in found if p.type == "checkpoint"), default=-1)
    for name, parsed in found:
        if parsed.type not in _CLASSES:
            continue
        if verify or (parsed.type == "checkpoint" and parsed.step == newest):
            record = run.read(name, _CLASSES[parsed.type])
            if record is None:
                continue
            if isinstance(record, CheckpointRecord):
                state.checkpoint = record
            elif isinstance(record, EvaluationRecord):
                state.opened.append(record)
        _note(state, parsed)
    if failures:
        record = run.read(failures[-1], FailureRecord)
        state.failure = record.message if isinstance(record, FailureRecord) else None
    if state.recorded:
        state.usable = state.recorded & run.steps_on_disk()
    return state


def _note(state: RunState, parsed: RecordName) -> None:
    if parsed.type == "checkpoint":
        state.recorded.add(parsed.step)
    else:
        state.evaluations.add((parsed.step, parsed.kind, parsed.head))
        state.evaluated.add((parsed.step, parsed.kind))
