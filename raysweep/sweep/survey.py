"""The ledger of many runs, read at once.

Ten thousand runs have tens of thousands of records, so a survey reads them from a snapshot
(`raysweep.sweep.snapshot`).  Damaged records are quarantined, as by every reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from raysweep.remote import RemotePath, listed
from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.record_heads import PlainBrief, brief_of, read_head
from raysweep.sweep.records import CANCELLED, RecordName
from raysweep.sweep.run import RunSpec
from raysweep.sweep.snapshot import Snapshot

#: Returns the head of a record by its file name, None for a damaged one (`Snapshot.read`).
_Head = Callable[[str], dict[str, Any] | None]
#: Returns the brief of a record by its file name, None for a damaged one (`Snapshot.briefs`).
_Short = Callable[[str], PlainBrief | None]


@dataclass
class RunRecords:
    """The records that the ledger holds of one run."""

    #: Steps with the record of a checkpoint.
    recorded: set[int] = field(default_factory=set)
    #: Returns the steps with a checkpoint folder.
    on_disk: Callable[[], set[int]] = field(default=set, repr=False, compare=False)
    #: (step, kind, head of identity).
    evaluations: set[tuple[int, str, str]] = field(default_factory=set)
    #: Message of the last failure that nobody asked to retry.
    failure: str | None = None
    #: Whether that failure is a person's wish.
    cancelled: bool = False
    #: Seconds of a training step, its seconds of processor time where they are known, and bytes of the newest
    #: checkpoint, if there is one.
    step_seconds: float | None = None
    step_cpu_seconds: float | None = None
    checkpoint_bytes: int | None = None
    #: (kind, head of identity, seconds, seconds of processor time where they are known) of the evaluations
    #: that were read.
    evaluation_seconds: list[tuple[str, str, float, float | None]] = field(default_factory=list)
    #: Begin and end, in unix seconds, of the training and of the measuring that the records read tell of.
    training: list[tuple[float, float]] = field(default_factory=list)
    measuring: list[tuple[float, float]] = field(default_factory=list)

    @cached_property
    def usable(self) -> set[int]:
        """The recorded steps with a checkpoint folder, as they are when somebody asks first."""
        return self.recorded & self.on_disk()

    def add(self, name: RecordName) -> None:
        """Add a record by its name; the name of a failure says nothing more."""
        if name.type == "checkpoint":
            self.recorded.add(name.step)
        elif name.type == "evaluation":
            self.evaluations.add((name.step, name.kind, name.head))


def survey(
    ledger: Ledger, specs: Iterable[RunSpec], *, verify: bool, snapshot: Snapshot | None = None
) -> dict[str, RunRecords]:
    """Return the records of each run that has a folder; with `verify` every record is read.

    They are those of a `snapshot`, where a caller has one.  Raises `IdentityError` if a folder belongs to
    another configuration.
    """
    with listed(ledger.directory):
        specs = list(specs)
        if verify and snapshot is None:
            snapshot = Snapshot(ledger, (spec.run_id for spec in specs))
        present = set(ledger.run_ids() if snapshot is None else snapshot.run_ids)
        found = {}
        for spec in specs:
            if spec.run_id not in present:
                continue
            run = ledger.open(spec.run_id)
            if snapshot is None:
                stored = _plain(run.identity_path) or {}
                identity, held = stored.get("identity"), survey_run(run, verify=False)
            else:
                names, head = snapshot.names(spec.run_id), partial(snapshot.read, spec.run_id)
                short = snapshot.briefs(spec.run_id).get
                identity, held = snapshot.identity(spec.run_id), _survey(run, names, head, short, verify=True)
            if identity != spec.training_identity:
                ledger.check(spec)
            found[spec.run_id] = held
        return found


def survey_run(run: RunLedger, *, verify: bool = True) -> RunRecords:
    """Return the records of one run; with `verify` every record is read, otherwise file names suffice."""
    with listed(run.directory):
        return _survey(run, run.record_names(), partial(read_head, run), partial(_brief, run), verify=verify)


def _brief(run: RunLedger, name: str) -> PlainBrief | None:
    head = read_head(run, name)
    return None if head is None else brief_of(name, head)


def _survey(
    run: RunLedger, found: Sequence[tuple[str, RecordName]], head: _Head, short: _Short, *, verify: bool
) -> RunRecords:
    held = RunRecords()
    newest = max((p.step for _, p in found if p.type == "checkpoint"), default=-1)
    failure = None
    for name, parsed in found:
        if parsed.type == "checkpoint":
            latest = parsed.step == newest
            if (verify or latest) and not _checkpoint(held, short(name), parsed, latest):
                continue
        elif parsed.type == "evaluation":
            if verify and not _evaluation(held, short(name), parsed):
                continue
        elif parsed.type == "failure":
            failure = name
        held.add(parsed)
    if failure is not None:
        record = head(failure)
        if record is not None:
            held.failure, held.cancelled = record["message"], record["error"] == CANCELLED
    if held.recorded:
        held.on_disk = run.steps_on_disk
        if isinstance(run.directory, RemotePath):
            # The listing that is read on may end before somebody asks.
            _ = held.usable
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


def _plain(path: Path) -> dict[str, Any] | None:
    """Return the mapping in a JSON file, or None if it holds none."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _checkpoint(held: RunRecords, record: PlainBrief | None, parsed: RecordName, newest: bool) -> bool:
    """Return whether the record of a checkpoint is whole; note the cost of the newest."""
    if record is None or record[0] != parsed.step:
        return False
    _, seconds, time, bytes_, used, _, _ = record
    trained = sum(end - start for start, end in held.training)
    if seconds > trained:
        held.training.append((time - (seconds - trained), time))
    if newest and parsed.step:
        held.step_seconds, held.checkpoint_bytes = seconds / parsed.step, bytes_
        held.step_cpu_seconds = None if math.isnan(used) else used / parsed.step
    return True


def _evaluation(held: RunRecords, record: PlainBrief | None, parsed: RecordName) -> bool:
    """Return whether the record of an evaluation is whole and matches its name; note its cost."""
    if record is None:
        return False
    step, seconds, time, _, used, kind, identity = record
    if (step, kind) != (parsed.step, parsed.kind) or not identity.startswith(parsed.head):
        return False
    held.evaluation_seconds.append((kind, parsed.head, seconds, None if math.isnan(used) else used))
    held.measuring.append((time - seconds, time))
    return True
