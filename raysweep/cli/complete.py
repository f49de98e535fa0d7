"""Completion in a shell: sweeps, runs, fields of a sweep file and kinds.

A key that is pressed waits for this, so it imports no torch.  The storage is read as plain JSON, and the
fields of a configuration from the text of its class.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from raysweep.sweep.format import STORED
from raysweep.sweep.storage import storage_root

#: The configurations of the sections of a sweep file; those with kinds have a family.
_FAMILIES = {"language": "languages", "model": "models", "algorithm": "algorithms", "evaluate": "evaluations"}
_SECTIONS = {
    "pretrain": "raysweep.training.config:PretrainConfig",
    "resources": "raysweep.sweep.resources:Resources",
    "seeds": "raysweep.training.seeds:Seeds",
    "search": "raysweep.sweep.search:Search",
}
#: Fields of a sweep file that have no fields of their own.
_WHOLE = ("seed", "axes", "tolerance", "description")


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
    names = sorted(path.parent.name for path in _storage(context).glob(f"*/{STORED}"))
    yield from (name for name in names if name.startswith(incomplete))
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
        for name in (*_FAMILIES, *_SECTIONS):
            if name.startswith(section):
                yield f"{name}."
        yield from (f"{name}=" for name in _WHOLE if name.startswith(section))
        return
    if section == "evaluate":
        yield from (f"evaluate.{text}" for text in _evaluations(rest))
        return
    if section in _SECTIONS:
        found = _fields(_SECTIONS[section])
    else:
        family = getattr(registry, _FAMILIES[section])
        if rest.startswith("kind="):
            yield from (f"{section}.kind={k}" for k in family.kinds() if k.startswith(rest[5:]))
            return
        found = {name for kind in family.kinds() for name in _fields(family.path(kind))}
    yield from (f"{section}.{name}=" for name in sorted(found) if name.startswith(rest))


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
        names = sorted(_fields(family.path(kind)) - {"kind", "name"})
        yield from (f"{kind}.{name}=" for name in names if name.startswith(field))


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


@cache
def _fields(place: str) -> set[str]:
    """Return the fields of a configuration, `module:Class`, those of its bases included."""
    module, _, name = place.partition(":")
    tree = _tree(module)
    if tree is None:
        return set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            own = {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and "ClassVar" not in ast.unparse(item.annotation)
                and not item.target.id.startswith("_")
            }
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            return own.union(*(_fields(f"{module}:{base}") for base in bases))
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _fields(f"{node.module}:{alias.name}")
    return set()


@cache
def _tree(module: str) -> ast.Module | None:
    """Return the text of a module as a tree, without importing it or what is above it; None for none."""
    root, *rest = module.split(".")
    spec = find_spec(root)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    if rest:
        path = path.parent.joinpath(*rest)
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    elif not path.is_file():
        return None
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None
