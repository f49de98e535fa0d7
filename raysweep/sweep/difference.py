"""The difference of two configurations: of two sweeps, or of two runs in the storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from raysweep.errors import ConfigError
from raysweep.sweep.changes import flat
from raysweep.sweep.checkpoints import stored_runs
from raysweep.sweep.document import Problems
from raysweep.sweep.format import STORED
from raysweep.sweep.names import one, split_step
from raysweep.sweep.reading import read_file
from raysweep.sweep.run import RunSpec
from raysweep.sweep.stored import load_stored, stored_names


@dataclass(frozen=True)
class Side:
    """A sweep or a run, and its fields by dotted path; a list is one value."""

    sort: Literal["sweep", "run"]
    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """The fields that differ, with both values, and those that one side alone has."""

    a: str
    b: str
    differ: Mapping[str, tuple[Any, Any]]
    only_a: Mapping[str, Any]
    only_b: Mapping[str, Any]

    @property
    def any(self) -> bool:
        """Whether anything differs."""
        return bool(self.differ or self.only_a or self.only_b)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return a line for each field."""
        found = [f"{path}  {_text(a)} → {_text(b)}" for path, (a, b) in self.differ.items()]
        for name, only in ((self.a, self.only_a), (self.b, self.only_b)):
            found += [f"only in {name}:"] if only else []
            found += [f"  {path}  {_text(value)}" for path, value in only.items()]
        return found or [f"{self.a} and {self.b} have the same configuration"]


def side(name: str, storage: Path, *, is_file: bool) -> Side:
    """Return the sweep of a file, the sweep of a name in the storage, or the run of any of its names.

    Raises `ConfigError` where there is none, or a name means several runs.
    """
    if is_file:
        problems = Problems()
        content = read_file(Path(name), problems).plain
        problems.raise_any()
        # No record has it, as it may hold a secret, and no result depends on it.
        content.pop("notify", None)
        return Side("sweep", name, _fields(content))
    if (storage / name / STORED).is_file():
        return Side("sweep", name, _fields(load_stored(storage / name).config))
    text, _ = split_step(name)
    sweeps = stored_names(storage)
    known = stored_runs(storage, sweeps, text)
    run_id = one(
        text,
        known,
        lambda hint: (
            f"'{name}': no such file, and no sweep or run of that name in {storage}{hint} "
            f"(sweeps: {', '.join(sweeps) or 'none'}); --storage names another folder"
        ),
    )
    holder = next(run.sweep for run in known if run.run_id == run_id)
    return Side("run", run_id, _fields(_of_run(load_stored(storage / holder).run(run_id))))


def difference(a: Side, b: Side) -> Difference:
    """Return the difference of two sides; raises `ConfigError` for a run beside a sweep."""
    if a.sort != b.sort:
        raise ConfigError(f"{a.name} is a {a.sort} and {b.name} a {b.sort}; name two sweeps or two runs")
    both = [path for path in a.fields if path in b.fields]
    return Difference(
        a.name,
        b.name,
        {path: (a.fields[path], b.fields[path]) for path in both if a.fields[path] != b.fields[path]},
        {path: value for path, value in a.fields.items() if path not in b.fields},
        {path: value for path, value in b.fields.items() if path not in a.fields},
    )


def _of_run(spec: RunSpec) -> dict[str, Any]:
    """Return the configuration of a run, its evaluations by name."""
    data = spec.encode()
    named = {key: evaluation.encode() for key, evaluation in spec.evaluations.items()}
    kept = {name: value for name, value in data.items() if name not in ("axes", "evaluations", "seed")}
    return {**kept, "seeds": spec.seeds.encode(), "evaluate": named}


def _fields(content: Mapping[str, Any]) -> dict[str, Any]:
    return {path: json.loads(text) for path, text in flat(content).items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
