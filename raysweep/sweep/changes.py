"""The changes of a sweep file since its runs were made, by the names of its fields.

A stored run whose identity no run of the file has is no longer in the file: its results stay, but no table
shows them.  Those that another sweep file of the same name asks for are counted, and no more.  A new run has
changed since the nearest of these, and each of these until the nearest run of the file.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.ledger import Ledger
from raysweep.sweep.made import made_ids
from raysweep.sweep.run import RunSpec
from raysweep.sweep.stored import of_other_files
from raysweep.sweep.units import count

#: Most changes that a reason names, and most characters of a value.
_NAMED, _WIDTH = 3, 40
_LENGTH = "pretrain.steps"
#: Most pairs of runs that are compared; beyond it, the first of the stored runs stand for all.
_PAIRS = 500_000


@dataclass(frozen=True, eq=False)
class _Fields:
    """The fields that identify a run, by dotted path, with the language's as the file writes them."""

    fields: Mapping[str, str]
    fingerprint: str

    @classmethod
    def of(cls, content: Mapping[str, Any], language: Mapping[str, Any]) -> _Fields:
        """Return the fields of an identity's content and a language's configuration."""
        sections = {**content, "language": language}
        if isinstance(content.get("seed"), Mapping):
            sections["seeds"] = sections.pop("seed")
        return cls(flat(sections), str(content.get("language")))

    @cached_property
    def items(self) -> frozenset[tuple[str, str]]:
        return frozenset({*self.fields.items(), ("", self.fingerprint)})

    def apart(self, other: _Fields) -> int:
        """Return a number that is the larger, the more fields differ."""
        return len(self.items ^ other.items)

    def nearest(self, others: Iterable[_Fields]) -> _Fields | None:
        """Return the nearest of other runs, the first of equally near ones; None if there are none."""
        return min(others, key=self.apart, default=None)

    def changes(self, new: _Fields) -> str:
        """Return what has changed from this run to a new one."""
        mine, theirs = dict(self.fields), dict(new.fields)
        if (_LENGTH in mine) != (_LENGTH in theirs):
            # It identifies only runs whose rate depends on it, so nobody has changed it.
            mine.pop(_LENGTH, None)
            theirs.pop(_LENGTH, None)
        if self.fingerprint == new.fingerprint:
            mine, theirs = (_without(fields, {"language"}) for fields in (mine, theirs))
        # A section that one of them lacks, such as the model of a look-up table, is no change of a field.
        lacking = _sections(mine) ^ _sections(theirs)
        mine, theirs = _without(mine, lacking), _without(theirs, lacking)
        found = changed(mine, theirs)
        if self.fingerprint != new.fingerprint and not any(text.startswith("language.") for text in found):
            found.insert(0, "the data of the language")
        more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
        return ", ".join([*found[:_NAMED], *more])


@dataclass(frozen=True)
class Stray:
    """A stored run that the file no longer has; `step` is its newest, `changes` lead to the nearest in it."""

    run_id: str
    step: int
    changes: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"run_id": self.run_id, "step": self.step, "changes": self.changes}


class Changes:
    """The stored runs of a sweep beside those of its file."""

    def __init__(self, ledger: Ledger, sweep: Sweep) -> None:
        self._ledger = ledger
        self._specs = (*sweep.runs, *sweep.left_out)
        wanted = {spec.run_id for spec in self._specs} | made_ids(sweep.directory)
        others = of_other_files(sweep)
        stored = ((run_id, _stored(ledger, run_id)) for run_id in ledger.run_ids() if run_id not in wanted)
        found = {run_id: fields for run_id, fields in stored if fields is not None}
        self._gone = {run_id: fields for run_id, fields in found.items() if run_id not in others}
        #: Number of the stored runs that another sweep file of this name asks for, by that file.
        self.elsewhere: Mapping[str, int] = Counter(others[run_id] for run_id in found if run_id in others)

    @cached_property
    def _file(self) -> dict[str, _Fields]:
        return {spec.run_id: _fields(spec) for spec in self._specs}

    def strays(self) -> tuple[Stray, ...]:
        """Return the stored runs that the file no longer has, by id."""
        near = _bounded(list(self._file.values()) if self._gone else [], len(self._gone))
        return tuple(
            Stray(run_id, _newest(self._ledger, run_id), fields.changes(found) if found else "")
            for run_id, fields in self._gone.items()
            for found in [fields.nearest(near)]
        )

    def to(self, spec: RunSpec, kept: Collection[str]) -> str:
        """Return what makes a run of the file new: the changes since the nearest run that it replaces.

        "" where there is none, and where one of those `kept`, which are stored and in the file, is nearer:
        the run is then one more.
        """
        new = self._file[spec.run_id] if self._gone else None
        if new is None:
            return ""
        former = new.nearest(_bounded(list(self._gone.values()), len(self._specs)))
        others = [fields for run_id, fields in self._file.items() if run_id in kept]
        beside = new.nearest(_bounded(others, len(self._specs)))
        if former is None or (beside is not None and new.apart(beside) < new.apart(former)):
            return ""
        return former.changes(new)


class Settings:
    """The settings that evaluations were made with before, each read once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._told: dict[tuple[str, str, str], str] = {}

    def change(self, spec: RunSpec, step: int, kind: str, head: str) -> str:
        """Return what has changed since the evaluation with the head of an identity was made."""
        now = spec.evaluations[kind].encode()
        key = (kind, head, canonical(now))
        if key not in self._told:
            records = self._ledger.open(spec.run_id).evaluations()
            made = (
                r.config
                for r in records
                if (r.step, r.kind) == (step, kind) and r.identity[: len(head)] == head
            )
            former = next(made, None)
            found = [] if former is None else changed(flat(former), flat(now))
            self._told[key] = ", ".join(found) or "raysweep measures it in another way now"
        return self._told[key]


def stray_lines(
    strays: Sequence[Stray],
    elsewhere: Mapping[str, int],
    *,
    limit: int | None = None,
    launched: Path | None = None,
) -> list[str]:
    """Return lines about stored runs that the file has not, at most `limit` of those in no other file.

    `elsewhere` has the numbers of those that other files have.  Where the runs are those of the latest
    launch, `launched` is its file, which may have more of them: overrides of a launch may leave some out.
    """
    lines = []
    what = "file" if launched is None else "latest launch"
    if elsewhere:
        files = ", ".join(f"{file} ({number:,})" for file, number in elsewhere.items())
        lines.append(f"other runs in the storage belong to sweep files of the same name: {files}")
    if not strays:
        return lines
    are = "is" if len(strays) == 1 else "are"
    lines.append(
        f"{count(len(strays), 'run')} in the storage {are} not in the {what}, and in no table or report"
        + (f"; `raysweep status {shlex.quote(str(launched))}` shows those of its file:" if launched else ":")
    )
    shown = strays if limit is None else strays[:limit]
    lines += [
        f"  {stray.run_id}  to step {stray.step}"
        + (f"; the {what} has {stray.changes}" if stray.changes else "")
        for stray in shown
    ]
    if len(shown) < len(strays):
        lines.append(f"  ... and {count(len(strays) - len(shown), 'more run')}")
    return lines


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the canonical text of every value by its dotted path; a list is one value.

    >>> flat({"a": {"b": 1e-3, "c": [1, 2]}})
    {'a.b': '0.001', 'a.c': '[1,2]'}
    """
    found: dict[str, str] = {}
    for key, value in data.items():
        path = f"{prefix}{key}"
        found |= flat(value, f"{path}.") if isinstance(value, Mapping) else {path: canonical(value)}
    return found


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return `path old → new` of every field that differs; of a section of another kind, the kind alone.

    >>> changed({"a.kind": '"x"', "a.b": "1", "n": "2"}, {"a.kind": '"y"', "a.c": "1", "n": "3"})
    ['a.kind x → y', 'n 2 → 3']
    """
    paths = [path for path in dict.fromkeys([*new, *old]) if old.get(path) != new.get(path)]
    kinds = {path.removesuffix("kind") for path in paths if path.endswith(".kind")}
    told = [p for p in paths if p.endswith(".kind") or not any(p.startswith(kind) for kind in kinds)]
    return [f"{path} {_shown(old.get(path))} → {_shown(new.get(path))}" for path in told]


def _sections(fields: Mapping[str, str]) -> set[str]:
    return {path.partition(".")[0] for path in fields}


def _without(fields: Mapping[str, str], sections: Collection[str]) -> dict[str, str]:
    return {path: text for path, text in fields.items() if path.partition(".")[0] not in sections}


def _shown(text: str | None) -> str:
    if text is None:
        return "null"
    value = json.loads(text)
    shown = value if isinstance(value, str) else json.dumps(value)
    return shown if len(shown) <= _WIDTH else f"{shown[: _WIDTH - 3]}..."


def _fields(spec: RunSpec) -> _Fields:
    return _Fields.of(spec.identity_content, spec.language.encode())


def _stored(ledger: Ledger, run_id: str) -> _Fields | None:
    """Return the fields of a stored run, None where its folder does not say them."""
    try:
        record = json.loads(ledger.open(run_id).identity_path.read_bytes())
        return _Fields.of(record["content"], record["language"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _newest(ledger: Ledger, run_id: str) -> int:
    names = (name for _, name in ledger.open(run_id).record_names())
    return max((name.step for name in names if name.type in ("checkpoint", "evaluation")), default=0)


def _bounded(fields: list[_Fields], times: int) -> list[_Fields]:
    return fields[: max(1, _PAIRS // max(1, times))]
