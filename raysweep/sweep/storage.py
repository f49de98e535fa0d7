"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
import shlex
from contextlib import suppress
from pathlib import Path

from raysweep.errors import ConfigError, StorageError

#: Names that begin so are unfinished writes; readers pass them over.
TEMPORARY = ".tmp-"


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, each durable in the one above it."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def open_directory(directory: Path) -> None:
    """Make a directory as `make_directory` does; raises `StorageError` where it cannot be made."""
    try:
        make_directory(directory)
    except OSError as error:
        raise StorageError(
            f"storage {directory} cannot be made: {error.strerror or error}; "
            "--storage (or RAYSWEEP_STORAGE) names another folder"
        ) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that after any crash it holds the old content or the new, durable on return.

    The directory is made when missing.  An `OSError` (disk full) leaves the old file and no leftover.
    """
    make_directory(path.parent)
    temporary = path.parent / f"{TEMPORARY}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def move_aside(path: Path, quarantine: Path) -> Path | None:
    """Move a file or folder into `quarantine` under a name not yet taken; None where it is gone already."""
    make_directory(quarantine)
    target = quarantine / f"{path.name}-{secrets.token_hex(4)}"
    try:
        os.rename(path, target)
    except FileNotFoundError:
        return None
    sync_directory(quarantine)
    sync_directory(path.parent)
    return target


def names(directory: Path) -> list[str]:
    """Return the finished names in a directory, sorted; [] where there is no directory."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def storage_root(storage: str | os.PathLike[str] | None) -> Path:
    """Return the absolute root of results: the argument, else $RAYSWEEP_STORAGE, else ./results.

    Raises `ConfigError` for a URL: records are made durable by rename and fsync, which object stores lack.
    """
    chosen = os.fspath(storage) if storage is not None else os.environ.get("RAYSWEEP_STORAGE") or "results"
    if "://" in chosen:
        raise ConfigError(
            f"storage '{chosen}' is a URL; results need a directory that all nodes see under the same path "
            "(a local disk for one machine, NFS or another shared file system for several)"
        )
    return Path(os.path.abspath(os.path.expanduser(chosen)))


def storage_flag(root: Path) -> str:
    """Return what a printed command needs so that it finds this root: " --storage DIR", "" for the default.

    >>> storage_flag(Path("/shared/our sweeps"))
    " --storage '/shared/our sweeps'"
    """
    with suppress(ConfigError):  # $RAYSWEEP_STORAGE may be what no command would accept
        if root.resolve() == storage_root(None).resolve():
            return ""
    return f" --storage {shlex.quote(str(root))}"
