"""The records of many runs at one moment, read at once.

A snapshot lists the folder of each run.  A record whose file is as the index of the sweep knows it
(`raysweep.sweep.index`) is taken from there; every other one is read by the ledger's own reader, which
quarantines damaged records.  Where these are many, the index is written anew.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raysweep.evaluation.base import Evaluation
from raysweep.evaluation.metric import Metric
from raysweep.remote import RemotePath, fetch, listed
from raysweep.sweep.identity import evaluation_identity
from raysweep.sweep.index import NUMBERS, SPEEDS, Index, Rows, kind_text, plain
from raysweep.sweep.ledger import Ledger
from raysweep.sweep.record_heads import IDENTITY, TOLD, PlainBrief, parts_of, read_any, tells
from raysweep.sweep.records import RecordName, evaluation_name, parse_name, parsed_names
from raysweep.sweep.stamps import Stamp, record_paths, stamps

if TYPE_CHECKING:
    from raysweep.sweep.config import Sweep
    from raysweep.sweep.run import RunSpec

#: Records that are read before it is worth writing the index.
MANY = 1000
#: Seconds that a record must have been as it is, to be kept in the index.  A file that changes twice within a
#: tick of the clock looks the same, and the clocks of nodes differ.
SETTLED = 10.0

#: An evaluation: step, key, file name, and the place of its key and identity among the kinds of the index.
_Wanted = tuple[int, str, str, int | None]
#: The file names of records with their parts.
_Names = list[tuple[str, RecordName]]


@dataclass(frozen=True)
class Numbers:
    """The metrics of records in columns, all of the same length.

    `fact` is the place of each metric's description in `facts`, `reserved` that of its reservations in
    `reservations`; a standard error that is not known is nan.  The metrics of record r are those from
    `begin[r]` to before `end[r]`.
    """

    facts: Sequence[Metric]
    reservations: Sequence[tuple[str, ...]]
    fact: np.ndarray
    value: np.ndarray
    standard_error: np.ndarray
    n: np.ndarray
    reserved: np.ndarray
    begin: np.ndarray
    end: np.ndarray


class Metrics(Sequence[Metric]):
    """The metrics of some rows of a snapshot, made where somebody looks: of most runs nobody does."""

    def __init__(self, snapshot: Snapshot, rows: Sequence[int]) -> None:
        self._snapshot, self._rows = snapshot, rows

    @cached_property
    def _made(self) -> list[Metric]:
        return [metric for row in self._rows for metric in self._snapshot.metrics(row)]

    def __getitem__(self, place: Any) -> Any:
        return self._made[place]

    def __len__(self) -> int:
        return len(self._made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process needs the metrics, not the records of all runs.
        return list, (self._made,)


class Snapshot:
    """The records of some runs of a ledger at one moment; of all that have a folder, if `run_ids` is None."""

    def __init__(self, ledger: Ledger, run_ids: Iterable[str] | None = None) -> None:
        self.ledger = ledger
        self._rows: dict[str, dict[str, int]] = {}
        #: What is wanted of an evaluation at a step, and of runs with the same ones: runs share them.
        self._wanted: dict[tuple[int, int], tuple[Evaluation, _Wanted]] = {}
        self._alike: dict[tuple[Any, ...], list[_Wanted]] = {}
        #: The evaluations of runs that were asked for, and these runs, by their ids.
        self._evaluations: dict[int, tuple[RunSpec, list[tuple[int, str, int]]]] = {}
        #: The names of each run's records, damaged ones among them, by type and step; the runs that have no
        #: damaged one; and the names that are those of checkpoints.
        self._names: dict[str, _Names] = {}
        self._whole: set[str] = set()
        self._checkpoints: dict[int, _Names] = {}
        with listed(ledger.directory):
            present = ledger.run_ids()
            asked = set(present) if run_ids is None else set(run_ids)
            self._index = Index.read(ledger.directory)
            self._read([run_id for run_id in present if run_id in asked], set(present))

    @classmethod
    def of(cls, sweep: Sweep) -> Snapshot:
        """Return the records of a sweep's runs."""
        return cls(sweep.ledger(), (spec.run_id for spec in sweep.runs))

    def _read(self, run_ids: Sequence[str], present: set[str]) -> None:
        known = _known(self._index)
        new, young = Rows(self._index), set[int]()
        first = self._index.table.num_rows
        horizon = time.time_ns() - int(SETTLED * 1e9)
        found = stamps(self.ledger, run_ids)
        if isinstance(self.ledger.directory, RemotePath):
            self._fetch(found, known)
        # Most runs have records of the same names, and share the list of these.
        alike: dict[tuple[str, ...], _Names] = {}
        for run_id, now in found.items():
            held = known.pop(run_id, _NOTHING)
            own = tuple(now)
            self._names[run_id] = alike.get(own) or alike.setdefault(own, parsed_names(own))
            if now == held.stamps:
                self._rows[run_id] = held.rows
                self._whole.add(run_id)
                continue
            run, rows = self.ledger.open(run_id), dict[str, int]()
            for name, stamp in now.items():
                if held.stamps.get(name) == stamp:
                    rows[name] = held.rows[name]
                    continue
                record = read_any(run, name)
                if record is None:
                    continue
                head, curve, metrics = parts_of(record)
                rows[name] = first + len(new)
                new.add(run_id, name, stamp, head=head, curve=curve, metrics=metrics)
                if max(stamp[1:]) >= horizon:
                    young.add(rows[name])
            self._rows[run_id] = rows
            if len(rows) == len(now):
                self._whole.add(run_id)
        if new:
            self._index.add(new)
        if len(new) - len(young) >= MANY:
            self._keep(known, present, young)

    def _fetch(self, all_: Mapping[str, Mapping[str, Stamp]], known: Mapping[str, _Known]) -> None:
        """Read the records that the index does not know, several at once."""
        fetch(
            path
            for run_id, found in all_.items()
            for name, path in record_paths(self.ledger.open(run_id), found)
            if known.get(run_id, _NOTHING).stamps.get(name) != found[name]
        )

    def _keep(self, others: Mapping[str, _Known], present: set[str], young: set[int]) -> None:
        """Write the index with the records of this snapshot, and with those known of runs that it has not."""
        wanted = [row for rows in self._rows.values() for row in rows.values() if row not in young]
        wanted += [row for run_id in others if run_id in present for row in others[run_id].rows.values()]
        self._index.taken(wanted).write(self.ledger.directory)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._names

    @property
    def run_ids(self) -> list[str]:
        """The ids of the runs that have a folder, sorted."""
        return list(self._names)

    def names(self, run_id: str) -> Sequence[tuple[str, RecordName]]:
        """Return the file names of a run's records with their parts, by type and step, damaged ones too.

        Most runs have records of the same names, and share what is returned.
        """
        return self._names.get(run_id, ())

    def sound(self, run_id: str) -> bool:
        """Return whether no record of a run is damaged or has the name of another one."""
        return run_id in self._whole and (
            not self._misnamed or self._misnamed.isdisjoint(self._rows[run_id].values())
        )

    @cached_property
    def _misnamed(self) -> frozenset[int]:
        """The rows of records that tell of another step, kind or identity than their names."""
        index = self._index
        columns = [index.numbers("name").tolist(), *self._told]
        # Each is looked at once, however many runs have it.
        wrong = set()
        for name, step, place in set(zip(*columns, strict=True)):
            parsed = parse_name(index.names.known[name])
            if parsed is not None and parsed.type in TOLD:
                kind, identity = json.loads(index.kinds.known[place])
                if not tells(parsed, step, kind, identity):
                    wrong.add((name, step, place))
        if not wrong:
            return frozenset()
        return frozenset(row for row, told in enumerate(zip(*columns, strict=True)) if told in wrong)

    def row(self, run_id: str, name: str) -> int | None:
        """Return the row of a record; None where it is absent or damaged."""
        return self._rows.get(run_id, {}).get(name)

    def head(self, row: int) -> dict[str, Any]:
        """Return what the record in a row says, without `metrics`, `config`, `curve` and `files`.

        `bytes` is the size of a checkpoint's files.  Of many records, `briefs` and `notes` tell sooner.
        """
        found: dict[str, Any] = json.loads(self._index.long["head"][row].as_py())
        return found

    def read(self, run_id: str, name: str) -> dict[str, Any] | None:
        """Return the head of a run's record; None where it is absent or damaged."""
        row = self.row(run_id, name)
        return None if row is None else self.head(row)

    def seconds(self, row: int) -> float:
        """Return the seconds of the brief of the record in a row."""
        return self._briefs[row][1]

    def briefs(self, run_id: str) -> dict[str, PlainBrief]:
        """Return the briefs of a run's records by file name, without damaged ones."""
        return {name: self._briefs[row] for name, row in self._rows.get(run_id, {}).items()}

    @cached_property
    def _briefs(self) -> Sequence[PlainBrief]:
        index = self._index
        steps, places = self._told
        columns = [steps, *(index.numbers(name).tolist() for name in ("seconds", "time", "bytes", "used"))]
        # Each run has an identity, so there are thousands of texts.
        for known in zip(*json.loads(f"[{','.join(index.kinds.known)}]"), strict=True):
            columns.append([known[place] for place in places])
        return list(zip(*columns, strict=True))

    def notes(self, row: int) -> Mapping[str, str]:
        """Return the notes on the way of measuring of the record in a row."""
        found: dict[str, str] = json.loads(self.note(row))
        return found

    def note(self, row: int) -> str:
        """Return these notes as JSON."""
        return self._index.notes.known[self._notes[row]]

    @cached_property
    def _notes(self) -> list[int]:
        """The place of the notes of each record."""
        found: list[int] = self._index.numbers("note").tolist()
        return found

    def identity(self, run_id: str) -> str | None:
        """Return the recorded identity of a run; None where it is absent or damaged."""
        row = self.row(run_id, IDENTITY)
        return None if row is None else self._briefs[row][6]

    def evaluation(self, run_id: str, step: int, evaluation: Evaluation) -> int | None:
        """Return the row of an evaluation at a step with exactly these settings; None where it is absent."""
        rows = self._rows.get(run_id, {})
        return next((row for _, _, row in self._rows_of(rows, [self._name_of(step, evaluation)])), None)

    def _name_of(self, step: int, evaluation: Evaluation) -> _Wanted:
        key = id(evaluation), step
        if key not in self._wanted:
            identity = evaluation_identity(evaluation)
            name = evaluation_name(step, evaluation.key, identity)
            place = self._index.kinds.find(kind_text(evaluation.key, identity))
            self._wanted[key] = evaluation, (step, evaluation.key, name, place)
        return self._wanted[key][1]

    def _rows_of(self, rows: Mapping[str, int], wanted: Iterable[_Wanted]) -> list[tuple[int, str, int]]:
        """Return step, key and row of the wanted evaluations that are among the rows of a run."""
        steps, places = self._told
        return [
            (step, key, row)
            for step, key, name, place in wanted
            if (row := rows.get(name)) is not None and places[row] == place and steps[row] == step
        ]

    @cached_property
    def _told(self) -> tuple[list[int], list[int]]:
        """The step of each record, and the place of its kind and identity."""
        return self._index.numbers("step").tolist(), self._index.numbers("kind").tolist()

    def evaluations(self, spec: RunSpec) -> list[tuple[int, str, int]]:
        """Return step, key and row of the evaluations of a run that are there, in the order of its steps."""
        if id(spec) not in self._evaluations:
            alike = spec.milestones, *map(id, spec.evaluations.values())
            if alike not in self._alike:
                self._alike[alike] = [
                    self._name_of(step, evaluation)
                    for step in spec.milestones
                    for evaluation in spec.evaluations.values()
                ]
            rows = self._rows.get(spec.run_id, {})
            self._evaluations[id(spec)] = spec, self._rows_of(rows, self._alike[alike])
        return self._evaluations[id(spec)][1]

    def checkpoints(self, run_id: str) -> list[int]:
        """Return the rows of all checkpoints of a run ever committed, in the order of their steps."""
        rows, steps, found = self._rows.get(run_id, {}), self._told[0], self.names(run_id)
        if id(found) not in self._checkpoints:
            self._checkpoints[id(found)] = [one for one in found if one[1].type == "checkpoint"]
        return [
            row
            for name, parsed in self._checkpoints[id(found)]
            if (row := rows.get(name)) is not None and steps[row] == parsed.step
        ]

    def failures(self, run_id: str, type_: Literal["failure", "retried"]) -> list[dict[str, Any]]:
        """Return the heads of a run's failures, those that it was tried again after or the others."""
        found = (self.read(run_id, name) for name, parsed in self.names(run_id) if parsed.type == type_)
        return [head for head in found if head is not None]

    def curve(self, row: int) -> list[dict[str, Any]]:
        """Return the training curve of the record in a row, as plain data of `CurvePoint`."""
        text = self._index.long["curve"][row].as_py()
        found: list[dict[str, Any]] = json.loads(text) if text else []
        return found

    def speed(self, rows: Iterable[int]) -> tuple[float | None, float | None]:
        """Return mean tokens a second and MFU over the points of the curves in some rows.

        Points have about as many steps each, so the means are harmonic.  None where no point tells them.
        """
        points = slow = unused = 0.0
        told, seconds, shares = self._speeds
        for row in rows:
            points += told[row]
            slow += seconds[row]
            unused += shares[row]
        return points / slow if slow else None, points / unused if unused else None

    @cached_property
    def _speeds(self) -> list[list[float]]:
        return [self._index.numbers(name).tolist() for name in SPEEDS]

    def measured(self, row: int) -> bool:
        """Return whether the record in a row has a metric."""
        return self._measured[row] > 0

    @cached_property
    def _measured(self) -> Sequence[int]:
        """The number of metrics of each record."""
        found: list[int] = np.diff(plain(self._index.table["fact"].combine_chunks().offsets)).tolist()
        return found

    def metrics(self, row: int) -> list[Metric]:
        """Return the metrics of the record in a row."""
        held, found = self.numbers, []
        for k in range(held.begin[row], held.end[row]):
            error = float(held.standard_error[k])
            found.append(
                held.facts[held.fact[k]].model_copy(
                    update={
                        "value": float(held.value[k]),
                        "standard_error": None if error != error else error,
                        "n": int(held.n[k]),
                        "reservations": held.reservations[held.reserved[k]],
                    }
                )
            )
        return found

    @cached_property
    def numbers(self) -> Numbers:
        """The metrics of all records, in the order of their rows."""
        table, index = self._index.table, self._index
        lists = {name: table[name].combine_chunks() for name in ("fact", *NUMBERS, "reserved")}
        offsets = plain(lists["fact"].offsets)
        columns = {name: plain(column.values) for name, column in lists.items()}
        blank = {"value": 0.0, "standard_error": None, "n": 0}
        return Numbers(
            facts=[Metric.model_validate(json.loads(text) | blank) for text in index.facts.known],
            reservations=[tuple(json.loads(text)) for text in index.reservations.known],
            begin=offsets[:-1],
            end=offsets[1:],
            **columns,
        )


@dataclass(frozen=True)
class _Known:
    """The records of a run that the index knows: their stamps and rows, by file name."""

    stamps: dict[str, Stamp]
    rows: dict[str, int]


_NOTHING = _Known({}, {})


def _known(index: Index) -> dict[str, _Known]:
    """Return the records that the index knows, by run."""
    runs, count = index.numbers("run"), index.table.num_rows
    names = [index.names.known[place] for place in index.numbers("name").tolist()]
    stamps = list(zip(*(index.numbers(name).tolist() for name in ("size", "mtime", "ctime")), strict=True))
    # The rows of a run are neighbours, so thousands of them are taken at once.
    edges = [*np.flatnonzero(np.diff(runs, prepend=-1)).tolist(), count]
    found: dict[str, _Known] = {}
    for place, (begin, end) in zip(runs[edges[:-1]].tolist(), itertools.pairwise(edges), strict=True):
        own = names[begin:end]
        new = _Known(
            dict(zip(own, stamps[begin:end], strict=True)), dict(zip(own, range(begin, end), strict=True))
        )
        known = found.setdefault(index.runs.known[place], new)
        if known is not new:
            known.stamps.update(new.stamps)
            known.rows.update(new.rows)
    return found
