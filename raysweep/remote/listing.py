"""Many small files of an object store, read by a few requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from raysweep.remote.cache import Small
from raysweep.remote.client import Entry
from raysweep.remote.path import RemotePath, view

T = TypeVar("T")
R = TypeVar("R")

#: Requests at once.
_AT_ONCE = 32

#: Most bytes of an object that is kept in memory.
_SMALL = 1 << 20

_RUNS = "runs"
#: The kind of objects that are read alone.
_OTHER = "other"


class Listing:
    """The objects below a folder as they were when it was listed, with what this process has changed since.

    Contents are read when they are asked for: with the first record of runs, all others, several at once, and
    with the first small file beside the runs, those.
    """

    def __init__(self, directory: RemotePath) -> None:
        self.root = f"{directory}/"
        self.above = view.get()
        self._entries: dict[str, Entry | None] = dict(_listed(directory))
        self._folders: dict[str, set[str]] = {}
        for url in self._entries:
            self._into_folders(url)
        self._fetched = {_OTHER}
        self._small = Small()
        self._contents = {
            url: content
            for url, (token, content) in self._small.known(self.root).items()
            if (entry := self._entries.get(url)) is not None and entry.token == token
        }

    def _into_folders(self, url: str) -> None:
        path = url
        while len(path) >= len(self.root):
            path, _, name = path.rpartition("/")
            names = self._folders.setdefault(path, set())
            if name in names:
                return
            names.add(name)

    def fetch(self, urls: Iterable[str]) -> None:
        """Read those of some objects that this node has no copy of, several at once."""
        lacking = {
            url: entry
            for url in urls
            if (entry := self._entries.get(url)) is not None and url not in self._contents
        }
        if not lacking:
            return
        found: dict[str, tuple[Entry, bytes]] = {}
        for (url, entry), content in zip(lacking.items(), _at_once(_content, lacking), strict=True):
            if content is None:
                continue
            self._contents[url] = content
            # One that was written since it was listed has another token.
            if len(content) == entry.size:
                found[url] = (entry, content)
        self._small.keep(found)

    def names(self, url: str) -> list[str]:
        """Return the names in a folder, sorted, without those that begin with a dot."""
        return sorted(name for name in self._folders.get(url, ()) if not name.startswith("."))

    def entry(self, url: str) -> Entry | None:
        """Return the entry of an object; None where there is none."""
        entry = self._entries.get(url)
        if entry is None and url in self._entries:
            # This process has written it.
            token = view.set(None)
            try:
                entry = self._entries[url] = RemotePath(url).entry()
            finally:
                view.reset(token)
        return entry

    def read(self, url: str) -> bytes:
        """Return the content of an object."""
        kind = _kind(url)
        if url not in self._contents and kind not in self._fetched:
            self._fetched.add(kind)
            self.fetch(each for each in self._entries if _kind(each) == kind)
        content = self._contents.get(url)
        if content is None:
            content = RemotePath(url).fetched()
            if len(content) <= _SMALL:
                self._contents[url] = content
        return content

    def note(self, url: str, there: bool) -> None:
        """Note that this process has written or removed an object."""
        self._contents.pop(url, None)
        if there:
            self._entries[url] = None
            self._into_folders(url)
            return
        self._entries.pop(url, None)
        path = url
        while len(path) >= len(self.root):
            path, _, name = path.rpartition("/")
            names = self._folders.get(path, set())
            names.discard(name)
            if names:
                return
            self._folders.pop(path, None)


@contextmanager
def listed(directory: Path) -> Iterator[None]:
    """Read a folder of an object store as it is now, until the end; on a disk this does nothing.

    Reads within see the writes of this process, in this thread, and not those of others since the beginning.
    Where a listing of the folder or of one above is made already, that is read on.
    """
    with forgotten():
        list_now(directory)
        yield


@contextmanager
def forgotten() -> Iterator[None]:
    """Forget at the end the listings that were made within."""
    token = view.set(view.get())
    try:
        yield
    finally:
        view.reset(token)


def list_now(directory: Path) -> None:
    """Read a folder as `listed` does, until the end of the `forgotten` around it."""
    if isinstance(directory, RemotePath) and directory.seen() is None:
        view.set(Listing(directory))


def fetch(paths: Iterable[Path]) -> None:
    """Read small files that will be asked for, several at once, if they are in a listing.

    Without this, the first that is read brings all of its kind.
    """
    for path in (paths := [path for path in paths if isinstance(path, RemotePath)])[:1]:
        seen = path.seen()
        if isinstance(seen, Listing):
            seen.fetch(map(str, paths))


def _listed(directory: RemotePath) -> dict[str, Entry]:
    """Return all objects below a folder; those of each run are listed by a request of their own, at once."""
    children = directory.children()
    if _RUNS not in children:
        return directory.entries()
    entries = {f"{directory}/{name}": entry for name, entry in children.items() if entry is not None}
    folders = [directory / name for name, entry in children.items() if entry is None and name != _RUNS]
    runs = directory / _RUNS
    for found in _at_once(RemotePath.entries, [*folders, *(runs / name for name in runs.children())]):
        entries |= found
    return entries


def _content(url: str) -> bytes | None:
    try:
        return RemotePath(url).fetched()
    except FileNotFoundError:  # removed since it was listed
        return None


def _kind(url: str) -> str:
    if not url.endswith(".json") or any(f"/{name}/" in url for name in ("checkpoints", "quarantine", "lock")):
        return _OTHER
    return "record" if "/records/" in url or url.endswith("/run.json") else "about the sweep"


def _at_once(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(function, items))
