"""The folder of a prepared corpus: token shards and their records.

The folder lies in the cache, `$RAYSWEEP_CACHE` or `~/.cache/raysweep`; its name is a digest of the recipe.
Part k of the documents gives `train-k.npy` and `held_out-k.npy`, token ids [rows, length], and `part-k.json`,
written last, which describes them; `manifest.json` is written when all parts are there.  Every file is
written whole or not at all.
"""

from __future__ import annotations

import hashlib
import io
import json
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from raysweep.errors import DataError
from raysweep.files import TEMPORARY, write_atomic

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shard(_Record):
    """The rows that one part of the documents gives to one split."""

    rows: int
    documents: int
    tokens: int
    sha256: str


class Part(_Record):
    """Documents `start .. start+documents-1`, and their shards by split."""

    start: int
    documents: int
    shards: dict[Split, Shard]


class Manifest(_Record):
    """All parts of a corpus and its making; written last."""

    recipe: dict[str, Any]
    versions: dict[str, str]
    seconds: float
    parts: tuple[Part, ...]

    def total(self, split: Split, what: Literal["rows", "documents", "tokens"]) -> int:
        """Return the number of rows, documents or tokens of a split."""
        return sum(int(getattr(part.shards[split], what)) for part in self.parts)


class Store:
    """The folder of one corpus."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def shard_path(self, split: Split, k: int) -> Path:
        """Return the path of a token shard."""
        return self.folder / f"{split}-{k:05d}.npy"

    def write_part(
        self, k: int, start: int, documents: int, found: dict[Split, tuple[int, np.ndarray]]
    ) -> Part:
        """Write part k: for each split its number of documents and its rows [rows, length]."""
        shards: dict[Split, Shard] = {}
        for split, (count, rows) in found.items():
            buffer = io.BytesIO()
            np.save(buffer, rows, allow_pickle=False)
            content = buffer.getvalue()
            write_atomic(self.shard_path(split, k), content)
            shards[split] = Shard(
                rows=len(rows), documents=count, tokens=rows.size, sha256=hashlib.sha256(content).hexdigest()
            )
        part = Part(start=start, documents=documents, shards=shards)
        write_atomic(self.folder / f"part-{k:05d}.json", part.model_dump_json().encode())
        return part

    def parts(self) -> list[Part]:
        """Return the finished parts, from the first on without a gap."""
        found: list[Part] = []
        while True:
            try:
                text = (self.folder / f"part-{len(found):05d}.json").read_bytes()
            except FileNotFoundError:
                return found
            found.append(Part.model_validate_json(text))

    def manifest(self) -> Manifest | None:
        """Return the manifest, None where the corpus is not prepared; `DataError` where it is damaged."""
        path = self.folder / "manifest.json"
        try:
            return Manifest.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise DataError(f"{path} is damaged; remove {self.folder} and it is made again") from error

    def remove_leftovers(self) -> None:
        """Remove the unfinished files of killed processes; the caller must hold the lock."""
        for path in self.folder.glob(f"{TEMPORARY}*"):
            path.unlink(missing_ok=True)


class Rows:
    """The rows of one split, read from mapped files; the system keeps used pages in memory."""

    def __init__(self, store: Store, manifest: Manifest, split: Split, length: int) -> None:
        self._store, self._split, self._length = store, split, length
        counts = [part.shards[split].rows for part in manifest.parts]
        #: The number of the first row of each shard, and at the end the number of all rows.
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def _shards(self) -> list[np.ndarray]:
        shards = []
        for k, rows in enumerate(np.diff(self._starts)):
            path = self._store.shard_path(self._split, k)
            try:
                # A file without rows cannot be mapped.
                shard = np.load(path, mmap_mode="r" if rows else None, allow_pickle=False)
            except (OSError, ValueError) as error:
                raise self._damaged(path) from error
            if shard.shape != (rows, self._length):
                raise self._damaged(path)
            shards.append(shard)
        return shards

    def _damaged(self, path: Path) -> DataError:
        return DataError(f"{path} is missing or damaged; remove {self._store.folder} and it is made again")

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the token ids int64 [n, length] of rows by number [n]."""
        out = np.empty((len(rows), self._length), dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        bounds = np.searchsorted(ordered, self._starts)
        for k, (first, last) in enumerate(pairwise(bounds.tolist())):
            if first < last:
                out[order[first:last]] = self._shards[k][ordered[first:last] - self._starts[k]]
        return out


def dump(data: Any) -> bytes:
    """Return the canonical JSON text of plain data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
