"""A path in an object store (see `raysweep.remote`)."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import IO, Any, NoReturn, Protocol

from raysweep.remote.client import Entry, file_system, is_url, told
from raysweep.remote.hadoop import Hadoop


class View(Protocol):
    """A list of objects that was made before (`raysweep.remote.listing`), and that this process changes."""

    root: str
    #: The listing that was made before, perhaps of another folder.
    above: View | None

    def names(self, url: str) -> list[str]:
        """Return the names in a folder."""

    def entry(self, url: str) -> Entry | None:
        """Return the entry of an object; None where there is none."""

    def read(self, url: str) -> bytes:
        """Return the content of an object that is there."""

    def note(self, url: str, there: bool) -> None:
        """Note that this process has written or removed an object."""


view: ContextVar[View | None] = ContextVar("raysweep-view", default=None)


class RemotePath(PosixPath):
    """A path in an object store, such as `RemotePath("s3://bucket/results") / "scaling"`.

    What a store cannot do raises `TypeError` or `OSError`; nothing falls through to this machine's disks.
    Requests raise `OSError`: `FileNotFoundError` where nothing is, others where the store cannot be reached
    or refuses.
    """

    __slots__ = ()

    def __str__(self) -> str:
        head, *rest = self.parts or (".",)
        return f"{head}//{'/'.join(rest)}" if head.endswith(":") else "/".join((head, *rest))

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.parts)

    def __fspath__(self) -> NoReturn:
        # `os.path.isdir` and others take an `OSError` for "no".
        raise TypeError(f"{self} is in an object store, and no file of this machine")

    # Its own name

    def resolve(self, strict: bool = False) -> RemotePath:
        """Return the path itself."""
        return self

    def absolute(self) -> RemotePath:
        """Return the path itself."""
        return self

    def expanduser(self) -> RemotePath:
        """Return the path itself."""
        return self

    def is_absolute(self) -> bool:
        """Return True."""
        return True

    # Reading

    def read_bytes(self) -> bytes:
        """Return the content of the object."""
        if (seen := self.seen()) is not None:
            if seen.entry(str(self)) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
            return seen.read(str(self))
        return self.fetched()

    def fetched(self, *, large: bool = False) -> bytes:
        """Return the content of the object as it is now, by one request.

        A `large` one is fetched in parts, several at once where the client does that.  It must have a digest:
        an object that is written meanwhile gives parts of both.
        """
        with told(str(self)):
            system, path = file_system(str(self))
            # This client asks for the size first, unless it is to take no parts.
            whole = {"max_concurrency": 1} if self.parts[0] == "s3:" and not large else {}
            return bytes(system.cat_file(path, **whole))

    def read_text(self, encoding: str | None = None, errors: str | None = None, **_: Any) -> str:
        """Return the content of the object as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(  # type: ignore[override]
        self, mode: str = "r", *_: Any, encoding: str | None = None, **__: Any
    ) -> IO[Any]:
        """Return the content of the object to read from; the modes are "r" and "rb"."""
        if mode not in ("r", "rb"):
            raise OSError(errno.ENOTSUP, f"cannot be opened with mode '{mode}'", str(self))
        content = self.read_bytes()
        return io.BytesIO(content) if mode == "rb" else io.StringIO(content.decode(encoding or "utf-8"))

    def entry(self) -> Entry | None:
        """Return what the store says of the object; None where there is none."""
        if (seen := self.seen()) is not None:
            return seen.entry(str(self))
        try:
            with told(str(self)):
                system, path = file_system(str(self))
                info = system.info(path)
        except FileNotFoundError:
            return None
        return Entry.of(info) if info["type"] == "file" else None

    def names(self) -> list[str]:
        """Return the names in the folder, sorted, without those that begin with a dot; [] where none are."""
        if (seen := self.seen()) is not None:
            return seen.names(str(self))
        return sorted(name for name in self.children() if not name.startswith("."))

    def children(self) -> dict[str, Entry | None]:
        """Return the names in the folder with their entries, None for folders; {} where nothing is."""
        try:
            with told(str(self)):
                system, path = file_system(str(self))
                found = system.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        # Some stores list the folder, or an object of its name, in itself.
        inside = ((info["name"].rstrip("/"), info) for info in found)
        return {
            name.rpartition("/")[2]: None if info["type"] == "directory" else Entry.of(info)
            for name, info in inside
            if name != path.rstrip("/")
        }

    def entries(self) -> dict[str, Entry]:
        """Return all objects below the folder by URL, by one request for each thousand.

        In Hadoop it is one for each folder.
        """
        with told(str(self)):
            system, path = file_system(str(self))
            found = system.find(path, detail=True)
        if isinstance(found, list):  # adlfs names an object in itself so, and nothing is below it
            return {}
        head = len(path.rstrip("/"))
        return {f"{self}{name[head:]}": Entry.of(info) for name, info in found.items() if name != path}

    def is_file(self) -> bool:
        """Return whether there is an object of this name."""
        return self.entry() is not None

    def is_dir(self) -> bool:
        """Return whether the names of some objects begin with this one and a slash."""
        return bool(self.names())

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is an object or a folder of this name."""
        return self.is_file() or self.is_dir()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the size and the time of the object; its inode is a digest of its token."""
        entry = self.entry()
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        inode = int.from_bytes(hashlib.sha256(entry.token.encode()).digest()[:6], "big")
        return os.stat_result((0o100600, inode, 0, 1, 0, 0, entry.size, *(3 * [int(entry.time)])))

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        """Yield the paths in the folder, sorted."""
        return iter([self / name for name in self.names()])

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """Yield the paths that match a pattern without `**`, sorted."""
        first, _slash, rest = pattern.partition("/")
        if first == "**":
            raise OSError(errno.ENOTSUP, f"cannot be searched for '{pattern}'", str(self))
        if "*" in first or "?" in first or "[" in first:
            found = [self / name for name in self.names() if fnmatchcase(name, first)]
        else:
            found = [self / first] if rest or (self / first).exists() else []
        return iter(found) if not rest else (below for each in found for below in each.glob(rest))

    def rglob(self, pattern: str, **_: Any) -> NoReturn:
        """Raise: see `below`."""
        raise OSError(errno.ENOTSUP, f"cannot be searched for '**/{pattern}'", str(self))

    # Writing

    def write_bytes(self, data: Any) -> int:
        """Write the object, in place of an old one; it is there whole or not at all, and durable then."""
        with told(str(self)):
            system, path = file_system(str(self))
            system.pipe_file(path, bytes(data))
        self._changed(True)
        return len(data)

    def create(self, data: bytes) -> None:
        """Write the object where none is; raises `FileExistsError` where one is with another content.

        Of several processes that create an object, one succeeds.  They must write different contents: a
        client that has missed the answer to its first request asks again, and the store then says that the
        object exists, although it is the client's own.
        """
        try:
            with told(str(self)):
                system, path = file_system(str(self))
                system.pipe_file(path, data, mode="create")
        except OSError as error:
            try:
                there = self.fetched()
            except OSError:
                raise error from None
            if there != data:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self)) from None
        self._changed(True)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object."""
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        with told(str(self)):
            system, path = file_system(str(self))
            with suppress(FileNotFoundError):
                system.rm_file(path)
        self._changed(False)

    def remove_folders(self) -> None:
        """Remove the folder and what is left in it, where a folder is more than the beginning of names."""
        with told(str(self)):
            system, path = file_system(str(self))
            if isinstance(system, Hadoop):
                system.rm_folder(path)

    def copy_to(self, target: RemotePath) -> None:
        """Copy the object within its store."""
        with told(str(self)):
            system, path = file_system(str(self))
            system.cp_file(path, file_system(str(target))[1])
        target._changed(True)

    def below(self) -> list[RemotePath]:
        """Return all objects below the folder, by their names."""
        return [RemotePath(url) for url in sorted(self.entries())]

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder is there as soon as something is in it."""

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Write an object without content."""
        self.write_bytes(b"")

    def seen(self) -> View | None:
        """Return the newest listing that this path is in."""
        seen = view.get()
        while seen is not None and not f"{self}/".startswith(seen.root):
            seen = seen.above
        return seen

    def _changed(self, there: bool) -> None:
        if (seen := self.seen()) is not None:
            seen.note(str(self), there)


def path_of(place: str | os.PathLike[str]) -> Path:
    """Return the path that a text means, a `RemotePath` for a URL; a path is what it is.

    `Path` would make a path of this machine of a `RemotePath`.
    """
    if isinstance(place, Path):
        return place
    text = os.fspath(place)
    return RemotePath(text) if is_url(text) else Path(text)
