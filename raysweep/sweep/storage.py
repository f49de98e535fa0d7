"""The folder of results, on a disk or in an object store: its place, and the flag that names it."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from raysweep.errors import ConfigError, StorageError
from raysweep.files import make_directory
from raysweep.remote import HADOOP, RemotePath, is_url, needed

#: The object stores that results can be in, by the beginning of their URLs, with raysweep's extras for them.
EXTRAS = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az", HADOOP: HADOOP}


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

    Raises `ConfigError` for a home that is not there, for a file, and for a URL of no object store that
    raysweep can use.
    """
    if isinstance(storage, RemotePath):
        storage = str(storage)
    chosen = os.fspath(storage) if storage is not None else os.environ.get("RAYSWEEP_STORAGE") or "results"
    if is_url(chosen):
        return _remote(chosen)
    head = chosen.partition(":/")[0]
    if head in EXTRAS:
        raise ConfigError(f"storage '{chosen}': write {head}:// in a text; a Path drops a slash")
    expanded = os.path.expanduser(chosen)
    if expanded.startswith("~"):
        raise ConfigError(f"storage '{chosen}': there is no such home; write the path out")
    path = Path(os.path.abspath(expanded))
    there = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not os.path.isdir(there):
        raise ConfigError(f"storage '{chosen}': {there} is no folder; --storage names another one")
    return path


def _remote(url: str) -> RemotePath:
    """Return the root of results in an object store."""
    protocol, _, place = url.partition("://")
    if protocol not in EXTRAS:
        raise ConfigError(
            f"storage '{url}': results need a folder, or an object store that creates an object only where "
            f"none is ({', '.join(f'{known}://' for known in EXTRAS)}); mount another one as a folder"
        )
    if not place.partition("/")[0]:
        part, example = ("name node", "HOST:PORT") if protocol == HADOOP else ("bucket", "BUCKET")
        raise ConfigError(f"storage '{url}': names no {part}; write {protocol}://{example}/FOLDER")
    try:
        needed(protocol)
    except ImportError as error:
        extra = EXTRAS[protocol]
        raise ConfigError(
            f"storage '{url}': needs a package that is not installed; pip install 'raysweep[{extra}]'"
        ) from error
    return RemotePath(url)


def storage_flag(root: Path) -> str:
    """Return the option that a printed command needs for this root: " --storage DIR", "" for the default.

    >>> storage_flag(Path("/shared/our sweeps"))
    " --storage '/shared/our sweeps'"
    """
    with suppress(ConfigError):  # $RAYSWEEP_STORAGE may hold a URL
        if root.resolve() == storage_root(None).resolve():
            return ""
    return f" --storage {shlex.quote(str(root))}"
