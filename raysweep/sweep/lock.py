"""One launch of a sweep at a time, and one writer of a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from raysweep.errors import LockedError, StorageError
from raysweep.remote import RemotePath
from raysweep.sweep.lease import Claim, HeldElsewhereError, Lease, claimed
from raysweep.sweep.storage import open_directory, storage_flag


class SweepLock:
    """An advisory lock (flock) on a folder, by default a sweep's, from `acquire` to `release` or process end.

    The kernel drops the lock when the process dies, so a stale lock cannot exist.  The file `lock` stays; it
    only names the holder.  In an object store it is a `Lease` instead, which may be lost; see `lost`.  Usable
    as a context manager.  `remedy` is what to do while a folder other than a sweep's is in use.
    """

    def __init__(
        self,
        directory: Path,
        *,
        what: str = "sweep folder",
        remedy: str | None = None,
    ) -> None:
        self.path = directory / "lock"
        self.what, self.remedy = what, remedy
        self._handle: int | None = None
        self._lease: Lease | None = None
        #: When the lock was taken, in unix seconds, which tells its holders apart.
        self.started = 0.0

    def acquire(self) -> SweepLock:
        """Take the lock, making the folder if it is new.

        Raises `LockedError` naming process, host and start of the holder, and `StorageError` if the folder
        cannot be made, written or locked.
        """
        if isinstance(self.path, RemotePath):
            return self._acquire_lease(self.path.parent)
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
            holder = Holder.read(os.read(handle, 4096))
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise self._in_use(holder) from None
            raise StorageError(
                f"{self.path} cannot be locked: {error}; use storage that supports flock"
            ) from error
        self._handle = handle
        self.started = time.time()
        content = {"pid": os.getpid(), "host": socket.gethostname(), "started": self.started}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(content).encode(), 0)
        return self

    def _acquire_lease(self, directory: RemotePath) -> SweepLock:
        lease = Lease(directory)
        try:
            self.started = lease.acquire().started
        except HeldElsewhereError as error:
            raise self._in_use(Holder.of(error.args[0])) from None
        except OSError as error:
            raise StorageError(
                f"storage {directory} cannot be written: {error.strerror or error}; "
                "--storage (or RAYSWEEP_STORAGE) names another folder or bucket"
            ) from error
        self._lease = lease
        return self

    def _in_use(self, holder: Holder) -> LockedError:
        directory, remedy = self.path.parent, self.remedy
        if remedy is None:
            cancel = f"raysweep cancel {shlex.quote(directory.name)}{storage_flag(directory.parent)}"
            remedy = f"wait for it, stop it with `{cancel}`, or give this sweep another name"
        return LockedError(f"{self.what} {directory} is in use by {holder}; {remedy}")

    @property
    def lost(self) -> bool:
        """Whether another process may hold the lock by now, as the store was out of reach for too long."""
        return self._lease is not None and self._lease.lost

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
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


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, as far as its file says; `str` tells it to a person."""

    pid: int | None = None
    host: str = ""
    #: When it took the lock, in unix seconds.
    started: float = 0.0

    @classmethod
    def of(cls, claim: Claim) -> Holder:
        """Return the holder of a lease."""
        return cls(claim.pid, claim.host, claim.started)

    @classmethod
    def read(cls, content: bytes) -> Holder:
        """Return the holder of a lock from the content of its file, which may be incomplete."""
        try:
            facts = json.loads(content)
            return cls(int(facts["pid"]), str(facts["host"]), float(facts["started"]))
        except (ValueError, KeyError, TypeError):
            return cls()

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started))
        return f"process {self.pid} on {self.host}, started {started}"


def held(directory: Path) -> Holder | None:
    """Return who holds the lock of a sweep's folder now, None if nobody does; it may change at any moment."""
    if isinstance(directory, RemotePath):
        claim = claimed(directory)
        return None if claim is None else Holder.of(claim)
    try:
        handle = os.open(Path(directory) / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return Holder.read(os.read(handle, 4096))
    finally:
        os.close(handle)


def holder(directory: Path) -> str | None:
    """Return who holds the lock of a sweep's folder, for people to read; None if nobody does."""
    found = held(directory)
    return None if found is None else str(found)
