"""Tensors of a checkpoint in one file or in several, written and read by any number of workers.

    one file   model.safetensors                      every tensor whole
    n files    model-00001-of-00004.safetensors ...   of a tensor of R rows, the k-th file (k = 0 .. n-1) has
                                                      rows k·c .. min((k+1)·c, R) - 1,    c = ⌈R / n⌉

Rows count along the first dimension.  FSDP2 deals out rows in the same way, so each of n workers writes what
it holds.  A tensor without dimensions, as the optimizer's number of steps, is in every file.

Where a row is follows from n alone, so a reader opens only files with rows of its own.  On a disk it reads
these rows only, after a pass over the file for its sha256; an object of a store is in memory while it is
read, one at a time.  So workers that share weights do not hold all of a checkpoint in several files at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from raysweep.errors import CheckpointError
from raysweep.remote import RemotePath
from raysweep.training.data import World
from raysweep.training.verified import FileDigest, check_file, read_file


def part_name(name: str, part: int, parts: int) -> str:
    """Return the name of a file that holds part number `part`, from 0, of `parts`.

    >>> part_name("model.safetensors", 0, 1), part_name("model.safetensors", 0, 4)
    ('model.safetensors', 'model-00001-of-00004.safetensors')
    """
    stem, _, suffix = name.rpartition(".")
    return name if parts == 1 else f"{stem}-{part + 1:05d}-of-{parts:05d}.{suffix}"


def part_names(files: Collection[str], name: str) -> list[str]:
    """Return the files among `files` that hold what `name` stands for, in order; [] unless all are there.

    >>> part_names({"model-00002-of-00002.st", "state.json", "model-00001-of-00002.st"}, "model.st")
    ['model-00001-of-00002.st', 'model-00002-of-00002.st']
    """
    if name in files:
        return [name]
    stem, _, suffix = name.rpartition(".")
    pattern = re.compile(rf"{re.escape(stem)}-\d+-of-(\d+)\.{re.escape(suffix)}")
    parts = next((int(found[1]) for file in files if (found := pattern.fullmatch(file))), 0)
    names = [part_name(name, part, parts) for part in range(parts)]
    return names if set(names) <= set(files) else []


def rows_of(rows: int, part: int, parts: int) -> range:
    """Return which of a tensor's `rows` are in a part.

    >>> [len(rows_of(9, part, 4)) for part in range(4)]
    [3, 3, 3, 0]
    """
    each = -(-rows // parts)
    return range(min(part * each, rows), min((part + 1) * each, rows))


def is_sharded(tensor: Tensor) -> bool:
    """Return whether this process holds only its rows of a tensor (a `DTensor`)."""
    return hasattr(tensor, "to_local")


def held(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor: its rows of a sharded one."""
    rows: Tensor = getattr(tensor, "to_local")() if is_sharded(tensor) else tensor  # noqa: B009
    return rows


def pieces(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Return what the file of this worker holds of some tensors, on the CPU."""

    def piece(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or is_sharded(tensor):
            return held(tensor)
        rows = rows_of(len(tensor), world.shard, world.shards)
        return tensor[rows.start : rows.stop]

    return {name: piece(tensor.detach()).to("cpu").contiguous() for name, tensor in tensors.items()}


class Parts:
    """The files of a checkpoint that hold what `name` stands for; at most one is open at a time.

    Raises `CheckpointError` where one is not named, is missing, damaged, or no safetensors file.
    """

    def __init__(self, directory: Path, files: Mapping[str, FileDigest], name: str) -> None:
        self._files = files
        self.paths = [directory / each for each in part_names(files, name)]
        if not self.paths:
            raise CheckpointError(f"{directory}: its record names no {name}")
        self._open: tuple[int, Mapping[str, Any]] | None = None

    def open(self, part: int) -> Mapping[str, Any]:
        """Return the tensors of a file, verified, by name; of those with rows, what gives rows by [a:b]."""
        if self._open is None or self._open[0] != part:
            self._open = None
            self._open = part, self._read(self.paths[part])
        return self._open[1]

    def _read(self, path: Path) -> Mapping[str, Any]:
        digest = self._files[path.name]
        try:
            if isinstance(path, RemotePath):
                return load(read_file(path, digest))
            check_file(path, digest)
            file = safe_open(path, framework="pt")
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: piece if piece.get_shape() else file.get_tensor(name) for name, piece in slices.items()
            }
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not a safetensors file: {error}") from error


def form(stored: Any) -> tuple[tuple[int, ...], torch.dtype]:
    """Return shape and type of what `Parts.open` has given for a name."""
    if isinstance(stored, Tensor):
        return tuple(stored.shape), stored.dtype
    return tuple(stored.get_shape()), stored[:0].dtype


@torch.no_grad()
def fill(wanted: Mapping[str, Tensor], parts: Parts, world: World) -> None:
    """Fill the tensors `wanted`, by name, or this worker's rows of them, from files of exactly these.

    Raises `CheckpointError` for files that hold others.
    """
    number = len(parts.paths)

    def mine(tensor: Tensor) -> range:
        return rows_of(len(tensor), world.shard, world.shards if is_sharded(tensor) else 1)

    for part, path in enumerate(parts.paths):
        here = {name: rows_of(len(t), part, number) for name, t in wanted.items() if t.ndim}
        common = {
            name: range(max(rows.start, mine(wanted[name]).start), min(rows.stop, mine(wanted[name]).stop))
            for name, rows in here.items()
        }
        # What has no rows is in every file, so one file is enough for a worker that holds no rows.
        if not any(common.values()) and part != nearest(parts, world):
            continue
        stored = parts.open(part)
        expected = {
            name: (tuple(t.shape if t.ndim == 0 else (len(here[name]), *t.shape[1:])), t.dtype)
            for name, t in wanted.items()
        }
        if {name: form(each) for name, each in stored.items()} != expected:
            raise CheckpointError(f"{path}: holds the weights of another model than the configured one")
        for name, tensor in wanted.items():
            if tensor.ndim == 0:
                tensor.copy_(stored[name])
            elif rows := common[name]:
                at, first = here[name].start, mine(tensor).start
                held(tensor)[rows.start - first : rows.stop - first] = stored[name][
                    rows.start - at : rows.stop - at
                ]


def nearest(parts: Parts, world: World) -> int:
    """Return the number of the file whose rows are about those of this worker."""
    return world.shard * len(parts.paths) // world.shards
