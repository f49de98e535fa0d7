"""The folder of what languages prepare once: tokens of corpora, hashes of large files, kept tokens."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path


def cache_directory() -> Path:
    """Return the folder of everything that can be made again: `$RAYSWEEP_CACHE` or `~/.cache/raysweep`."""
    given = os.environ.get("RAYSWEEP_CACHE")
    return Path(given or "~/.cache/raysweep").expanduser().absolute()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, whenever the process or the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.parent / f".{path.name}-{uuid.uuid4().hex}.tmp"
    try:
        with open(name, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
