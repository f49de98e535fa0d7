"""Files of the Hadoop distributed file system, written as objects are: whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

T = TypeVar("T")

#: Start of the names of unfinished writes, which readers pass over, as on a disk (`raysweep.files`).
_UNFINISHED = ".tmp-"
#: Most bytes that the client takes at once.
_PART = 64 << 20
#: What a name node answers to writes after its start, until it knows its data, and seconds to wait for that.
_STARTING, _PATIENCE = "SafeModeException", 60.0
#: What name nodes send after the message.
_STACK = re.compile(r"(\\n|\s)+(\\t)?at (java|org)\..*", re.DOTALL)


class Hadoop:
    """The files of one name node or name service, as a `RemotePath` reads and writes them.

    A rename within a folder is atomic there, and the name node refuses one to a name that exists, unless the
    request is to replace it.  So content is written under another name first, which a killed process leaves.
    Folders exist by themselves; one that becomes empty is removed.  The client finds its settings in
    `HADOOP_CONF_DIR`, and its user in `HADOOP_USER_NAME` or a Kerberos ticket.
    """

    def __init__(self, host: str) -> None:
        from hdfs_native import Client

        name, _, port = host.rpartition(":")
        if name:
            # The client looks for a name for three minutes, as it does for a name node that starts.
            socket.getaddrinfo(name.strip("[]"), port)
        try:
            self._client: Client = Client(f"hdfs://{host}")
        except RuntimeError as error:
            raise OSError(
                errno.EINVAL,
                f"{_short(error)}; write hdfs://HOST:PORT/FOLDER, or let HADOOP_CONF_DIR name the folder of "
                "hdfs-site.xml with this name service",
            ) from error

    def info(self, path: str) -> dict[str, Any]:
        """Return the description of a file or folder, with fsspec's keys."""
        return _described(_asked(self._client.get_file_info, path))

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        """Return the descriptions of what is in a folder."""
        return _asked(lambda: [_described(each) for each in self._client.list_status(path)])

    def find(self, path: str, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return the descriptions of all files below a folder, by path; {} where nothing is."""
        with suppress(FileNotFoundError):
            found = _asked(lambda: list(self._client.list_status(path, recursive=True)))
            return {each.path: _described(each) for each in found if not each.isdir}
        return {}

    def cat_file(self, path: str) -> bytes:
        """Return the content of a file."""
        return bytes(_asked(lambda: self._client.read(path).read()))

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        """Write a file; with `mode="create"`, raise `FileExistsError` where it exists."""
        with self._unfinished(path) as temporary:
            self._write(temporary, memoryview(data))
            try:
                _asked(self._client.rename, temporary, path, mode != "create")
            except FileNotFoundError as error:
                raise OSError(errno.EIO, "an unfinished file was removed by another process") from error

    def cp_file(self, path: str, target: str) -> None:
        """Copy a file."""
        self.pipe_file(target, self.cat_file(path))

    def rm_file(self, path: str) -> None:
        """Remove a file, and the folders that become empty by that."""
        _asked(self._client.delete, path, False)
        folder = os.path.dirname(path)
        # Of a folder that is not empty, the name node refuses this.
        with suppress(OSError):
            while folder.strip("/") and _asked(self._client.delete, folder, False):
                folder = os.path.dirname(folder)

    @contextmanager
    def _unfinished(self, path: str) -> Iterator[str]:
        folder, name = os.path.split(path)
        temporary = f"{folder}/{_UNFINISHED}{name}-{secrets.token_hex(8)}"
        try:
            yield temporary
        except BaseException:
            with suppress(OSError):
                _asked(self._client.delete, temporary, False)
            raise

    def _write(self, path: str, data: memoryview) -> None:
        from hdfs_native import WriteOptions

        def write() -> None:
            # A repeated request finds the file of the first one.
            with self._client.create(path, WriteOptions(overwrite=True)) as file:
                for start in range(0, len(data), _PART):
                    file.write(data[start : start + _PART])
                if len(data):
                    # Without this the content is in the memory of the data nodes.
                    file.hsync()

        _asked(write)


@cache
def hadoop(host: str) -> Hadoop:
    """Return the client of a name node or name service, one for each process.

    A process must not fork once it has one: its threads would be missing in the child.
    """
    return Hadoop(host)


def _described(status: FileStatus) -> dict[str, Any]:
    return {
        "name": status.path,
        "size": status.length,
        "type": "directory" if status.isdir else "file",
        # Milliseconds tell two writes apart; each takes several requests.
        "etag": str(status.modification_time),
        "mtime": status.modification_time / 1000,
    }


def _asked(function: Callable[..., T], *arguments: Any) -> T:
    """Call a method of the client, and raise what it raises without the name node's stack.

    The client itself waits about three minutes for a name node that does not answer.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return function(*arguments)
        except OSError as error:
            raise type(error)(error.errno or _ERRNO.get(type(error), errno.EIO), _short(error)) from error
        except RuntimeError as error:
            if _STARTING not in str(error) or time.monotonic() > end:
                raise OSError(errno.EIO, _short(error)) from error
        time.sleep(2)


_ERRNO: dict[type[OSError], int] = {FileNotFoundError: errno.ENOENT, FileExistsError: errno.EEXIST}


def _short(error: Exception) -> str:
    return _STACK.sub("", str(error)).strip()
