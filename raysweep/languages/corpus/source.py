"""Sources of documents: a hub data set or local files, streamed through `datasets`.

Documents keep the order of the source; local files are read in the order of their sorted paths.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError, DataError
from raysweep.languages.corpus.fields import CorpusFields
from raysweep.languages.sources import brief, content_digest, hub_commit, local_files, local_rows

#: Ending -> the loader of `datasets` that reads it.
FORMATS = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}

_READ_ROWS = 256  # of the source at a time

#: Text files, and characters of each, that are looked at for remarks.
_LOOKED_AT, _LOOKED_INTO = 8, 1_000_000


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

    def remarks(self) -> list[str]:
        """Return a sentence on each of the first text files that begins with one very long document."""
        between = {"paragraph": ("\n\n", "blank line"), "line": ("\n", "line break")}
        if self.loader != "text" or self.config.document not in between:
            return []
        separator, name = between[self.config.document]
        found = []
        for path in self.files[:_LOOKED_AT]:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_LOOKED_INTO + 1)
            if separator in text.strip() or not text.strip():
                continue
            lines = self.config.document == "paragraph" and "\n" in text.strip()
            remedy = (
                "set document: line if each line is one" if lines else f"put a {name} after each document"
            )
            where = f" in its first {_LOOKED_INTO:,} characters" if len(text) > _LOOKED_INTO else ""
            found.append(f"{path} has no {name}{where}, so all of that is one document; {remedy}")
        return found

    def text_bytes(self) -> int | None:
        """Return the approximate number of bytes of text, None where it is unknown."""
        return sum(map(os.path.getsize, self.files)) if self.loader in ("text", "json") else None

    def _open(self) -> Any:
        config = self.config
        if self.loader == "hub":
            import datasets

            commit = self.identity["commit"]
            return datasets.load_dataset(
                config.source, config.subset, split=config.split, revision=commit, streaming=True
            )
        options: dict[str, Any] = {}
        if self.loader == "text":
            options["sample_by"] = "document" if config.document == "file" else config.document
        return local_rows(self.loader, self.files, **options)

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
    files = local_files(config.source, FORMATS)
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


def _on_the_hub(config: CorpusFields) -> Source:
    identity = {
        "format": "hub",
        "name": config.source,
        "commit": hub_commit(config.source, config.revision, FORMATS),
        "subset": config.subset,
        "split": config.split,
        "text_field": config.text_field,
    }
    return Source(config, "hub", (), identity)
