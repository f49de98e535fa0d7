"""Results in an object store: paths whose reads and writes are requests to it.

A `RemotePath` (`s3://bucket/results/...`) is a `Path`, so the ledger, checkpoints and reports are written
there as they are on a disk, under the same names.  What a disk guarantees by fsync, rename and flock, an
object store guarantees otherwise:

- An object appears whole or not at all, and is durable once its request has succeeded; a multipart upload
  too, as it appears with its last request.  So nothing is written under another name and renamed.
- A request after a write sees it, lists included (Amazon S3 since 2020, Google Cloud Storage, Azure).
- `RemotePath.create` writes where nothing is, or fails; the store decides, so one of several writers wins.
- There is no rename.  What is moved aside is copied first and removed then, so a crash between leaves both,
  and the next reader moves it again.
- A folder is no thing but the beginning of names.  A checkpoint is therefore whole once its record, which is
  written after its files, is there; so it is on a disk.
- Locks are leases (`raysweep.sweep.lease`), as no kernel knows when a process of another machine dies.

Hadoop's file system has renames and folders, and `raysweep.remote.hadoop` makes the same guarantees of them.

Processes share nothing but the store.  Each node keeps copies (`raysweep.remote.cache`), which may be removed
at any time, and whoever reads many small files lists them first (`listed`).
"""

from raysweep.remote.cache import keep_blob, local_copy, local_place, on_disk, read_verified
from raysweep.remote.client import HADOOP, is_url, needed
from raysweep.remote.listing import fetch, forgotten, list_now, listed
from raysweep.remote.path import RemotePath, path_of

__all__ = [
    "HADOOP",
    "RemotePath",
    "fetch",
    "forgotten",
    "is_url",
    "keep_blob",
    "local_copy",
    "local_place",
    "on_disk",
    "path_of",
    "read_verified",
    "list_now",
    "listed",
    "needed",
]
