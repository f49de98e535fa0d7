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
                "mount, e.g. NFS"
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
        path = self.path(shard)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                expected = (file.metadata() or {}).get("sha256")
        except FileNotFoundError:
            return None
        except SafetensorError as error:
            self._quarantine(path, str(error))
            return None
        if _sha256(arrays) != expected:
            self._quarantine(path, "its content does not have the sha256 in its header")
            return None
        return arrays

    def mapped(self, shard: int, name: str) -> np.ndarray | None:
        """Return an array of a shard as it lies in the file, None where the shard is absent or damaged.

        All of the shard is checked once, as in `read`; its pages may leave the memory afterwards.
        """
        if self.read(shard) is None:
            return None
        try:
            with safe_open(self.path(shard), framework="pt") as file:
                array: np.ndarray = file.get_tensor(name).numpy()
        except FileNotFoundError:  # moved aside since
            return None
        return array

    def clean(self) -> int:
        """Remove unfinished writes of killed processes; call it only while nobody writes.

        Returns their number.
        """
        left = list(self.directory.glob(f"{TEMPORARY}*"))
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def _quarantine(self, path: Path, reason: str) -> None:
        moved = move_aside(path, self.directory / "quarantine")
        log.warning("%s: damaged shard moved to %s (%s)", path, moved, reason)


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
