"""Sources of documents: a hub data set or local files, streamed through `datasets`.

Documents keep the order of the source; local files are read in the order of their sorted paths.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError, DataError
from raysweep.files import write_atomic
from raysweep.languages.cache import cache_directory
from raysweep.languages.corpus.fields import CorpusFields

#: Ending -> the loader of `datasets` that reads it.
FORMATS = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}

_READ_ROWS = 256  # of the source at a time
_HASH_BYTES = 1 << 22
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?\Z")


@dataclass(frozen=True)
class Source:
    """A source that was found: its loader and files, or its name and commit on the hub."""

    config: CorpusFields
    loader: str
    files: tuple[str, ...]
    #: Plain data that determines the rows, independent of file names.
    identity: dict[str, Any]

    def documents(self, start: int = 0) -> Iterator[str]:
        """Yield the documents from number `start` on; "" for one without text.

        Raises `DataError` for a source that cannot be read.
        """
        each, joined = self.config.rows_per_document, []
        limit = self.config.documents
        for text in self._rows(start * each, None if limit is None else (limit - start) * each):
            if each == 1:
                yield text
                continue
            joined.append(text)
            if len(joined) == each:
                yield "\n".join(joined)
                joined = []
        if joined:
            yield "\n".join(joined)

    def size(self) -> int | None:
        """Return the number of rows of the source where that is known without reading them."""
        if self.loader == "parquet":
            import pyarrow.parquet

            return sum(pyarrow.parquet.read_metadata(path).num_rows for path in self.files)
        if self.loader == "hub":
            splits = self._open().info.splits or {}
            split = splits.get(self.config.split)
            return None if split is None else split.num_examples
        return None

    def text_bytes(self) -> int | None:
        """Return the approximate number of bytes of text, None where it is unknown."""
        return sum(map(os.path.getsize, self.files)) if self.loader in ("text", "json") else None

    def _open(self) -> Any:
        import datasets

        config = self.config
        if self.loader == "hub":
            commit = self.identity["commit"]
            return datasets.load_dataset(
                config.source, config.subset, split=config.split, revision=commit, streaming=True
            )
        options: dict[str, Any] = {}
        if self.loader == "text":
            options["sample_by"] = "document" if config.document == "file" else config.document
        return datasets.load_dataset(
            self.loader, data_files=list(self.files), split="train", streaming=True, **options
        )

    def _rows(self, start: int, count: int | None) -> Iterator[str]:
        """Yield the text of `count` rows from number `start` on."""
        field = "text" if self.loader == "text" else self.config.text_field
        if count is not None and count <= 0:
            return
        try:
            rows = self._open()
            columns = rows.column_names
            if columns is not None and field in columns and len(columns) > 1:
                rows = rows.select_columns([field])
            rows = rows.skip(start) if start else rows
            rows = rows if count is None else rows.take(count)
            for table in rows.with_format("arrow").iter(_READ_ROWS):
                if field not in table.column_names:
                    raise DataError(
                        f"text_field: the source has no '{field}', but {', '.join(table.column_names)}"
                    )
                for text in table[field].to_pylist():
                    if text is not None and not isinstance(text, str):
                        raise DataError(f"text_field: '{field}' holds {type(text).__name__}, not text")
                    yield text or ""
        except DataError:
            raise
        except Exception as error:  # the readers of `datasets` raise errors of many classes
            if isinstance(error, OSError) and self.loader != "hub":
                raise
            raise DataError(f"source: {self.config.source} cannot be read: {brief(error)}") from error


def resolve(config: CorpusFields) -> Source:
    """Find the source of a corpus and read only what identifies it.

    The content identifies local files, the commit a hub data set.  Raises `ConfigError` for a source that
    does not exist, `DataError` where the hub cannot be asked.
    """
    files = _local_files(config.source)
    if not files:
        return _on_the_hub(config)
    endings = sorted({Path(path).suffix for path in files})
    if len(endings) != 1 or endings[0] not in FORMATS:
        raise ConfigError(
            f"source: {config.source} holds {', '.join(e or 'files without ending' for e in endings)}; "
            f"files of one kind are read ({', '.join(FORMATS)}); choose with a pattern such as texts/*.txt"
        )
    for name in ("subset", "revision"):
        if getattr(config, name) is not None:
            raise ConfigError(f"{name}: belongs to a data set on the hub, not to local files; remove it")
    loader = FORMATS[endings[0]]
    identity = {"format": loader, "files": [content_digest(path) for path in files]}
    if loader == "text":
        identity["document"] = config.document
    else:
        identity["text_field"] = config.text_field
    return Source(config, loader, tuple(files), identity)


def _local_files(source: str) -> list[str]:
    """Return the local files of a source, sorted; [] where it names none."""
    path = os.path.abspath(os.path.expanduser(source))
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        found = [str(p) for p in Path(path).rglob("*") if p.is_file() and p.suffix in FORMATS]
        if not found:
            raise ConfigError(f"source: folder {path} holds no {', '.join(FORMATS)} files")
    else:
        found = [p for p in glob.glob(path, recursive=True) if os.path.isfile(p)]
    return sorted(found)


def _on_the_hub(config: CorpusFields) -> Source:
    name = config.source
    if not _HUB_NAME.match(name) or Path(name).suffix in FORMATS:
        raise ConfigError(
            f"source: there is no file, folder or pattern '{name}', and no data set is called so"
        )
    commit = config.revision
    if commit is None or not _COMMIT.match(commit):
        import huggingface_hub

        try:
            commit = huggingface_hub.HfApi().dataset_info(name, revision=config.revision).sha
        except Exception as error:  # network, name, login and server each have errors of their own
            raise DataError(
                f"source: '{name}' is no local file, and the Hugging Face hub did not name its data set: "
                f"{brief(error)}; correct the name, or download the data and name its files as source; with "
                "a commit as revision the hub is not asked"
            ) from error
    identity = {
        "format": "hub",
        "name": name,
        "commit": commit,
        "subset": config.subset,
        "split": config.split,
        "text_field": config.text_field,
    }
    return Source(config, "hub", (), identity)


def brief(error: Exception) -> str:
    """Return class and first line of another library's error."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), 'no reason given')}"


def content_digest(path: str) -> str:
    """Return the sha256 of a file, computed once for a path, size and time of change, then kept."""
    state = os.stat(path)
    stamp = {"path": path, "size": state.st_size, "changed_ns": state.st_mtime_ns}
    record = cache_directory() / "files" / f"{hashlib.sha256(path.encode()).hexdigest()[:32]}.json"
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        if {key: known[key] for key in stamp} == stamp:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError):
        pass  # no record, or a damaged one: the digest is computed
    with open(path, "rb") as file:
        value = hashlib.sha256()
        while block := file.read(_HASH_BYTES):
            value.update(block)
    write_atomic(record, json.dumps(stamp | {"sha256": value.hexdigest()}).encode())
    return value.hexdigest()
