"""The lock of a folder in an object store: a lease that its holder renews.

    <folder>/lock/00000003.json    the third holder: process, host and start, and a beat that it renews

A process takes the lock by creating the next file, which the store lets one of several do.  It may do so once
the newest file says that its holder has released it, or once its beat has stood still for `TERM` seconds of
the process's own clock.  So clocks need not agree.  A holder that cannot renew in time, or finds a newer
file, has lost the lock.  What it still writes does no harm, because the ledger's writes are idempotent:
two launches at once do the same work twice, and the results are the same.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace

from raysweep.remote import RemotePath

#: Seconds between two beats, and those after which a lock without a beat is taken over.
BEAT = 5.0
TERM = 30.0

FOLDER = "lock"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The content of a lock's file; `renewed` is in unix seconds of the holder's clock."""

    pid: int
    host: str
    #: The boot of the host, which tells its processes from those of an earlier one.
    boot: str
    started: float
    #: Tells two claims of one process apart.
    token: str
    beat: int = 0
    renewed: float = 0.0
    released: bool = False

    @classmethod
    def own(cls) -> Claim:
        """Return a new claim of this process."""
        now = time.time()
        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            boot=_boot(),
            started=now,
            token=secrets.token_hex(8),
            renewed=now,
        )

    @classmethod
    def read(cls, path: RemotePath) -> Claim:
        """Return the claim in a file; one that nobody can read is that of a holder without a beat."""
        try:
            facts = json.loads(path.fetched())
            return cls(**{each.name: facts[each.name] for each in fields(cls) if each.name in facts})
        except (ValueError, TypeError):
            return cls(pid=0, host="an unknown host", boot="", started=0.0, token="")

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps(asdict(self)).encode()

    @property
    def ended(self) -> bool:
        """Whether the holder has released the lock, or is a process of this host that is dead."""
        if self.released:
            return True
        if not self.boot or (self.host, self.boot) != (socket.gethostname(), _boot()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def _boot() -> str:
    """Return the boot of this host and the numbering of its processes, which containers of it do not share.

    It is "" where the system tells none; a process can then not be known to be dead.
    """
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


class HeldElsewhereError(Exception):
    """Somebody else holds the lock; the argument is the claim."""


class Lease:
    """A lock of the folder `directory`."""

    def __init__(self, directory: RemotePath, *, beat: float = BEAT, term: float = TERM) -> None:
        self._folder = directory / FOLDER
        self._beat, self._term = beat, term
        self._claim = Claim.own()
        self._number = 0
        self._renewed = 0.0
        self._followed = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> bool:
        """Whether the lock was lost before its release: it is another's, or has not been renewed in time."""
        held = self._thread is not None and not self._ended.is_set()
        if held and time.monotonic() - self._renewed > self._term:
            self._followed = True
        return self._followed

    def acquire(self) -> Claim:
        """Take the lock and begin to renew it; return the claim.

        Raises `HeldElsewhereError` as soon as another holder has shown that it is alive.  Where none does,
        this takes `term` seconds.  Raises `OSError` where the store cannot be reached, or writes over objects
        that it is asked to create.
        """
        newest = _newest(self._folder)
        if newest:
            self._wait_for_end(newest)
        self._claim = Claim.own()
        self._number = newest + 1
        self._renewed = time.monotonic()
        try:
            self._path.create(self._claim.encode())
        except FileExistsError:
            raise HeldElsewhereError(Claim.read(self._path)) from None
        self._check_creation()
        self._thread = threading.Thread(target=self._renew, name="raysweep-lease", daemon=True)
        self._thread.start()
        return self._claim

    def release(self) -> None:
        """Let others take the lock at once."""
        self._ended.set()
        if self._thread is not None:
            # A request that the store does not answer may take longer.
            self._thread.join(self._term)
            if not self._followed and not self._thread.is_alive():
                # Otherwise it ends after `term` seconds.
                with suppress(OSError):
                    self._path.write_bytes(replace(self._claim, released=True).encode())

    @property
    def _path(self) -> RemotePath:
        return self._folder / f"{self._number:08d}.json"

    def _check_creation(self) -> None:
        """Raise `OSError` if the store lets two processes create one object, as some that look like S3 do."""
        try:
            self._path.create(replace(self._claim, released=True).encode())
        except FileExistsError:
            return
        raise OSError(
            errno.ENOTSUP, "the store writes over an object that it is asked to create (If-None-Match: *)"
        )

    def _wait_for_end(self, number: int) -> None:
        """Return once the holder of a number has ended or shown no sign of life for `term` seconds."""
        path = self._folder / f"{number:08d}.json"
        claim, seen = Claim.read(path), time.monotonic()
        while not claim.ended:
            if time.monotonic() - seen >= self._term:
                return
            time.sleep(self._beat / 4)
            now = Claim.read(path)
            if now.beat != claim.beat:
                raise HeldElsewhereError(now)
            claim = now

    def _renew(self) -> None:
        while not self._ended.wait(self._beat) and not self.lost:
            with suppress(OSError):
                if _newest(self._folder) > self._number:
                    self._followed = True
                    return
                if self._ended.is_set() or self.lost:
                    # The answer has taken so long that a beat would speak for a holder who has gone.
                    return
                # The time of the request counts from its beginning.
                began = time.monotonic()
                claim = replace(self._claim, beat=self._claim.beat + 1, renewed=time.time())
                self._path.write_bytes(claim.encode())
                if not self.lost:
                    self._claim, self._renewed = claim, began


def claimed(directory: RemotePath, *, term: float = TERM) -> Claim | None:
    """Return who holds the lock of a folder; None if nobody does.

    This asks once and waits for nothing, so it trusts the holder's clock: a claim that was renewed longer
    ago than twice the term counts as dead.
    """
    number = _newest(directory / FOLDER)
    if not number:
        return None
    claim = Claim.read(directory / FOLDER / f"{number:08d}.json")
    return None if claim.ended or abs(time.time() - claim.renewed) > 2 * term else claim


def _newest(folder: RemotePath) -> int:
    found = (name.removesuffix(".json") for name in folder.children())
    return max((int(name) for name in found if name.isdecimal()), default=0)
