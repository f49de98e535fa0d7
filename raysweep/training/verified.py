"""Files that are what was written: their digests, and reading them with a check."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from raysweep.errors import CheckpointError
from raysweep.remote import RemotePath, read_verified


class FileDigest(BaseModel):
    """The expected content of a file: `sha256` in hexadecimal, `size` in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    size: int

    @classmethod
    def of(cls, data: bytes) -> FileDigest:
        """Return the digest of `data`."""
        return cls(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def read_file(path: Path, digest: FileDigest | None) -> bytes:
    """Return a file's bytes; raise `CheckpointError` unless they match `digest`."""
    try:
        if digest is None:
            return path.read_bytes()
        data, sha256 = read_verified(path, digest.sha256)
    except FileNotFoundError as error:
        raise _missing(path) from error
    _check(path, digest, len(data), sha256)
    return data


def check_file(path: Path, digest: FileDigest) -> None:
    """Raise `CheckpointError` unless a file matches `digest`; a file on a disk is never whole in memory."""
    if isinstance(path, RemotePath):
        read_file(path, digest)
        return
    try:
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except FileNotFoundError as error:
        raise _missing(path) from error
    _check(path, digest, size, sha256)


def _missing(path: Path) -> CheckpointError:
    return CheckpointError(f"{path}: missing; launch again to recompute it")


def _check(path: Path, digest: FileDigest, size: int, sha256: str) -> None:
    if size != digest.size:
        raise CheckpointError(f"{path}: {size} bytes where {digest.size} were written; it is torn")
    if sha256 != digest.sha256:
        raise CheckpointError(f"{path}: its content is not what was written (sha256 differs)")
