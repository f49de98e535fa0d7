"""The ledger of many runs, read at once.

Ten thousand runs have tens of thousands of records.  A survey therefore lists each folder once and reads each
record as plain JSON.  A record that does not look right goes through the ledger's own reader, which
quarantines damaged records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.records import EvaluationRecord, FailureRecord, RecordName
from raysweep.sweep.run import RunSpec
from raysweep.training.checkpoint import CheckpointRecord


@dataclass
class RunRecords:
    """The records that the ledger holds of one run."""

    #: Steps with the record of a checkpoint, and those of them with a checkpoint folder.
    recorded: set[int] = field(default_factory=set)
    usable: set[int] = field(default_factory=set)
    #: (step, kind, head of identity).
    evaluations: set[tuple[int, str, str]] = field(default_factory=set)
    #: Message of the last failure that nobody asked to retry.
    failure: str | None = None
    #: Whether that failure is a person's wish.
    cancelled: bool = False
    #: Seconds of a training step, and bytes of the newest checkpoint, if there is one.
    step_seconds: float | None = None
    checkpoint_bytes: int | None = None
    #: (kind, seconds) of the evaluations that were read.
    evaluation_seconds: list[tuple[str, float]] = field(default_factory=list)
    #: Begin and end, in unix seconds, of the training and of the measuring that the records read tell of.
    training: list[tuple[float, float]] = field(default_factory=list)
    measuring: list[tuple[float, float]] = field(default_factory=list)

    def add(self, name: RecordName) -> None:
        """Add a record by its name; the name of a failure says nothing more."""
        if name.type == "checkpoint":
            self.recorded.add(name.step)
        elif name.type == "evaluation":
            self.evaluations.add((name.step, name.kind, name.head))


def survey(ledger: Ledger, specs: Iterable[RunSpec], *, verify: bool) -> dict[str, RunRecords]:
    """Return the records of each run that has a folder; with `verify` every record is read.

    Raises `IdentityError` if a folder belongs to another configuration.
    """
    present = set(ledger.run_ids())
    found = {}
    for spec in specs:
        if spec.run_id not in present:
            continue
        run = ledger.open(spec.run_id)
        stored = _plain(run.identity_path)
        if stored is None or stored.get("identity") != spec.training_identity:
            ledger.check(spec)
        found[spec.run_id] = survey_run(run, verify=verify)
    return found


def survey_run(run: RunLedger, *, verify: bool = True) -> RunRecords:
    """Return the records of one run; with `verify` every record is read, otherwise file names suffice."""
    held = RunRecords()
    found = run.record_names()
    newest = max((p.step for _, p in found if p.type == "checkpoint"), default=-1)
    failure = None
    for name, parsed in found:
        if parsed.type == "checkpoint":
            latest = parsed.step == newest
            if (verify or latest) and not _checkpoint(held, run, name, parsed, latest):
                continue
        elif parsed.type == "evaluation":
            if verify and not _evaluation(held, run, name, parsed):
                continue
        elif parsed.type == "failure":
            failure = name
        held.add(parsed)
    if failure is not None:
        record = run.read(failure, FailureRecord)
        if record is not None:
            held.failure, held.cancelled = record.message, record.cancelled
    if held.recorded:
        held.usable = held.recorded & run.steps_on_disk()
    return held


def stored_lengths(ledger: Ledger, spec: RunSpec, run_ids: Iterable[str]) -> list[int]:
    """Return the numbers of steps, ascending, of the `run_ids` that differ from `spec` in nothing else."""
    head = spec.run_id.rpartition("-")[0]
    found = []
    for run_id in run_ids:
        if run_id.rpartition("-")[0] != head:
            continue
        stored = _plain(ledger.open(run_id).identity_path) or {}
        content = stored.get("content")
        pretrain = content.get("pretrain") if isinstance(content, dict) else None
        if not isinstance(pretrain, dict) or not isinstance(pretrain.get("steps"), int):
            continue
        wanted = spec.identity_content
        if content == wanted | {"pretrain": wanted["pretrain"] | {"steps": pretrain["steps"]}}:
            found.append(pretrain["steps"])
    return sorted(found)


def _plain(path: Path | str) -> dict[str, Any] | None:
    """Return the mapping in a JSON file, or None if it holds none."""
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _checkpoint(held: RunRecords, run: RunLedger, name: str, parsed: RecordName, newest: bool) -> bool:
    """Return whether the record of a checkpoint is whole; note the cost of the newest."""
    data = _plain(run.record_path(name))
    try:
        if data is None or data["step"] != parsed.step:
            raise KeyError("step")
        seconds, size = float(data["train_seconds"]), sum(f["size"] for f in data["files"].values())
        time = float(data["time"])
    except (KeyError, TypeError, AttributeError, ValueError):
        record = run.read(name, CheckpointRecord)
        if record is None or record.step != parsed.step:
            return False
        seconds, size = record.train_seconds, sum(f.size for f in record.files.values())
        time = record.time
    trained = sum(end - start for start, end in held.training)
    if seconds > trained:
        held.training.append((time - (seconds - trained), time))
    if newest and parsed.step:
        held.step_seconds, held.checkpoint_bytes = seconds / parsed.step, size
    return True


def _evaluation(held: RunRecords, run: RunLedger, name: str, parsed: RecordName) -> bool:
    """Return whether the record of an evaluation is whole and matches its name; note its cost."""
    data = _plain(run.record_path(name))
    try:
        if data is None or not data["metrics"][0]["name"]:
            raise KeyError("metrics")
        step, kind, identity, seconds = data["step"], data["kind"], data["identity"], float(data["seconds"])
        time = float(data["time"])
    except (KeyError, IndexError, TypeError, ValueError):
        record = run.read(name, EvaluationRecord)
        if record is None:
            return False
        step, kind, identity, seconds = record.step, record.kind, record.identity, record.seconds
        time = record.time
    if (step, kind) != (parsed.step, parsed.kind) or not str(identity).startswith(parsed.head):
        return False
    held.evaluation_seconds.append((kind, seconds))
    held.measuring.append((time - seconds, time))
    return True
