"""Durable files: each write, rename and removal survives a crash, and no file is ever half there.

Unfinished writes have names that begin with `TEMPORARY`; readers pass over names that begin with a dot.
In an object store (`raysweep.remote`) a write is one request, so none is ever unfinished; in Hadoop's
file system, files are written as on a disk.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raysweep.remote import RemotePath

#: Start of the names of unfinished writes.
TEMPORARY = ".tmp-"


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, each durable in its own parent."""
    if isinstance(directory, RemotePath) or directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet, with its content on the disk on return; its name is not synced.

    Raises `FileExistsError` where it exists.
    """
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def rename(path: Path, target: Path) -> None:
    """Rename a file or folder, durably; a file at `target` is replaced.

    In an object store, each file is copied and then removed, so a crash may leave some in both places.
    """
    if isinstance(path, RemotePath) and isinstance(target, RemotePath):
        _move(path, target)
        return
    os.replace(path, target)
    sync_directory(target.parent)
    if path.parent != target.parent:
        sync_directory(path.parent)


def _move(path: RemotePath, target: RemotePath) -> None:
    below = path.below()
    for each in below or [path]:
        each.copy_to(RemotePath(target, *each.parts[len(path.parts) :]))
    remove_tree(path) if below else path.unlink(missing_ok=True)


def remove_tree(directory: Path) -> None:
    """Remove a folder and all in it, as far as that is possible."""
    if isinstance(directory, RemotePath):
        with suppress(OSError):
            for each in directory.below():
                each.unlink(missing_ok=True)
            directory.remove_folders()
    else:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write a file under, and put that file in the place of `path` at the end.

    Its content is on the disk before it gets its name.  The directory is made when missing.  An exception
    leaves the old file and no leftover.
    """
    make_directory(path.parent)
    temporary = path.parent / f"{TEMPORARY}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that after any crash it holds the old content or the new, durable on return.

    The directory is made when missing.  An `OSError` (disk full) leaves the old file and no leftover.
    """
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def move_aside(path: Path, quarantine: Path) -> Path | None:
    """Move a file or folder into `quarantine` under a new name; return it, None where `path` is missing."""
    make_directory(quarantine)
    target = quarantine / f"{path.name}-{secrets.token_hex(4)}"
    try:
        rename(path, target)
    except FileNotFoundError:
        return None
    return target


def names(directory: Path) -> list[str]:
    """Return the finished names in a directory, sorted; [] where there is no directory."""
    if isinstance(directory, RemotePath):
        return directory.names()
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
