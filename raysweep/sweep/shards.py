"""A folder of numbered shards of arrays, each there whole or not at all.

    <folder>/identity.json        the identity of the set
    <folder>/000000.safetensors   one shard: named arrays, and the sha256 of their content in its header
    <folder>/quarantine/          damaged files, for a person to see

A shard is a pure function of the identity and its number, so any process may write any shard, once or again.
Shards that a killed process has finished stay, and the next process makes the others.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from raysweep.errors import DataError, IdentityError, StorageError
from raysweep.files import TEMPORARY, move_aside, names, write_atomic
from raysweep.remote import RemotePath, local_copy
from raysweep.sweep.identity import digest
from raysweep.sweep.storage import open_directory

log = logging.getLogger("raysweep.shards")

_IDENTITY = "identity.json"
_SUFFIX = ".safetensors"


class ShardStore:
    """The shards in `directory`, made by `make` or found by `find`; holds only its path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __repr__(self) -> str:
        return f"ShardStore({str(self.directory)!r})"

    @classmethod
    def make(cls, directory: Path, identity: Mapping[str, Any]) -> ShardStore:
        """Return the store of `identity` (plain data) in a folder, which is made if it is new.

        Raises `IdentityError` if the folder belongs to another identity, `DataError` if it holds something
        else, and `StorageError` if it cannot be made.
        """
        path = directory / _IDENTITY
        content = {"digest": digest(identity), "identity": dict(identity)}
        open_directory(directory)
        try:
            there = json.loads(path.read_bytes())
            found = str(there["digest"])
        except FileNotFoundError:
            there = names(directory)
            if _IDENTITY in there:  # another process has made it a moment ago
                return cls.make(directory, identity)
            if there:
                raise DataError(
                    f"{directory} is not empty and holds no shards; name an empty or a new folder"
                ) from None
            write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())
            return cls(directory)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged ({error}); move {directory} away") from error
        if found != content["digest"]:
            raise IdentityError(
                f"{directory} holds shards of {_difference(there['identity'], identity)}; "
                "name another folder, or move that one away"
            )
        return cls(directory)

    @classmethod
    def find(cls, directory: Path) -> ShardStore:
        """Return a store that has been made; raises `StorageError` on a node that does not see it."""
        if not (directory / _IDENTITY).is_file():
            raise StorageError(
                f"{directory} is not visible on node {socket.gethostname()}: use a folder that all nodes "
                "mount, e.g. NFS, or an object store, e.g. s3://BUCKET/FOLDER"
            )
        return cls(directory)

    def path(self, shard: int) -> Path:
        """Return the file of a shard."""
        return self.directory / f"{shard:06d}{_SUFFIX}"

    def stored(self) -> list[int]:
        """Return the numbers of the stored shards, ascending, without reading them."""
        found = (name.removesuffix(_SUFFIX) for name in names(self.directory) if name.endswith(_SUFFIX))
        return sorted(int(number) for number in found if number.isdecimal())

    def missing(self, shards: int) -> list[int]:
        """Return which of the shards `0 .. shards-1` are not stored, ascending."""
        there = set(self.stored())
        return [shard for shard in range(shards) if shard not in there]

    def write(self, shard: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Store a shard durably; this takes about three times the memory of the arrays.

        Raises `DataError` for arrays of anything but numbers.
        """
        flat = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        for name, array in flat.items():
            if array.dtype.kind not in "biuf":
                raise DataError(f"array '{name}' of shard {shard} holds {array.dtype}, not numbers")
        write_atomic(self.path(shard), save(flat, metadata={"sha256": _sha256(flat)}))

    def read(self, shard: int) -> dict[str, np.ndarray] | None:
        """Return the arrays of a shard, or None if it is absent or damaged.

        A damaged shard is moved aside, so that it is made again.
        """
        found = self._verified(shard)
        return None if found is None else found[1]

    def _verified(self, shard: int) -> tuple[Path, dict[str, np.ndarray]] | None:
        """Return the file of a shard on this machine and its arrays, as `read` does."""
        path = self.path(shard)
        try:
            return _read(path)
        except (DataError, SafetensorError) as error:
            reason = str(error)
        if isinstance(path, RemotePath):
            # The node's copy may be what is damaged.
            try:
                return _read(path, anew=True)
            except (DataError, SafetensorError) as error:
                reason = str(error)
        self._quarantine(path, reason)
        return None

    def mapped(self, shard: int, name: str) -> np.ndarray | None:
        """Return an array of a shard as it lies in the file, None where the shard is absent or damaged.

        All of the shard is checked once, as in `read`; its pages may leave the memory afterwards.
        """
        found = self._verified(shard)
        if found is None:
            return None
        try:
            with safe_open(found[0], framework="pt") as file:
                array: np.ndarray = file.get_tensor(name).numpy()
        except FileNotFoundError:  # moved aside since
            return None
        return array

    def clean(self) -> int:
        """Remove unfinished writes of killed processes; call it only while nobody writes.

        Returns their number.
        """
        if isinstance(self.directory, RemotePath):
            return 0
        left = list(self.directory.glob(f"{TEMPORARY}*"))
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def _quarantine(self, path: Path, reason: str) -> None:
        moved = move_aside(path, self.directory / "quarantine")
        log.warning("%s: damaged shard moved to %s (%s)", path, moved, reason)


def _here(path: Path, *, anew: bool = False) -> Path | None:
    """Return the file of a shard on this machine, which may be a copy; None where there is no shard."""
    if isinstance(path, RemotePath):
        return local_copy(path, anew=anew)
    return path if path.is_file() else None


def _read(path: Path, *, anew: bool = False) -> tuple[Path, dict[str, np.ndarray]] | None:
    """Return the file of a shard on this machine and its arrays; None where there is no shard.

    Raises `DataError` or `SafetensorError` for a damaged one.
    """
    here = _here(path, anew=anew)
    if here is None:
        return None
    try:
        with safe_open(here, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected = (file.metadata() or {}).get("sha256")
    except FileNotFoundError:
        return None
    if _sha256(arrays) != expected:
        raise DataError("its content does not have the sha256 in its header")
    return here, arrays


def _sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the sha256 of names, types, shapes and content."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        total.update(repr((name, array.dtype.str, array.shape)).encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the difference of two identities in words: "seed 1 (digest …), not seed 0 (digest …)"."""
    keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    there, asked = (
        ", ".join(f"{key} {_short(identity.get(key))}" for key in keys) for identity in (theirs, ours)
    )
    return f"{there}, not of {asked}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
