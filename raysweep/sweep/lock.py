"""One launch of a sweep at a time, and one writer of a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from raysweep.errors import LockedError, StorageError
from raysweep.sweep.storage import open_directory


class SweepLock:
    """An advisory lock (flock) on a folder, by default a sweep's, from `acquire` to `release` or process end.

    The kernel drops the lock when the process dies, so a stale lock cannot exist.  The file `lock` stays; it
    only names the holder.  Usable as a context manager.
    """

    def __init__(
        self,
        directory: Path,
        *,
        what: str = "sweep folder",
        remedy: str = "give this sweep another name",
    ) -> None:
        self.path = Path(directory) / "lock"
        self.what, self.remedy = what, remedy
        self._handle: int | None = None

    def acquire(self) -> SweepLock:
        """Take the lock, making the folder if it is new.

        Raises `LockedError` naming process, host and start of the holder, and `StorageError` if the folder
        cannot be made, written or locked.
        """
        open_directory(self.path.parent)
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(
                f"storage {self.path.parent} cannot be written: {error.strerror or error}; "
                "--storage (or RAYSWEEP_STORAGE) names another folder"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _describe(os.read(handle, 4096))
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise LockedError(
                    f"{self.what} {self.path.parent} is in use by {holder}; "
                    f"wait for it, stop it, or {self.remedy}"
                ) from None
            raise StorageError(
                f"{self.path} cannot be locked: {error}; use storage that supports flock"
            ) from error
        self._handle = handle
        content = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(content).encode(), 0)
        return self

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> SweepLock:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder(directory: Path) -> str | None:
    """Return who holds the lock of a sweep's folder, None if nobody does.

    This is for people to read: it may change at any moment.
    """
    try:
        handle = os.open(Path(directory) / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return _describe(os.read(handle, 4096))
    finally:
        os.close(handle)


def _describe(content: bytes) -> str:
    """Return the holder of a lock from the content of its file, which may be incomplete."""
    try:
        holder = json.loads(content)
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["started"]))
        return f"process {holder['pid']} on {holder['host']}, started {started}"
    except (ValueError, KeyError, TypeError):
        return "another process"
