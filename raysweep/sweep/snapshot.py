"""The records of many runs at one moment, read at once.

A snapshot lists the folder of each run.  A record whose file is as the index of the sweep knows it
(`raysweep.sweep.index`) is taken from there; every other one is read by the ledger's own reader, which
quarantines damaged records.  Where these are many, the index is written anew.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from raysweep.evaluation.base import Evaluation
from raysweep.evaluation.metric import Metric
from raysweep.files import names
from raysweep.remote import RemotePath, fetch, listed
from raysweep.sweep.identity import evaluation_identity
from raysweep.sweep.index import NUMBERS, Index, Rows, Stamp
from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.record_heads import IDENTITY, parts_of, read_any
from raysweep.sweep.records import RecordName, checkpoint_name, evaluation_name, parse_name

if TYPE_CHECKING:
    from raysweep.sweep.config import Sweep

#: Records that are read before it is worth writing the index.
MANY = 1000
#: Seconds that a record must have been as it is, to be kept in the index.  A file that changes twice within a
#: tick of the clock looks the same, and the clocks of nodes differ.
SETTLED = 10.0


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
        #: Name and identity of evaluations at steps; runs share their evaluations.
        self._wanted: dict[tuple[int, int], tuple[Evaluation, str, str]] = {}
        self._names: dict[str, list[tuple[str, RecordName]]] = {}
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
        known = _known(self._index.table)
        new, young = Rows(self._index), set[int]()
        first = self._index.table.num_rows
        horizon = time.time_ns() - int(SETTLED * 1e9)
        found = {run_id: _stamps(self.ledger.open(run_id)) for run_id in run_ids}
        if isinstance(self.ledger.directory, RemotePath):
            self._fetch(found, known)
        for run_id, stamps in found.items():
            run, rows = self.ledger.open(run_id), dict[str, int]()
            held = known.pop(run_id, {})
            self._names[run_id] = _named(stamps)
            for name, stamp in stamps.items():
                row = held.get(name)
                if row is not None and row[1:] == stamp:
                    rows[name] = row[0]
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
        if new:
            self._index.table = pa.concat_tables([self._index.table, new.table()]).combine_chunks()
        if len(new) - len(young) >= MANY:
            self._keep(known, present, young)

    def _fetch(self, stamps: Mapping[str, Mapping[str, Stamp]], known: dict[str, Any]) -> None:
        """Read the records that the index does not know, several at once."""
        fetch(
            path
            for run_id, found in stamps.items()
            for name, path in _paths(self.ledger.open(run_id), found)
            if known.get(run_id, {}).get(name, ())[1:] != found[name]
        )

    def _keep(self, others: dict[str, Any], present: set[str], young: set[int]) -> None:
        """Write the index with the records of this snapshot, and with those known of runs that it has not."""
        wanted = [row for rows in self._rows.values() for row in rows.values() if row not in young]
        wanted += [row[0] for run_id in others if run_id in present for row in others[run_id].values()]
        kept = Index(self._index.table.take(pa.array(wanted)), self._index.facts, self._index.reservations)
        kept.write(self.ledger.directory)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._names

    @property
    def run_ids(self) -> list[str]:
        """The ids of the runs that have a folder, sorted."""
        return list(self._names)

    def names(self, run_id: str) -> Sequence[tuple[str, RecordName]]:
        """Return the file names of a run's records with their parts, sorted, damaged ones among them."""
        return self._names.get(run_id, ())

    def row(self, run_id: str, name: str) -> int | None:
        """Return the row of a record; None where it is absent or damaged."""
        return self._rows.get(run_id, {}).get(name)

    def head(self, row: int) -> dict[str, Any]:
        """Return what the record in a row says, without `metrics`, `config`, `curve` and `files`.

        `bytes` is the size of a checkpoint's files.
        """
        return self._heads[row]

    def read(self, run_id: str, name: str) -> dict[str, Any] | None:
        """Return the head of a run's record; None where it is absent or damaged."""
        row = self.row(run_id, name)
        return None if row is None else self.head(row)

    def identity(self, run_id: str) -> str | None:
        """Return the recorded identity of a run; None where it is absent or damaged."""
        return (self.read(run_id, IDENTITY) or {}).get("identity")

    def evaluation(self, run_id: str, step: int, evaluation: Evaluation) -> int | None:
        """Return the row of an evaluation at a step with exactly these settings; None where it is absent."""
        key = id(evaluation), step
        if key not in self._wanted:
            identity = evaluation_identity(evaluation)
            self._wanted[key] = evaluation, evaluation_name(step, evaluation.key, identity), identity
        _, name, identity = self._wanted[key]
        row = self.row(run_id, name)
        if row is None:
            return None
        head = self._heads[row]
        asked = step, evaluation.key, identity
        return row if (head["step"], head["kind"], head["identity"]) == asked else None

    def checkpoints(self, run_id: str) -> list[int]:
        """Return the rows of all checkpoints of a run ever committed, in the order of their steps."""
        steps = sorted(parsed.step for _, parsed in self.names(run_id) if parsed.type == "checkpoint")
        found = ((step, self.row(run_id, checkpoint_name(step))) for step in steps)
        return [row for step, row in found if row is not None and self.head(row)["step"] == step]

    def failures(self, run_id: str, type_: Literal["failure", "retried"]) -> list[dict[str, Any]]:
        """Return the heads of a run's failures, those that it was tried again after or the others."""
        found = (self.read(run_id, name) for name, parsed in self.names(run_id) if parsed.type == type_)
        return [head for head in found if head is not None]

    @cached_property
    def _heads(self) -> Sequence[dict[str, Any]]:
        # One text is read several times as fast as its parts.
        found: list[dict[str, Any]] = json.loads(f"[{','.join(self._index.table['head'].to_pylist())}]")
        return found

    def curve(self, row: int) -> list[dict[str, Any]]:
        """Return the training curve of the record in a row, as plain data of `CurvePoint`."""
        text = self._curves[row]
        found: list[dict[str, Any]] = json.loads(text) if text else []
        return found

    @cached_property
    def _curves(self) -> Sequence[str]:
        found: list[str] = self._index.table["curve"].to_pylist()
        return found

    def measured(self, row: int) -> bool:
        """Return whether the record in a row has a metric."""
        return bool(self.numbers.begin[row] < self.numbers.end[row])

    def metrics(self, row: int) -> list[Metric]:
        """Return the metrics of the record in a row."""
        held, found = self.numbers, []
        for k in range(held.begin[row], held.end[row]):
            error = float(held.standard_error[k])
            found.append(
                Metric.model_construct(
                    **{
                        **vars(held.facts[held.fact[k]]),
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
        offsets = lists["fact"].offsets.to_numpy()
        columns = {name: column.values.to_numpy(zero_copy_only=False) for name, column in lists.items()}
        blank = {"value": 0.0, "standard_error": None, "n": 0}
        return Numbers(
            facts=[Metric.model_validate(json.loads(text) | blank) for text in index.facts.known],
            reservations=[tuple(json.loads(text)) for text in index.reservations.known],
            begin=offsets[:-1],
            end=offsets[1:],
            **columns,
        )


def _known(table: pa.Table) -> dict[str, dict[str, tuple[int, int, int, int]]]:
    """Return the row and the stamp of each record by run and name."""
    found: dict[str, dict[str, tuple[int, int, int, int]]] = {}
    columns = [table[name].to_pylist() for name in ("run_id", "name", "size", "mtime", "ctime")]
    for row, (run_id, name, *stamp) in enumerate(zip(*columns, strict=True)):
        found.setdefault(run_id, {})[name] = (row, *stamp)
    return found


def _stamps(run: RunLedger) -> dict[str, Stamp]:
    """Return the stamps of a run's identity and of its records, by file name."""
    found: dict[str, Stamp] = {}
    if isinstance(run.directory, RemotePath):
        listed_names = (name for name in names(run.records_directory) if parse_name(name) is not None)
        for name, path in _paths(run, (IDENTITY, *listed_names)):
            with suppress(FileNotFoundError):
                status = path.stat()
                # The place of an object is a digest that changes with each write.
                found[name] = status.st_size, int(status.st_mtime * 1e9), status.st_ino
        return found
    with suppress(FileNotFoundError, NotADirectoryError):
        found[IDENTITY] = _stamp(run.identity_path.stat())
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(run.records_directory) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and parse_name(entry.name) is not None:
                with suppress(FileNotFoundError):  # gone since the folder was listed
                    found[entry.name] = _stamp(entry.stat())
    return found


def _paths(run: RunLedger, file_names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for name in file_names:
        yield name, run.identity_path if name == IDENTITY else run.record_path(name)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _named(names: Iterable[str]) -> list[tuple[str, RecordName]]:
    """Return the names of records, sorted, with their parts."""
    found = ((name, parse_name(name)) for name in sorted(names))
    return [(name, parsed) for name, parsed in found if parsed is not None]
