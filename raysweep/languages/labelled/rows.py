"""Rows of labelled texts: found, read through `datasets`, and checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError, DataError
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.places import fault, place, shown
from raysweep.languages.quiet import quiet_tables
from raysweep.languages.sources import (
    TEXT_OF_GRAMMAR,
    brief,
    content_digest,
    hub_commit,
    local_files,
    local_rows,
)
from raysweep.registry import suggest

#: Ending -> the loader of `datasets` that reads it.
FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}

_READ_ROWS = 1024  # at a time

#: The column that pandas makes of the first one where rows are longer than the header.
_NAMELESS = "__index_level_0__"


@dataclass(frozen=True)
class Table:
    """A source that was found: the loader and the files of each split, or the commit on the hub."""

    config: DataTask
    loader: str
    files: Mapping[str, tuple[str, ...]]
    #: Plain data that determines the rows, independent of file names.
    identity: dict[str, Any]

    def rows(self, split: str) -> Rows:
        """Read a split; raises `DataError` for one without the columns or without rows."""
        task = self.config
        wanted = (*task.columns, task.label)
        columns: dict[str, list[Any]] = {name: [] for name in wanted}
        names: tuple[str, ...] | None = None
        try:
            with quiet_tables():
                table = self._open(split)
                for batch in table.iter(_READ_ROWS):
                    if _NAMELESS in batch:
                        raise ValueError("rows have more columns than the header")
                    missing = [name for name in wanted if name not in batch]
                    if missing:
                        raise self._missing(split, missing[0], list(batch))
                    for name in wanted:
                        columns[name] += batch[name]
            feature = (table.features or {}).get(task.label)
            names = tuple(getattr(feature, "names", None) or ()) or None
        except DataError:
            raise
        except StopIteration:
            pass  # `datasets` raises it for an empty file
        except Exception as error:  # the readers of `datasets` raise errors of many classes
            line = fault(self.loader, self.files.get(split, ()))
            unknown = f"{self.of(split)} is no table that can be read: {brief(error)}; write it again"
            raise DataError(f"source: {line or unknown}") from error
        if not columns[task.label]:
            raise DataError(f"source: {self.of(split)} has no rows; add some, or name another table")
        texts = [columns[name] for name in task.columns]
        return Rows(self, split, texts, columns[task.label], names, range(len(columns[task.label])))

    def of(self, split: str) -> str:
        """Return the file of a split, or the words for several files or a data set of the hub."""
        files = self.files.get(split, ())
        if len(files) == 1:
            return os.path.dirname(files[0]) if self.loader == "saved" else files[0]
        return f"'{split}' of {self.config.place}"

    def place(self, split: str, k: int) -> str:
        """Return the place of row `k` of a split, as a person counts it; it was read before."""
        if self.loader == "hub":
            return f"row {k + 1} of {self.of(split)}"
        return place(self.loader, self.files[split], k)

    def _missing(self, split: str, column: str, known: list[str]) -> DataError:
        field = "label" if column == self.config.label else "text"
        if self.loader == "csv" and len(known) == 1 and any(sign in known[0] for sign in ";\t"):
            remedy = "separate the columns by commas"
        else:
            remedy = f"set {field} to {'one of them' if len(known) > 1 else 'that'}{suggest(column, known)}"
        return DataError(
            f"{field}: {self.of(split)} has no column '{column}', but {', '.join(known)}; {remedy}"
        )

    def _open(self, split: str) -> Any:
        import datasets

        task = self.config
        if self.loader == "hub":
            subset = task.subset or task.glue
            commit = self.identity["commit"]
            return datasets.load_dataset(task.place, subset, split=split, revision=commit, streaming=True)
        if self.loader == "saved":
            return datasets.load_from_disk(os.path.dirname(self.files[split][0]))
        options: dict[str, Any] = {}
        if self.loader == "csv":
            # Otherwise "null" would be no text, and "007" the number seven.
            converters = dict.fromkeys((*task.columns, task.label), str)
            options = {"keep_default_na": False, "converters": converters}
        return local_rows(self.loader, self.files[split], **options)


@dataclass(frozen=True)
class Rows:
    """Rows of a split: texts by column, and labels as they stand in the source.

    `names` are the source's names of class numbers, if it has some; `numbers` count the rows in the source.
    """

    table: Table
    split: str
    texts: list[list[Any]]
    labels: list[Any]
    names: tuple[str, ...] | None
    numbers: Sequence[int]

    def __str__(self) -> str:
        return self.table.of(self.split)

    def kept(self, rows: Sequence[int]) -> Rows:
        """Return some of the rows."""
        return replace(
            self,
            texts=[[column[k] for k in rows] for column in self.texts],
            labels=[self.labels[k] for k in rows],
            numbers=[self.numbers[k] for k in rows],
        )

    def place(self, k: int) -> str:
        """Return the place of row `k` in the source, as a person counts it."""
        return self.table.place(self.split, self.numbers[k])

    def complete(self) -> list[bool]:
        """Return whether each row has texts and a label; raises `DataError` for what is no text."""
        for name, column in zip(self.table.config.columns, self.texts, strict=True):
            for k, text in enumerate(column):
                if text is not None and not isinstance(text, str):
                    raise DataError(
                        f"text: {self.place(k)} has {shown(text)} in '{name}', not text; write it in quotes, "
                        "or name another column"
                    )
        return [
            not _empty(label) and not any(map(_empty, texts))
            for label, *texts in zip(self.labels, *self.texts, strict=True)
        ]

    def lack(self, k: int) -> str:
        """Return the field and the words for what incomplete row `k` lacks."""
        if _empty(self.labels[k]):
            return (
                f"label: {self.place(k)} has no label: '{self.table.config.label}' is {shown(self.labels[k])}"
            )
        columns = zip(self.table.config.columns, self.texts, strict=True)
        name, text = next((name, column[k]) for name, column in columns if _empty(column[k]))
        return f"text: {self.place(k)} has an empty text: '{name}' is {shown(text)}"


def _empty(value: Any) -> bool:
    """Return whether a cell is empty: null, not a number, or text without a letter."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def find(task: DataTask) -> Table:
    """Find the source of a task and read only what identifies it.

    The content identifies local files, the commit a hub data set.  Raises `ConfigError` for a source that
    does not exist or has other splits, `DataError` where the hub cannot be asked.
    """
    splits = [task.train] if task.reported is None else [task.train, task.reported]
    if len(set(splits)) < len(splits):
        raise ConfigError(f"test: '{task.train}' is what is learnt from; name another split, or set held_out")
    files = None if task.source is None else _local(task, splits)
    if files is None:
        identity = {"format": "hub", "name": task.place, "subset": task.subset or task.glue, "splits": splits}
        return Table(task, "hub", {}, identity | {"commit": hub_commit(task.place, task.revision, FORMATS)})
    for name in ("subset", "revision"):
        if getattr(task, name) is not None:
            raise ConfigError(f"{name}: belongs to a data set on the hub, not to local files; remove it")
    endings = sorted({Path(path).suffix for paths in files.values() for path in paths})
    loader = "saved" if endings == [".arrow"] else FORMATS.get(endings[0]) if len(endings) == 1 else None
    if loader is None:
        raise ConfigError(
            f"source: {task.place} holds {', '.join(e or 'files without ending' for e in endings)}; files of "
            f"one kind are read: {', '.join(FORMATS)}, or a folder of datasets' save_to_disk"
        )
    digests = {split: [content_digest(path) for path in files[split]] for split in splits}
    if loader == "saved":
        digests = {split: [*digests[split], _features(files[split][0])] for split in splits}
    return Table(task, loader, files, {"format": loader, "splits": [digests[split] for split in splits]})


def _local(task: DataTask, splits: list[str]) -> dict[str, tuple[str, ...]] | None:
    """Return the local files of each split; None where the source is no local one."""
    folder = Path(os.path.abspath(os.path.expanduser(task.place)))
    if os.path.isdir(folder) and not (folder / "state.json").is_file():
        saved = (folder / "dataset_dict.json").is_file()
        return {split: _arrow(folder / split) if saved else _of_split(folder, split) for split in splits}
    files = _arrow(folder) if os.path.isdir(folder) else tuple(local_files(task.place, FORMATS))
    if not files:
        return None
    if len(splits) > 1:
        raise ConfigError(
            f"test: {task.place} holds the rows of one split; report on a share of them with held_out: 0.1, "
            f"or name a folder with {splits[0]}.* and {splits[1]}.*"
        )
    return {splits[0]: files}


def _features(shard: str) -> str:
    """Return the digest of the columns of a saved split, which name its classes."""
    features = _saved(Path(shard).parent / "dataset_info.json", "features")
    return hashlib.sha256(json.dumps(features, sort_keys=True).encode()).hexdigest()


def _arrow(folder: Path) -> tuple[str, ...]:
    state = folder / "state.json"
    files: tuple[str, ...] = ()
    if state.is_file() and (folder / "dataset_info.json").is_file():
        # Other files may lie beside those that are read, from an earlier save.
        files = tuple(str(folder / file["filename"]) for file in _saved(state, "_data_files"))
    if not files:
        raise ConfigError(
            f"source: {folder} is no split that datasets' save_to_disk wrote; the folder above it holds "
            f"{', '.join(sorted(path.name for path in folder.parent.glob('*/'))) or 'no splits'}"
        )
    return files


def _saved(path: Path, field: str) -> Any:
    """Return a field of a file that `save_to_disk` wrote."""
    try:
        return json.loads(path.read_bytes())[field]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"source: {path} is damaged ({brief(error)}); save the data set again") from error


def _of_split(folder: Path, split: str) -> tuple[str, ...]:
    """Return the files `split.*` and `split-*.*` of a folder, or those that `split` names itself."""
    tables = sorted(path for path in folder.iterdir() if path.suffix in FORMATS)
    found = [path for path in tables if path.stem == split or path.stem.startswith(f"{split}-")]
    named = found or [path for path in sorted(folder.glob(split)) if path.is_file()]
    if not tables:
        raise ConfigError(
            f"source: {folder} holds no tables, such as {split}.csv, .jsonl or .parquet; {TEXT_OF_GRAMMAR}"
        )
    if not named:
        raise ConfigError(
            f"source: {folder} has no table of the split '{split}' ({split}.csv, .jsonl, .parquet); its "
            f"tables are {', '.join(path.name for path in tables)}; name one as `train` or `test`"
        )
    return tuple(map(str, named))
