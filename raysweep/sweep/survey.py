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
from raysweep.sweep.record_heads import TOLD, PlainBrief, brief_of, read_head, tells
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
    recorded: frozenset[int] = frozenset()
    #: Returns the steps with a checkpoint folder.
    on_disk: Callable[[], set[int]] = field(default=set, repr=False, compare=False)
    #: (step, kind, head of identity).
    evaluations: frozenset[tuple[int, str, str]] = frozenset()
    #: Message of the last failure that nobody asked to retry.
    failure: str | None = None
    #: Whether that failure is a person's wish.
    cancelled: bool = False
    #: Returns the names of checkpoints and evaluations that were read, and what they told, by type and step.
    read: Callable[[], list[tuple[RecordName, PlainBrief]]] = field(default=list, repr=False, compare=False)

    @cached_property
    def usable(self) -> set[int]:
        """The recorded steps with a checkpoint folder, as they are when somebody asks first."""
        return self.on_disk() & self.recorded

    # What follows tells costs.  Most of thousands of runs lack nothing, and nobody asks for all of theirs.

    @cached_property
    def _newest(self) -> PlainBrief | None:
        """The newest checkpoint that was trained and read."""
        found = [(name.step, brief) for name, brief in self.read() if name.type == "checkpoint"]
        step, newest = max(found, default=(0, None))
        return newest if step else None

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a training step; None if no checkpoint tells them."""
        return None if self._newest is None else self._newest[1] / self._newest[0]

    @property
    def step_cpu_seconds(self) -> float | None:
        """Seconds of processor time of a training step; None if no checkpoint tells them."""
        if self._newest is None or math.isnan(self._newest[4]):
            return None
        return self._newest[4] / self._newest[0]

    @property
    def checkpoint_bytes(self) -> int | None:
        """Bytes of the newest checkpoint; None if there is none."""
        return None if self._newest is None else self._newest[3]

    @cached_property
    def evaluation_seconds(self) -> list[tuple[str, str, float, float | None]]:
        """Kind, head of identity, seconds and, where known, seconds of processor time of evaluations."""
        return [
            (name.kind, name.head, seconds, None if math.isnan(used) else used)
            for name, (_, seconds, _, _, used, _, _) in self.read()
            if name.type == "evaluation"
        ]

    @cached_property
    def training(self) -> list[tuple[float, float]]:
        """Begin and end, in unix seconds, of the training that the records tell of."""
        found: list[tuple[float, float]] = []
        trained = 0.0
        for name, (_, seconds, time, *_) in self.read():
            if name.type == "checkpoint" and seconds > trained:
                found.append((time - (seconds - trained), time))
                trained = seconds
        return found

    @cached_property
    def measuring(self) -> list[tuple[float, float]]:
        """Begin and end, in unix seconds, of the evaluations."""
        return [
            (time - seconds, time)
            for name, (_, seconds, time, *_) in self.read()
            if name.type == "evaluation"
        ]

    def add(self, name: RecordName) -> None:
        """Add a record by its name; the name of a failure says nothing more."""
        if name.type == "checkpoint":
            self.recorded |= {name.step}
        elif name.type == "evaluation":
            self.evaluations |= {(name.step, name.kind, name.head)}


@dataclass(frozen=True)
class _Tally:
    """The facts in the names of a run's records; runs whose records have the same names share it."""

    recorded: frozenset[int]
    evaluations: frozenset[tuple[int, str, str]]
    #: The file name of the last failure that nobody asked to retry.
    failure: str | None

    @classmethod
    def of(cls, names: Iterable[tuple[str, RecordName]]) -> _Tally:
        held, failure = RunRecords(), None
        for name, parsed in names:
            held.add(parsed)
            if parsed.type == "failure":
                failure = name
        return cls(held.recorded, held.evaluations, failure)


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
        tallies: dict[int, _Tally] = {}
        found = {}
        for spec in specs:
            if spec.run_id not in present:
                continue
            if snapshot is None:
                run = ledger.open(spec.run_id)
                stored = _plain(run.identity_path) or {}
                identity, held = stored.get("identity"), survey_run(run, verify=False)
            else:
                identity = snapshot.identity(spec.run_id)
                held = _held(ledger, snapshot, spec.run_id, tallies)
            if identity != spec.training_identity:
                ledger.check(spec)
            found[spec.run_id] = held
        return found


def _held(ledger: Ledger, snapshot: Snapshot, run_id: str, tallies: dict[int, _Tally]) -> RunRecords:
    """Return the records of a run in a snapshot; `tallies` has those of the names that it keeps."""
    names, head = snapshot.names(run_id), partial(snapshot.read, run_id)
    if not snapshot.sound(run_id):
        short = snapshot.briefs(run_id).get
        return _survey(ledger.open(run_id), names, head, short, verify=True)
    # Most runs have records of the same names, so these are counted once.
    tally = tallies.get(id(names)) or tallies.setdefault(id(names), _Tally.of(names))
    return _records(tally, head, partial(_on_disk, ledger, run_id), partial(_told, snapshot, run_id), ledger)


def _on_disk(ledger: Ledger, run_id: str) -> set[int]:
    return ledger.open(run_id).steps_on_disk()


def _told(snapshot: Snapshot, run_id: str) -> list[tuple[RecordName, PlainBrief]]:
    """Return what the checkpoints and evaluations of a run told, where all are sound."""
    briefs = snapshot.briefs(run_id)
    return [(parsed, briefs[name]) for name, parsed in snapshot.names(run_id) if parsed.type in TOLD]


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
    newest = max((p.step for _, p in found if p.type == "checkpoint"), default=-1)
    counted: list[tuple[str, RecordName]] = []
    read: list[tuple[RecordName, PlainBrief]] = []
    for name, parsed in found:
        if parsed.type in TOLD and (verify or (parsed.type == "checkpoint" and parsed.step == newest)):
            brief = short(name)
            if brief is None or not tells(parsed, brief[0], brief[5], brief[6]):
                continue
            read.append((parsed, brief))
        counted.append((name, parsed))
    return _records(_Tally.of(counted), head, run.steps_on_disk, lambda: read, run)


def _records(
    tally: _Tally,
    head: _Head,
    on_disk: Callable[[], set[int]],
    read: Callable[[], list[tuple[RecordName, PlainBrief]]],
    ledger: Ledger | RunLedger,
) -> RunRecords:
    held = RunRecords(recorded=tally.recorded, evaluations=tally.evaluations, read=read)
    if tally.failure is not None:
        record = head(tally.failure)
        if record is not None:
            held.failure, held.cancelled = record["message"], record["error"] == CANCELLED
    if held.recorded:
        held.on_disk = on_disk
        if isinstance(ledger.directory, RemotePath):
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
