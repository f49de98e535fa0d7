"""The logs of a sweep: that of each launch, and those of the processes that work on a run.

    <storage>/<sweep>/launch.log                      states of runs, trouble, beginning and end of launches
    <storage>/<sweep>/runs/<run id>/logs/trial.log    the trial: milestones and errors of evaluations
    <storage>/<sweep>/runs/<run id>/logs/train-0.log  a worker of training, by its rank

Each file has one writer at a time and at most `MOST_BYTES`; what was before lies in one more file, with `.1`
behind its name.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from raysweep.remote import RemotePath, local_place

#: Most bytes of a log before it is moved aside.
MOST_BYTES = 1_000_000

#: The log of a sweep's launches, in its folder.
LAUNCH_LOG = "launch.log"

_OLDER = ".1"

#: Seconds between two looks whether a log in an object store is to be sent.
_SEND = 5.0

#: Bytes at the beginning of a log, with the time of its first line, that tell it from another one.
_BEGINNING = 80
_HEAD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} ")


class BoundedLog(RotatingFileHandler):
    """Writes log records to a file of bounded size; where it cannot be written, nothing is said.

    A log in an object store is written on this machine's disk, and sent as a whole every `_SEND` seconds.
    """

    def __init__(self, path: Path) -> None:
        here = local_place(path)
        here.parent.mkdir(parents=True, exist_ok=True)
        self._sent = path if isinstance(path, RemotePath) else None
        self._changed, self._ended = threading.Event(), threading.Event()
        if self._sent is not None:
            self._fetch(self._sent, here)
        super().__init__(here, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._thread = threading.Thread(target=self._follow, name="raysweep-log", daemon=True)
        if self._sent is not None:
            self._thread.start()

    @staticmethod
    def _fetch(path: RemotePath, here: Path) -> None:
        """Go on with what another process, perhaps on another node, has written."""
        try:
            here.write_bytes(path.fetched())
        except FileNotFoundError:
            here.unlink(missing_ok=True)
        except OSError:
            pass  # what this node has of it is better than nothing

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        super().emit(record)
        self._changed.set()

    def doRollover(self) -> None:  # noqa: N802
        """Move the file aside."""
        super().doRollover()
        if self._sent is not None:
            with suppress(OSError):
                older = Path(self.baseFilename + _OLDER).read_bytes()
                self._sent.with_name(self._sent.name + _OLDER).write_bytes(older)

    def close(self) -> None:
        """Write what is left."""
        super().close()
        if self._sent is not None and not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._send()

    def _follow(self) -> None:
        while not self._ended.wait(_SEND):
            self._send()

    def _send(self) -> None:
        if self._sent is not None and self._changed.is_set():
            self._changed.clear()
            try:
                self._sent.write_bytes(Path(self.baseFilename).read_bytes())
            except OSError:
                self._changed.set()  # it is tried again

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say nothing: a log that cannot be written, as on a full disk, is no reason to end any work."""


@dataclass(frozen=True)
class Entry:
    """An entry of a log: its time to the second, "" where none is known, the log's name and its lines."""

    time: str
    log: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"time": self.time, "log": self.log, "text": self.text}


@dataclass
class _File:
    """A log that grows, and how far it has been read."""

    path: Path
    #: The file itself, which another one may replace, and the bytes of it that were read.
    inode: int | None = None
    offset: int = 0
    #: The beginning of a log in an object store, which has no inode.
    head: bytes = b""
    time: str = ""

    def entries(self) -> Iterator[Entry]:
        """Yield what is new; a line without an end is left for the next time."""
        lines = list(self._sent() if isinstance(self.path, RemotePath) else self._lines())
        while lines:
            head = _HEAD.match(lines[0])
            self.time = head[1] if head else self.time
            size = next((k for k, line in enumerate(lines[1:], 1) if _HEAD.match(line)), len(lines))
            yield Entry(self.time, self.path.stem, "\n".join(lines[:size]))
            del lines[:size]

    def _lines(self) -> Iterator[str]:
        older = self.path.with_name(self.path.name + _OLDER)
        now = _inode(self.path)
        if now is None:
            return  # not there yet, or just moved aside
        if now != self.inode:
            # The file that was read before has been moved aside; at first, that is read as a whole.
            if self.inode is None or _inode(older) == self.inode:
                yield from self._read(older)
            self.inode, self.offset = now, 0
        yield from self._read(self.path)

    def _sent(self) -> Iterator[str]:
        """Yield the new lines of a log in an object store, which is written as a whole each time."""
        try:
            token = self.path.stat().st_ino
            if token == self.inode:
                return
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        older = self.path.with_name(self.path.name + _OLDER)
        if self.inode is None or not content.startswith(self.head):
            # At first, and where the log has begun anew, what was moved aside is read first.
            yield from self._read(older)
            self.offset = 0
        self.inode, self.head = token, content[:_BEGINNING]
        yield from self._read(self.path)

    def _read(self, path: Path) -> Iterator[str]:
        try:
            with path.open("rb") as file:
                file.seek(self.offset)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self.offset += len(whole)
        yield from whole.decode("utf-8", errors="replace").splitlines()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


@dataclass
class Logs:
    """Some logs, read as they grow; `find` names their files, which may come to be later."""

    find: Callable[[], Iterable[Path]]
    _files: dict[Path, _File] = field(default_factory=dict)

    def new(self) -> list[Entry]:
        """Return the entries since the last call, of all logs, in the order of their times."""
        for path in self.find():
            self._files.setdefault(path, _File(path))
        found = [entry for file in self._files.values() for entry in file.entries()]
        return sorted(found, key=lambda entry: entry.time)


def logs_of(folder: Path) -> Logs:
    """Return all logs of a folder: the `logs` of a run."""
    return Logs(lambda: sorted(folder.glob("*.log")))


def launch_logs(directory: Path) -> Logs:
    """Return the log of a sweep's launches, given its folder."""
    return Logs(lambda: [directory / LAUNCH_LOG])
