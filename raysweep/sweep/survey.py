"""What the ledger knows of many runs at once.

Ten thousand runs have tens of thousands of records, so a survey lists each folder once and looks at each
record as plain JSON; only one that does not look right goes through the ledger's own reader, which
quarantines what is damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.records import EvaluationRecord, FailureRecord, RecordName
from raysweep.sweep.run import RunSpec
from raysweep.training.checkpoint import CheckpointRecord


@dataclass
class RunRecords:
    """Records of one run: `usable` checkpoints are recorded and their files are there."""

    recorded: set[int] = field(default_factory=set)
    usable: set[int] = field(default_factory=set)
    #: (step, kind, head of identity).
    evaluations: set[tuple[int, str, str]] = field(default_factory=set)
    #: (step, kind), whatever the settings.
    evaluated: set[tuple[int, str]] = field(default_factory=set)
    #: Message of the last failure that nobody asked to retry.
    failure: str | None = None
    #: Seconds a training step took, and bytes of the newest checkpoint, where there is one.
    step_seconds: float | None = None
    checkpoint_bytes: int | None = None
    #: (kind, seconds) of evaluations that were opened.
    evaluation_seconds: list[tuple[str, float]] = field(default_factory=list)


def survey(ledger: Ledger, specs: Iterable[RunSpec], *, verify: bool) -> dict[str, RunRecords]:
    """Return the state of each run that has a folder; with `verify` every record is opened.

    Raises `IdentityError` where a folder belongs to another configuration.
    """
    present = set(ledger.run_ids())
    states = {}
    for spec in specs:
        if spec.run_id not in present:
            continue
        run = ledger.open(spec.run_id)
        stored = _plain(f"{run.directory}/run.json")
        if stored is None or stored.get("identity") != spec.training_identity:
            ledger.check(spec)
        states[spec.run_id] = _read(run, verify)
    return states


def stored_lengths(ledger: Ledger, spec: RunSpec, run_ids: Iterable[str]) -> list[int]:
    """Return the steps of those runs among `run_ids` that differ from `spec` in nothing else, ascending."""
    head = spec.run_id.rpartition("-")[0]
    found = []
    for run_id in run_ids:
        if run_id.rpartition("-")[0] != head:
            continue
        stored = _plain(f"{ledger.open(run_id).directory}/run.json") or {}
        content = stored.get("content")
        pretrain = content.get("pretrain") if isinstance(content, dict) else None
        if not isinstance(pretrain, dict) or not isinstance(pretrain.get("steps"), int):
            continue
        wanted = spec.identity_content
        if content == wanted | {"pretrain": wanted["pretrain"] | {"steps": pretrain["steps"]}}:
            found.append(pretrain["steps"])
    return sorted(found)


def _plain(path: str) -> dict[str, Any] | None:
    """Return the mapping in a JSON file, or None where it holds none."""
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _read(run: RunLedger, verify: bool) -> RunRecords:
    state = RunRecords()
    found = run.record_names()
    records = os.path.join(run.directory, "records")
    newest = max((p.step for _, p in found if p.type == "checkpoint"), default=-1)
    failure = None
    for name, parsed in found:
        if parsed.type == "checkpoint":
            latest = parsed.step == newest
            if (verify or latest) and not _checkpoint(state, run, f"{records}/{name}", parsed, latest):
                continue
            state.recorded.add(parsed.step)
        elif parsed.type == "evaluation":
            if verify and not _evaluation(state, run, f"{records}/{name}", parsed):
                continue
            state.evaluations.add((parsed.step, parsed.kind, parsed.head))
            state.evaluated.add((parsed.step, parsed.kind))
        elif parsed.type == "failure":
            failure = name
    if failure is not None:
        record = run.read(failure, FailureRecord)
        state.failure = record.message if record is not None else None
    if state.recorded:
        state.usable = state.recorded & run.steps_on_disk()
    return state


def _checkpoint(state: RunRecords, run: RunLedger, path: str, parsed: RecordName, newest: bool) -> bool:
    """Return whether a checkpoint's record is whole; of the newest, note what it cost."""
    data = _plain(path)
    try:
        if data is None or data["step"] != parsed.step:
            raise KeyError("step")
        seconds, size = float(data["train_seconds"]), sum(f["size"] for f in data["files"].values())
    except (KeyError, TypeError, AttributeError, ValueError):
        record = run.read(os.path.basename(path), CheckpointRecord)
        if record is None or record.step != parsed.step:
            return False
        seconds, size = record.train_seconds, sum(f.size for f in record.files.values())
    if newest and parsed.step:
        state.step_seconds, state.checkpoint_bytes = seconds / parsed.step, size
    return True


def _evaluation(state: RunRecords, run: RunLedger, path: str, parsed: RecordName) -> bool:
    """Return whether an evaluation's record is whole and is what its name says; note what it cost."""
    data = _plain(path)
    try:
        if data is None or not data["metrics"][0]["name"]:
            raise KeyError("metrics")
        step, kind, identity, seconds = data["step"], data["kind"], data["identity"], float(data["seconds"])
    except (KeyError, IndexError, TypeError, ValueError):
        record = run.read(os.path.basename(path), EvaluationRecord)
        if record is None:
            return False
        step, kind, identity, seconds = record.step, record.kind, record.identity, record.seconds
    if (step, kind) != (parsed.step, parsed.kind) or not str(identity).startswith(parsed.head):
        return False
    state.evaluation_seconds.append((kind, seconds))
    return True
