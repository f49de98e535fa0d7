"""A launched sweep, found again by its name: the latest launch is kept beside its results.

    <storage>/<sweep>/sweep.json             the sweep as it was launched last
    <storage>/<sweep>/files/<file>.json      the runs that each sweep file of this name asked for last

Several files may have one name on purpose, to share what is trained and measured.

Thousands of runs have few different sections, so `sweep.json` holds each of these once, in `sections`, and a
run has their numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError, DataError
from raysweep.files import write_atomic
from raysweep.registry import suggest
from raysweep.sweep.config import Sweep
from raysweep.sweep.format import FORMAT, STORED, check_format
from raysweep.sweep.identity import canonical
from raysweep.sweep.names import Named, chosen
from raysweep.sweep.resources import Resources
from raysweep.sweep.run import RunSpec
from raysweep.sweep.search import Search
from raysweep.sweep.starts import starts
from raysweep.sweep.storage import storage_root
from raysweep.sweep.tracking_uri import check_tracking_uri
from raysweep.sweep.units import count

_FILES = "files"

#: The sections of a run that others have, too.
_SECTIONS = ("language", "model", "algorithm", "pretrain", "evaluations")


def save_sweep(sweep: Sweep) -> None:
    """Keep the sweep as it is launched now, so that its name alone finds it.

    Raises `DataError` if the folder holds results of another format.
    """
    check_format(sweep.directory)
    runs, sections = _apart(spec.encode() for spec in sweep.runs)
    content = {
        "format": FORMAT,
        "name": sweep.name,
        "description": sweep.description,
        "path": str(Path(sweep.path).resolve()),
        "sections": sections,
        "runs": runs,
        "resources": sweep.resources.encode(),
        "tracking_uri": sweep.tracking_uri,
        "axes": list(sweep.axes),
        "config": sweep.config,
        "points": sweep.points,
    }
    if sweep.search is not None:
        content |= {"search": sweep.search.encode(), "samples": [dict(one) for one in sweep.samples]}
    write_atomic(sweep.directory / STORED, (json.dumps(content, indent=1) + "\n").encode())
    asked = {"runs": sorted(spec.run_id for spec in (*sweep.runs, *sweep.left_out))}
    path = sweep.directory / _FILES / f"{Path(sweep.path).name}.json"
    write_atomic(path, (json.dumps(asked, indent=1) + "\n").encode())


def _apart(runs: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return runs with the numbers of their sections, and the sections."""
    numbers: dict[str, int] = {}
    sections: list[Any] = []
    found = []
    for run in runs:
        own = {}
        for name in _SECTIONS:
            number = numbers.setdefault(json.dumps(run[name]), len(sections))
            if number == len(sections):
                sections.append(run[name])
            own[name] = number
        found.append(run | own)
    return found, sections


def _runs(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of a record with their sections, which equal ones share."""
    sections = content.get("sections", ())
    # In records of earlier versions, each run has its own.
    return [
        run | {name: sections[run[name]] for name in _SECTIONS if isinstance(run[name], int)}
        for run in content["runs"]
    ]


class Launched:
    """The milestones that the latest launch of a sweep asked for, as its file says when this is made."""

    def __init__(self, directory: Path) -> None:
        try:
            self._text = (directory / STORED).read_bytes()
        except OSError:
            self._text = b"{}"

    @cached_property
    def _asked(self) -> dict[str, frozenset[int]]:
        found: dict[str, frozenset[int]] = {}
        with suppress(ValueError, KeyError, TypeError, AttributeError, IndexError):
            for run in _runs(json.loads(self._text)):
                pretrain = run["pretrain"]
                found[_trained(run)] = frozenset(pretrain["milestones"] or (pretrain["steps"],))
        return found

    def milestones(self, spec: RunSpec) -> frozenset[int]:
        """Return those of a run; none where that launch, or this record, knows nothing of it."""
        return self._asked.get(_trained(spec.encode()), frozenset()) if self._text != b"{}" else frozenset()


def _trained(run: Mapping[str, Any]) -> str:
    """Return what identifies a training however long it is, from a run's plain data."""
    same = {name: run.get(name) for name in ("language_fingerprint", "model", "algorithm", "seed", "source")}
    length = ("steps", "milestones", "checkpoint_every")
    return canonical(same | {name: v for name, v in run["pretrain"].items() if name not in length})


def of_other_files(sweep: Sweep) -> dict[str, str]:
    """Return the runs that other sweep files of this name asked for when they were launched last.

    Each comes with the name of its file.  A record that nobody can read says nothing.
    """
    found: dict[str, str] = {}
    for path in sorted((sweep.directory / _FILES).glob("*.json")):
        if path.stem != Path(sweep.path).name:
            with suppress(OSError, ValueError, KeyError, TypeError):
                found |= dict.fromkeys(json.loads(path.read_bytes())["runs"], path.stem)
    return found


def load_stored(directory: Path, *, tracking_uri: str | None = None) -> Sweep:
    """Return the sweep that was last launched in a folder.

    It has its runs, so it can be reported, but not the base of its file, so it cannot be varied.
    Raises `DataError` if the folder holds no sweep, a damaged one or one of another format, and `ConfigError`
    for a `tracking_uri` that cannot be used.
    """
    check_tracking_uri(tracking_uri)
    check_format(directory)
    path = directory / STORED
    try:
        content = json.loads(path.read_bytes())
        shared: dict[Any, Any] = {}
        return Sweep(
            name=content["name"],
            description=content["description"],
            path=Path(content["path"]),
            runs=tuple(RunSpec.decode(item, shared) for item in _runs(content)),
            resources=Resources.decode(content["resources"]),
            storage=directory.resolve().parent,
            tracking_uri=tracking_uri or content["tracking_uri"],
            axes=tuple(content["axes"]),
            config=content["config"],
            points=content["points"],
            search=Search.decode(content["search"]) if "search" in content else None,
            samples=tuple(content.get("samples", ())),
        )
    except FileNotFoundError:
        raise DataError(f"{directory}: no sweep has been launched here (there is no {STORED})") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{path}: damaged ({error}); launch the sweep file again to renew it") from error


def stored_names(storage: Path) -> list[str]:
    """Return the names of all sweeps that have been launched into a storage folder."""
    return sorted(path.parent.name for path in storage.glob(f"*/{STORED}"))


def find_stored(
    name: str, storage: str | os.PathLike[str] | None, *, tracking_uri: str | None = None
) -> Sweep:
    """Return the sweep that was launched under a name into a storage (`raysweep.sweep.storage`).

    Raises `ConfigError` if there is none, with the names that are there.
    """
    root = storage_root(storage)
    # "", "." and ".." are folders, and no names.
    if Path(name).name in ("", "..") or not (root / name).is_dir():
        there = stored_names(root)
        raise ConfigError(
            f"'{name}': no such file, and no sweep of that name in {root}{suggest(name, there)} "
            f"(there: {', '.join(there) or 'none'}); --storage names another folder"
        )
    return load_stored(root / name, tracking_uri=tracking_uri)


def meant(sweep: Sweep, only: Sequence[str] | None) -> tuple[RunSpec, ...]:
    """Return the runs of a sweep that one of the names means (`raysweep.sweep.names`); without any, all.

    Raises `ConfigError` for a name that means no run, and for one without a pattern that means several.
    """
    if not only:
        return sweep.runs
    known = [Named.of(run, sweep.name) for run in sweep.runs]
    shown = " or ".join(f"'{name}'" for name in dict.fromkeys((known[0].label, known[0].run_id)))
    wanted = chosen(
        only,
        known,
        lambda hint: (
            f"matches none of the {count(len(known), 'run')}{hint}; `raysweep plan` lists them, e.g. {shown}"
        ),
    )
    return tuple(run for run in sweep.runs if run.run_id in wanted)


def select(sweep: Sweep, only: Sequence[str] | None) -> Sweep:
    """Return the sweep with the runs that one of the names means (`raysweep.sweep.names`); without any, all.

    Raises `ConfigError` for a name that means no run, for one without a pattern that means several, and for
    a run that starts from one that is left out and not trained.
    """
    if not only:
        return sweep
    runs = meant(sweep, only)
    wanted = {run.run_id for run in runs}
    waits = starts(replace(sweep, runs=runs), verify=False)
    for run in runs:
        own = None if run.source is None else run.source.own
        if run.source is not None and own is not None and own not in wanted and waits.wait(run) is not None:
            raise ConfigError(
                f"--only {' '.join(only)}: run {run.run_id} starts from {run.source.name}, which is not "
                f"trained yet; add --only '{run.source.run}', or launch that run first"
            )
    # The trainings that a part of the grid saves by sharing are not known, so none are claimed.
    left_out = (*sweep.left_out, *(run for run in sweep.runs if run.run_id not in wanted))
    return replace(sweep, runs=runs, points=len(runs), left_out=left_out)
