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
#: Types of records that are read, and not only counted by their names.
_READ = ("checkpoint", "evaluation")


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
    #: The names of checkpoints and evaluations that were read, and what they told, by type and step.
    read: list[tuple[RecordName, PlainBrief]] = field(default_factory=list, repr=False, compare=False)

    @cached_property
    def usable(self) -> set[int]:
        """The recorded steps with a checkpoint folder, as they are when somebody asks first."""
        return self.recorded & self.on_disk()

    # What follows tells costs.  Most of thousands of runs lack nothing, and nobody asks for all of theirs.

    @cached_property
    def _newest(self) -> PlainBrief | None:
        """The newest checkpoint that was trained and read."""
        found = [(name.step, brief) for name, brief in self.read if name.type == "checkpoint"]
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
            for name, (_, seconds, _, _, used, _, _) in self.read
            if name.type == "evaluation"
        ]

    @cached_property
    def training(self) -> list[tuple[float, float]]:
        """Begin and end, in unix seconds, of the training that the records tell of."""
        found: list[tuple[float, float]] = []
        trained = 0.0
        for name, (_, seconds, time, *_) in self.read:
            if name.type == "checkpoint" and seconds > trained:
                found.append((time - (seconds - trained), time))
                trained = seconds
        return found

    @cached_property
    def measuring(self) -> list[tuple[float, float]]:
        """Begin and end, in unix seconds, of the evaluations."""
        return [
            (time - seconds, time) for name, (_, seconds, time, *_) in self.read if name.type == "evaluation"
        ]

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
        if parsed.type == "failure":
            failure = name
        elif parsed.type in _READ and (verify or (parsed.type == "checkpoint" and parsed.step == newest)):
            brief = short(name)
            if brief is None or not _tells(parsed, brief):
                continue
            held.read.append((parsed, brief))
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


def _tells(parsed: RecordName, brief: PlainBrief) -> bool:
    """Return whether the brief of a checkpoint or an evaluation matches the name of its record."""
    if parsed.type == "checkpoint":
        return brief[0] == parsed.step
    return (brief[0], brief[5]) == (parsed.step, parsed.kind) and brief[6].startswith(parsed.head)
