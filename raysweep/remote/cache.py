"""The copies that a node keeps of objects: its folder may be removed at any time.

    <cache>/small.db      the content of small objects, by URL and token
    <cache>/blobs/        contents by their sha256
    <cache>/objects/      objects as files, by the digest of their URL and token
    <cache>/local/        what concerns this node alone, such as the logs that are being written

The folder is $RAYSWEEP_CACHE, by default `raysweep-cache-UID` in the folder of temporary files, which is a
disk of the node itself where home directories are shared.  Blobs and objects take at most
$RAYSWEEP_CACHE_BYTES (20 GB) and those that were used last stay.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from raysweep.errors import StorageError
from raysweep.remote.client import Entry
from raysweep.remote.path import RemotePath

#: Bytes of copies that a node keeps, unless the environment says otherwise.
MOST_BYTES = 20_000_000_000

#: Bytes of small objects after which their file is begun anew.
_MOST_SMALL = 4_000_000_000

_DIGEST = hashlib.sha256().digest_size

#: Copies that are written between two looks at their bytes.
_LOOK = 50

_written = 0


def cache_root() -> Path:
    """Return the folder of this node's copies, made for this user alone.

    Raises `StorageError` where it cannot be made or belongs to somebody else.
    """
    named = os.environ.get("RAYSWEEP_CACHE")
    root = Path(named or Path(tempfile.gettempdir()) / f"raysweep-cache-{os.getuid()}")
    try:
        root.mkdir(mode=0o700, parents=bool(named), exist_ok=True)
        owner = root.stat().st_uid
    except OSError as error:
        raise StorageError(f"cache {root} cannot be made: {error.strerror}; set RAYSWEEP_CACHE") from error
    if owner != os.getuid():
        raise StorageError(f"cache {root} belongs to another user; set RAYSWEEP_CACHE to a folder of yours")
    return root


def local_place(directory: Path) -> Path:
    """Return the place of what concerns this machine alone: `directory`, or its stand-in on a disk."""
    if not isinstance(directory, RemotePath):
        return directory
    head = hashlib.sha256(str(directory.parent).encode()).hexdigest()[:12]
    return cache_root() / "local" / head / directory.name


def read_verified(path: Path, sha256: str) -> tuple[bytes, str]:
    """Return the content of a file and its digest: `sha256` if the file has not been altered.

    Of an object, the copy of this node serves as well.
    """
    if isinstance(path, RemotePath):
        copy = _blob(sha256)
        with suppress(FileNotFoundError):
            data = copy.read_bytes()
            if hashlib.sha256(data).hexdigest() == sha256:
                _used(copy)
                return data, sha256
    data = path.fetched(large=True) if isinstance(path, RemotePath) else path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found == sha256 and isinstance(path, RemotePath):
        keep_blob(sha256, data)
    return data, found


def keep_blob(sha256: str, data: bytes) -> None:
    """Keep a content, if there is room."""
    # The copy saves a request and nothing more, so a disk without room is no error.
    with suppress(OSError):
        _write(_blob(sha256), data)


def _blob(sha256: str) -> Path:
    return cache_root() / "blobs" / sha256


def local_copy(path: RemotePath, *, anew: bool = False) -> Path | None:
    """Return a file of this node with the content that an object has now; None where there is no object.

    With `anew`, it is fetched although a copy is there.  Raises `OSError` where the disk is full.
    """
    entry = path.entry()
    if entry is None:
        return None
    digest = hashlib.sha256(f"{path}\n{entry.token}".encode()).hexdigest()
    copy = cache_root() / "objects" / f"{digest}{path.suffix}"
    if anew:
        copy.unlink(missing_ok=True)
    if copy.is_file() and copy.stat().st_size == entry.size:
        _used(copy)
        return copy
    try:
        data = path.fetched(large=True)
    except FileNotFoundError:
        return None
    _write(copy, data)
    return copy


@contextmanager
def on_disk(path: Path) -> Iterator[Path]:
    """Give a file of this machine, of the same name, with the content of a file."""
    if not isinstance(path, RemotePath):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / path.name
        here.write_bytes(path.read_bytes())
        yield here


def _used(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _write(path: Path, data: bytes) -> None:
    global _written
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _written += 1
    if _written % _LOOK == 1:
        prune([path.parent.parent / name for name in ("blobs", "objects")], keep=path)


def prune(folders: Iterable[Path], *, keep: Path, most: int | None = None) -> None:
    """Remove the files of some folders that were used least lately until all have at most `most` bytes."""
    if most is None:
        most = int(float(os.environ.get("RAYSWEEP_CACHE_BYTES", MOST_BYTES)))
    found = []
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for each in entries:
                with suppress(OSError):
                    found.append((each.stat().st_mtime, each.stat().st_size, each.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            return
        if path != str(keep):
            with suppress(OSError):
                os.unlink(path)
                total -= size


class Small:
    """Contents of small objects in one SQLite file, for all processes of a node, each behind its sha256.

    Whatever is wrong with the file, objects are read from the store instead.
    """

    def __init__(self) -> None:
        self._path = cache_root() / "small.db"
        self._lock = threading.Lock()
        with suppress(sqlite3.Error):
            self._connect().close()

    def _connect(self) -> sqlite3.Connection:
        with suppress(FileNotFoundError):
            if self._path.stat().st_size > _MOST_SMALL:
                self._path.unlink()
        connection = sqlite3.connect(self._path, timeout=10)
        # A torn file is thrown away.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS small (url TEXT PRIMARY KEY, token TEXT, content BLOB) WITHOUT ROWID"
        )
        return connection

    def known(self, root: str) -> dict[str, tuple[str, bytes]]:
        """Return the tokens and contents of all objects whose URL begins with `root`."""
        with self._lock:
            try:
                connection = self._connect()
                try:
                    rows = connection.execute(
                        "SELECT url, token, content FROM small WHERE url >= ? AND url < ?",
                        (root, root + "\U0010ffff"),
                    ).fetchall()
                finally:
                    connection.close()
            except sqlite3.OperationalError:
                return {}  # somebody else writes for long
            except sqlite3.DatabaseError:
                self._path.unlink(missing_ok=True)
                return {}
        found = ((url, token, content[:_DIGEST], content[_DIGEST:]) for url, token, content in rows)
        return {
            url: (token, content)
            for url, token, digest, content in found
            if hashlib.sha256(content).digest() == digest
        }

    def keep(self, contents: Mapping[str, tuple[Entry, bytes]]) -> None:
        """Keep contents by URL."""
        rows = [
            (url, entry.token, hashlib.sha256(content).digest() + content)
            for url, (entry, content) in contents.items()
        ]
        with self._lock, suppress(sqlite3.Error):
            connection = self._connect()
            try:
                with connection:
                    connection.executemany("INSERT OR REPLACE INTO small VALUES (?, ?, ?)", rows)
            finally:
                connection.close()
