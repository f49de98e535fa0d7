"""The index of a sweep's records: a derived file that spares reading each of them.

    <storage>/<sweep>/index.arrow      what `raysweep.sweep.snapshot` needs of each record, in one file

It is never trusted over the ledger.  Each row has the size and the times of the record's file as the file
system told them, and counts only where they are still the same; a record that was too young when it was read
is not kept.  An index that is torn, of another version or of another sweep counts as absent.  It may be
deleted at any time, and readers write it anew.  Any number of processes may read and write it: it is replaced
as a whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysweep.evaluation.metric import Metric
from raysweep.files import write_atomic
from raysweep.sweep.record_heads import FIELDS, brief_of
from raysweep.sweep.stamps import Stamp
from raysweep.training.checkpoint import CurvePoint
from raysweep.version import __version__

log = logging.getLogger("raysweep.sweep")

INDEX = "index.arrow"

#: The layout of the file; another version of raysweep may take other records for whole.
_VERSION = {"raysweep": __version__, "layout": 5, "records": FIELDS}
_DIGEST = hashlib.sha256().digest_size

#: What the speed of a run comes from.
SPEEDS = ("points", "seconds_per_token", "one_over_mfu")

_SCHEMA = pa.schema(
    [
        # Places in `runs` and `names`; the rows of a run are neighbours, as far as one process has read them.
        *((name, pa.int32()) for name in ("run", "name")),
        *((name, pa.int64()) for name in ("size", "mtime", "ctime")),
        # The brief of the record; places of its kind and identity in `kinds`, and of its notes in `notes`.
        ("step", pa.int64()),
        *((name, pa.float64()) for name in ("seconds", "time")),
        ("bytes", pa.int64()),
        ("used", pa.float64()),
        *((name, pa.int32()) for name in ("kind", "note")),
        # Of the points of its curve that tell a speed, the number, the sum of one over tokens a second, and
        # that of one over MFU.
        *((name, pa.float64()) for name in SPEEDS),
        # The record as JSON, without its curve and its metrics or what nobody reads of many runs.
        ("head", pa.large_string()),
        ("curve", pa.large_string()),
        # The metrics: places in `facts` and `reservations`, and their numbers.
        ("fact", pa.large_list(pa.int32())),
        ("value", pa.large_list(pa.float64())),
        ("standard_error", pa.large_list(pa.float64())),
        ("n", pa.large_list(pa.int64())),
        ("reserved", pa.large_list(pa.int32())),
    ]
)
#: The numbers of a metric; a standard error that is not known is nan.
NUMBERS = ("value", "standard_error", "n")
#: The texts that rows refer to.
_SHARED = ("runs", "names", "kinds", "notes", "facts", "reservations")
_NAN = float("nan")
_METRICS = ("fact", *NUMBERS, "reserved")
#: Columns that are most of the index, and that few readers want of many runs.
_LONG = ("head", "curve")
_SHORT = tuple(name for name in _SCHEMA.names if name not in _LONG)


@dataclass
class Texts:
    """Texts that many records share, each once."""

    known: list[str] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = {text: place for place, text in enumerate(self.known)}

    def find(self, text: str) -> int | None:
        """Return the place of a text; None where it is not known."""
        return self._places.get(text)

    def place(self, text: str) -> int:
        """Return the place of a text, which is added if it is new."""
        place = self._places.setdefault(text, len(self.known))
        if place == len(self.known):
            self.known.append(text)
        return place


@dataclass
class Index:
    """Rows of records in columns, and the texts that they refer to.

    These are ids of runs, file names, and as JSON the kinds with identities and the notes of evaluations, and
    the facts and reservations of metrics.
    """

    #: All columns but the long ones; `_read_long` returns the long ones.
    table: pa.Table = field(default_factory=lambda: _empty(_SHORT))
    _read_long: Callable[[], pa.Table] = lambda: _empty(_LONG)
    runs: Texts = field(default_factory=Texts)
    names: Texts = field(default_factory=Texts)
    kinds: Texts = field(default_factory=Texts)
    notes: Texts = field(default_factory=Texts)
    facts: Texts = field(default_factory=Texts)
    reservations: Texts = field(default_factory=Texts)

    @classmethod
    def read(cls, directory: Path) -> Index:
        """Return the index of a sweep's folder; an empty one where there is none that can be used."""
        try:
            content = (directory / INDEX).read_bytes()
        except OSError:
            return cls()
        body = memoryview(content)[_DIGEST:]
        if hashlib.sha256(body).digest() != content[:_DIGEST]:
            log.debug("%s: torn, read anew", directory / INDEX)
            return cls()
        found = pa.ipc.open_file(pa.py_buffer(body)).schema.metadata or {}
        about = {key.decode(): json.loads(text) for key, text in found.items()}
        if about.get("version") != _VERSION:
            return cls()
        texts = (Texts(about[name]) for name in _SHARED)
        return cls(_columns(body, _SHORT), partial(_columns, body, _LONG), *texts)

    @cached_property
    def long(self) -> pa.Table:
        """The long columns, read when somebody asks first."""
        return self._read_long()

    def numbers(self, name: str) -> np.ndarray:
        """Return a column of numbers."""
        return plain(self.table[name].combine_chunks())

    def add(self, rows: Rows) -> None:
        """Add new rows to the end."""
        new, before = rows.table(), self._read_long
        self.table = _joined(self.table, new.select(_SHORT))
        # Those that are there are read only where somebody asks.
        self._read_long = lambda: _joined(before(), new.select(_LONG))
        vars(self).pop("long", None)

    def taken(self, rows: Sequence[int]) -> Index:
        """Return the index of some rows."""
        places = pa.array(rows, pa.int64())
        return replace(self, table=self.table.take(places), _read_long=partial(self.long.take, places))

    def write(self, directory: Path) -> None:
        """Write the index into a sweep's folder; where that fails, as on a read-only disk, there is none."""
        about = {"version": _VERSION} | {name: getattr(self, name).known for name in _SHARED}
        of = dict.fromkeys(_SHORT, self.table) | dict.fromkeys(_LONG, self.long)
        schema = _SCHEMA.with_metadata({key: json.dumps(value) for key, value in about.items()})
        table = pa.Table.from_arrays(
            [of[name][name] for name in _SCHEMA.names], schema=schema
        ).combine_chunks()
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
        try:
            write_atomic(directory / INDEX, hashlib.sha256(body).digest() + body)
        except OSError as error:
            log.debug("%s: not written (%s)", directory / INDEX, error)


def kind_text(kind: str, identity: str) -> str:
    """Return the text of the kind of an evaluation and its identity, as the index holds it."""
    return json.dumps([kind, identity])


def _joined(first: pa.Table, second: pa.Table) -> pa.Table:
    return pa.concat_tables([first, second]).combine_chunks()


def _empty(names: Sequence[str]) -> pa.Table:
    return _SCHEMA.empty_table().select(names)


def _columns(body: memoryview, names: Sequence[str]) -> pa.Table:
    """Return columns of the file of an index."""
    places = [_SCHEMA.names.index(name) for name in names]
    # A pool of threads takes more time to start than they save.
    wanted = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
    table = pa.ipc.open_file(pa.py_buffer(body), options=wanted).read_all()
    return table.replace_schema_metadata(None)


class Rows:
    """New rows of an index."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
        self._lengths: list[int] = []
        #: The facts about the metric of each name that was seen last, and their place.
        self._last: dict[str, tuple[dict[str, Any], int]] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def add(
        self,
        run_id: str,
        name: str,
        stamp: Stamp,
        *,
        head: Mapping[str, Any],
        curve: Sequence[CurvePoint] = (),
        metrics: Sequence[Metric] = (),
    ) -> None:
        """Add a record; `head` is what it says besides its curve and its metrics."""
        index, brief = self._index, brief_of(name, head)
        points = json.dumps([vars(point) for point in curve]) if curve else ""
        told = [point for point in curve if point.tokens_per_second]
        row = (
            *(index.runs.place(run_id), index.names.place(name), *stamp),
            *(brief.step, brief.seconds, brief.time, brief.bytes, brief.used),
            index.kinds.place(kind_text(brief.kind, brief.identity)),
            index.notes.place(json.dumps(head.get("notes", {}))),
            len(told),
            sum(1 / point.tokens_per_second for point in told if point.tokens_per_second),
            sum(1 / point.mfu for point in told if point.mfu),
            *(json.dumps(head), points),
        )
        for column, value in zip(_SCHEMA.names, row, strict=False):
            self._columns[column].append(value)
        self._lengths.append(len(metrics))
        for metric in metrics:
            facts = dict(vars(metric))
            for column in NUMBERS:
                number = facts.pop(column)
                self._columns[column].append(_NAN if number is None else number)
            reserved = facts.pop("reservations")
            self._columns["reserved"].append(self._index.reservations.place(json.dumps(reserved)))
            self._columns["fact"].append(self._place(facts))

    def _place(self, facts: dict[str, Any]) -> int:
        # To compare is much cheaper than to write JSON.
        last = self._last.get(facts["name"])
        if last is None or last[0] != facts:
            last = self._last[facts["name"]] = facts, self._index.facts.place(json.dumps(facts))
        return last[1]

    def table(self) -> pa.Table:
        """Return the rows."""
        offsets = pa.array(np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64))
        arrays = []
        for column in _SCHEMA:
            values = self._columns[column.name]
            if column.name in _METRICS:
                inner = pa.array(values, column.type.value_type)
                arrays.append(pa.LargeListArray.from_arrays(offsets, inner))
            else:
                arrays.append(pa.array(values, column.type))
        return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def plain(column: pa.Array) -> np.ndarray:
    """Return a column without missing numbers.

    pyarrow's own `to_numpy` imports pandas, which takes half a second.
    """
    return np.from_dlpack(column) if len(column) else np.empty(0, dtype=column.type.to_pandas_dtype())
