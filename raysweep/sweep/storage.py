"""The folder of results: its place, and the flag that names it."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from raysweep.errors import ConfigError, StorageError
from raysweep.files import make_directory


def open_directory(directory: Path) -> None:
    """Make a directory as `make_directory` does; raises `StorageError` if that fails."""
    try:
        make_directory(directory)
    except OSError as error:
        raise StorageError(
            f"storage {directory} cannot be made: {error.strerror or error}; "
            "--storage (or RAYSWEEP_STORAGE) names another folder"
        ) from error


def storage_root(storage: str | os.PathLike[str] | None) -> Path:
    """Return the absolute root of results: the argument, else $RAYSWEEP_STORAGE, else ./results.

    Raises `ConfigError` for a home that is not there, for a file, and for a URL, because records need rename
    and fsync, which object stores lack.
    """
    chosen = os.fspath(storage) if storage is not None else os.environ.get("RAYSWEEP_STORAGE") or "results"
    if "://" in chosen:
        raise ConfigError(
            f"storage '{chosen}' is a URL; results need a directory that all nodes see under the same path "
            "(a local disk for one machine, NFS or another shared file system for several)"
        )
    expanded = os.path.expanduser(chosen)
    if expanded.startswith("~"):
        raise ConfigError(f"storage '{chosen}': there is no such home; write the path out")
    path = Path(os.path.abspath(expanded))
    there = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not os.path.isdir(there):
        raise ConfigError(f"storage '{chosen}': {there} is no folder; --storage names another one")
    return path


def storage_flag(root: Path) -> str:
    """Return the option that a printed command needs for this root: " --storage DIR", "" for the default.

    >>> storage_flag(Path("/shared/our sweeps"))
    " --storage '/shared/our sweeps'"
    """
    with suppress(ConfigError):  # $RAYSWEEP_STORAGE may hold a URL
        if root.resolve() == storage_root(None).resolve():
            return ""
    return f" --storage {shlex.quote(str(root))}"
