"""Completion in a shell: sweeps, runs, fields of a sweep file and kinds.

A key that is pressed waits for this, so it imports no torch.  The storage is read as plain JSON, and the
fields of a configuration from the text of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from raysweep.sweep.fields import SECTIONS, read_class
from raysweep.sweep.format import STORED
from raysweep.sweep.storage import storage_root

#: The families of the sections of a sweep file that have kinds.
_FAMILIES = {"language": "languages", "model": "models", "algorithm": "algorithms", "evaluate": "evaluations"}
#: Fields of a sweep file that have no fields of their own.
_WHOLE = ("seed", "axes", "keep", "notify", "tolerance", "description", "claims")


def _quiet(found: Callable[[typer.Context, str], Iterator[Any]]) -> Callable[[typer.Context, str], list[Any]]:
    """Return a completion that completes nothing where something is wrong: a key shows no errors."""

    def complete(context: typer.Context, incomplete: str) -> list[Any]:
        try:
            return list(found(context, incomplete))
        except Exception:
            return []

    return complete


@_quiet
def sweeps(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield the names of the storage's sweeps, then sweep files."""
    yield from (name for name in _stored(context) if name.startswith(incomplete))
    yield from _files(incomplete)


@_quiet
def files(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield sweep files, and the folders on the way to them."""
    yield from _files(incomplete)


@_quiet
def runs(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the ids of runs, of the sweep that the command names or of all, with their sweeps.

    An id has no spaces, which a shell would take for the end of a word; after SWEEP/ it is one of that sweep.
    """
    sweep, slash, _ = incomplete.partition("/")
    named = str(context.params.get("file") or context.params.get("name") or "")
    if named.endswith((".yaml", ".yml")):
        named = _name_in(Path(named))
    for folder in sorted(_storage(context).glob(f"*/{STORED}")):
        name = folder.parent.name
        if named not in ("", name) or (slash and sweep != name):
            continue
        for path in sorted((folder.parent / "runs").iterdir()):
            text = f"{name}/{path.name}" if slash else path.name
            if text.startswith(incomplete):
                yield text, name


@_quiet
def configurations(context: typer.Context, incomplete: str) -> Iterator[Any]:
    """Yield the names of sweeps, sweep files, and the ids of runs."""
    yield from sweeps(context, incomplete)
    yield from runs(context, incomplete)


@_quiet
def logged(context: typer.Context, incomplete: str) -> Iterator[Any]:
    """Yield what has logs: the names of the storage's sweeps, then the ids of runs."""
    yield from (name for name in _stored(context) if name.startswith(incomplete))
    yield from runs(context, incomplete)


@_quiet
def models(context: typer.Context, incomplete: str) -> Iterator[Any]:
    """Yield the ids of runs, and folders."""
    yield from runs(context, incomplete)
    head, slash, tail = incomplete.rpartition("/")
    there = Path(head + slash or ".")
    for path in sorted(there.iterdir()) if there.is_dir() else ():
        if path.is_dir() and path.name.startswith(tail) and not path.name.startswith("."):
            yield f"{head}{slash}{path.name}"


@_quiet
def settings(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield the fields of a sweep file, as `--set` takes them, and kinds behind `kind=`."""
    from raysweep import registry

    section, dot, rest = incomplete.partition(".")
    if not dot:
        for name in (*_FAMILIES, *SECTIONS):
            if name.startswith(section) and name not in _WHOLE:
                yield f"{name}."
        yield from (f"{name}=" for name in _WHOLE if name.startswith(section))
        return
    if section == "evaluate":
        yield from (f"evaluate.{text}" for text in _evaluations(rest))
        return
    if section in _WHOLE:
        return
    if section in SECTIONS:
        found = read_class(SECTIONS[section]).fields
    else:
        family = getattr(registry, _FAMILIES[section])
        if rest.startswith("kind="):
            yield from (f"{section}.kind={k}" for k in family.kinds() if k.startswith(rest[5:]))
            return
        found = {n: text for k in family.kinds() for n, text in read_class(family.path(k)).fields.items()}
    yield from (f"{section}.{name}=" for name in sorted(found) if name.startswith(rest))


@_quiet
def languages(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield the kinds of languages that `init` knows."""
    from raysweep.registry import languages as family

    yield from (kind for kind in family.kinds() if kind.startswith(incomplete))


@_quiet
def kinds(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield kinds of all families and sections of a sweep file, with their families."""
    from raysweep.sweep.kinds import names

    for name, meant in names().items():
        if name.startswith(incomplete):
            yield name, ", ".join(family for family, _ in meant)


@_quiet
def evaluations(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Yield kinds of evaluations, and behind a dot their fields."""
    yield from _evaluations(incomplete)


def _evaluations(incomplete: str) -> Iterator[str]:
    from raysweep.registry import evaluations as family

    kind, dot, field = incomplete.partition(".")
    if not dot:
        yield from (name for name in family.kinds() if name.startswith(kind))
    elif kind in family.kinds():
        names = sorted(read_class(family.path(kind)).fields.keys() - {"kind", "name"})
        yield from (f"{kind}.{name}=" for name in names if name.startswith(field))


def _stored(context: typer.Context) -> list[str]:
    return sorted(path.parent.name for path in _storage(context).glob(f"*/{STORED}"))


def _storage(context: typer.Context) -> Path:
    return storage_root(context.params.get("storage"))


def _name_in(file: Path) -> str:
    """Return the name that a sweep file gives its sweep, by default that of the file."""
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("name:"):
                return line.partition(":")[2].partition(" #")[0].strip().strip("'\"")
    return file.stem


def _files(incomplete: str) -> Iterator[str]:
    head, slash, tail = incomplete.rpartition("/")
    for path in sorted(Path(head + slash or ".").iterdir()):
        if path.name.startswith(tail) and not path.name.startswith("."):
            if path.is_dir():
                yield f"{head}{slash}{path.name}/"
            elif path.suffix in (".yaml", ".yml"):
                yield f"{head}{slash}{path.name}"
