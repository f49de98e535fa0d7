"""A file system of a few MiB, mounted in a namespace of its own, that a fault can fill."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Runs a command as the administrator of a namespace, with mounts that nobody else sees.
WRAPPER = ("unshare", "--user", "--map-root-user", "--mount")
#: The size of the file system: many times what the sweep needs.
SIZE_MIB = 96
#: The file that fills it.
BALLAST = "ballast"

_CHUNK = 1 << 20


def _mount(folder: str) -> tuple[str, ...]:
    return ("mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "raysweep-chaos", folder)


def possible() -> bool:
    """Return whether this system lets a user mount a file system in a namespace."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            tried = subprocess.run([*WRAPPER, *_mount(folder)], capture_output=True, check=False)
        except FileNotFoundError:
            return False
    return tried.returncode == 0


@contextmanager
def folder(*, small_volume: bool) -> Iterator[Path]:
    """Give a new folder, on a small file system of its own if this process runs under `WRAPPER`."""
    with tempfile.TemporaryDirectory(prefix="raysweep-chaos-") as place:
        if not small_volume:
            yield Path(place)
            return
        subprocess.run(_mount(place), check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(("umount", "--lazy", place), check=False)


def fill(volume: Path) -> None:
    """Fill a file system to its last byte."""
    with (volume / BALLAST).open("wb", buffering=0) as ballast:
        size = _CHUNK
        while size:
            try:
                ballast.write(b"\0" * size)
            except OSError:
                size //= 2


def empty(volume: Path) -> None:
    """Make room again."""
    (volume / BALLAST).unlink(missing_ok=True)
