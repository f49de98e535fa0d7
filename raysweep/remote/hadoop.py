"""Files of the Hadoop distributed file system, written as objects are: whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

T = TypeVar("T")

#: Start of the names of unfinished writes, which readers pass over, as on a disk (`raysweep.files`).
_UNFINISHED = ".tmp-"
#: Most bytes that the client takes at once.
_PART = 64 << 20
#: Seconds for which a request is repeated that a name node refuses as it starts, or whose connection breaks.
_PATIENCE = 60.0
#: What a name node answers to writes after its start, until it knows its data.
_STARTING = "SafeModeException"
#: Errors that no repetition mends.
_FINAL = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
#: What name nodes answer where there is no room, with the codes of a disk.
_FULL = {
    "QuotaExceededException": errno.EDQUOT,
    "could only be replicated to": errno.ENOSPC,
    "could only be written to": errno.ENOSPC,
}
#: The stack that name nodes send after the message, and what the client puts before and behind it.
_STACK = re.compile(r"(\\n|\s)+(\\t)?at (java|org)\..*", re.DOTALL)
_WRAPPER = re.compile(r'^RPCError\("(?:\w+\.)*([\w$]+)", "(.*?)("\))?$', re.DOTALL)


class Hadoop:
    """The files of one name node or name service, as a `RemotePath` reads and writes them.

    A rename within a folder is atomic there, and the name node refuses one to a name that exists, unless the
    request is to replace it.  So content is written under another name first, which a killed process leaves.
    Folders exist by themselves, and stay when they are empty.  The client finds its settings in
    `HADOOP_CONF_DIR`, and its user in `HADOOP_USER_NAME` or a Kerberos ticket.
    """

    def __init__(self, host: str) -> None:
        from hdfs_native import Client

        name, _, port = host.rpartition(":")
        if name:
            # The client looks for a name for three minutes.
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
        """Return the descriptions of all files below a folder, by path; {} where nothing is.

        This takes a request for each folder.
        """
        return _asked(self._find, path)

    def _find(self, path: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        every = iter(self._client.list_status(path, recursive=True))
        while True:
            try:
                each = next(every)
            except StopIteration:
                return found
            except FileNotFoundError:
                continue  # a folder that was removed after its parent was listed
            if not each.isdir:
                found[each.path] = _described(each)

    def cat_file(self, path: str) -> bytes:
        """Return the content of a file."""
        return bytes(_asked(lambda: self._client.read(path).read()))

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        """Write a file; with `mode="create"`, raise `FileExistsError` where it exists."""
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f"{_UNFINISHED}{name}-{secrets.token_hex(8)}")
        try:
            _asked(self._write, temporary, memoryview(data))
            try:
                _asked(self._client.rename, temporary, path, mode != "create")
            except FileNotFoundError as error:
                # A request whose answer is lost may have been carried out.
                if not self._holds(path, data):
                    raise OSError(errno.EIO, "another process has removed an unfinished file") from error
        except BaseException:
            with suppress(OSError):
                _asked(self._client.delete, temporary, False)
            raise

    def _holds(self, path: str, data: bytes) -> bool:
        with suppress(FileNotFoundError):
            return self.cat_file(path) == data
        return False

    def _write(self, path: str, data: memoryview) -> None:
        from hdfs_native import WriteOptions

        # A repeated request finds the file of the first one.  To close a file lets its data nodes sync it.
        with self._client.create(path, WriteOptions(overwrite=True)) as file:
            for start in range(0, len(data), _PART):
                file.write(data[start : start + _PART])

    def cp_file(self, path: str, target: str) -> None:
        """Copy a file."""
        self.pipe_file(target, self.cat_file(path))

    def rm_file(self, path: str) -> None:
        """Remove a file, or a folder that is empty."""
        _asked(self._client.delete, path, False)

    def rm_folder(self, path: str) -> None:
        """Remove a folder and all in it."""
        _asked(self._client.delete, path, True)


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

    All methods here may be repeated.  The client itself waits for about three minutes where a name node
    refuses connections, and longer where a host does not answer at all.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return function(*arguments)
        except _FINAL as error:
            raise type(error)(error.errno or _ERRNO.get(type(error), errno.EIO), _short(error)) from error
        except OSError as error:
            if time.monotonic() > end:
                raise OSError(error.errno or errno.EIO, _short(error)) from error
        except RuntimeError as error:
            said = str(error)
            if _STARTING not in said or time.monotonic() > end:
                code = next((code for text, code in _FULL.items() if text in said), errno.EIO)
                raise OSError(code, _short(error)) from error
        time.sleep(2)


_ERRNO: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
}


def _short(error: Exception) -> str:
    """Return the message of an error.

    >>> _short(RuntimeError('RPCError("org.apache.SafeModeException", "Not yet.\\\\n\\\\tat org.apache.A")'))
    'SafeModeException: Not yet.'
    """
    return _WRAPPER.sub(r"\1: \2", _STACK.sub("", str(error)).strip())
