"""Requests to object stores by fsspec's clients, and to Hadoop by its own."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from raysweep.remote.hadoop import hadoop

#: The protocol of the Hadoop distributed file system.
HADOOP = "hdfs"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

#: Options of file systems, beside those that fsspec's own files and variables give.  The client of S3 repeats
#: what is refused for about a minute, and what hangs for minutes, as each attempt lasts `read_timeout`.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 30,
            "max_pool_connections": 64,
            "retries": {"mode": "standard", "max_attempts": 6},
        }
    },
}
#: Attempts of fsspec's client, each with the attempts above.
_RETRIES = {"s3": 2}


@dataclass(frozen=True)
class Entry:
    """An object as a list describes it: its size in bytes, and a token that changes with each write.

    `time` is that of the write by the store's clock, in unix seconds, 0 where it is not told.
    """

    size: int
    token: str
    time: float = 0.0

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Entry:
        """Return the entry in the description of an object by fsspec, whose keys differ between stores."""
        kinds = ("ETag", "etag", "md5Hash", "content_md5", "generation")
        times = ("LastModified", "last_modified", "updated", "mtime")
        token = next((str(info[kind]) for kind in kinds if info.get(kind)), None)
        time = next((_seconds(info[kind]) for kind in times if info.get(kind)), 0.0)
        if token is None and not time:
            token = repr(sorted((key, str(value)) for key, value in info.items()))
        # A tag may be a digest of the content, which comes back when the content does.
        return cls(int(info["size"]), f"{token} {int(time)}", time)


def _seconds(time: Any) -> float:
    """Return the unix seconds of a time as a store's client tells it."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time.replace("Z", "+00:00"))
    return time.timestamp() if isinstance(time, datetime) else float(time)


def is_url(text: str) -> bool:
    """Return whether a text is a URL, such as `s3://bucket/results`."""
    return _URL.match(text) is not None


def needed(protocol: str) -> None:
    """Import the client of a protocol; raises `ImportError` where it is not installed."""
    if protocol == HADOOP:
        import hdfs_native  # noqa: F401

        return
    from fsspec import get_filesystem_class

    get_filesystem_class(protocol)


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, one for each process and set of options, and the path in it."""
    import fsspec.config
    import fsspec.core

    protocol, _, place = url.partition("://")
    if protocol == HADOOP:
        host, _, path = place.partition("/")
        return hadoop(host), f"/{path}"
    chosen = fsspec.config.conf.get(protocol, {})
    options = {name: value for name, value in _OPTIONS.get(protocol, {}).items() if name not in chosen}
    # Without a cache of lists, each list is as new as its request.
    system, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    if protocol in _RETRIES:
        system.retries = _RETRIES[protocol]
    return system, str(path)


@contextmanager
def told(url: str) -> Iterator[None]:
    """Raise what a store's client raises as an `OSError` that names the URL."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _said(error) or os.strerror(errno.ENOENT), url) from error
    except OSError as error:
        raise OSError(error.errno or errno.EIO, _said(error), url) from error
    except Exception as error:
        # The errors of connections and credentials are the client's own.
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url) from error


def _said(error: OSError) -> str:
    return " ".join(str(error.strerror or error).split())
