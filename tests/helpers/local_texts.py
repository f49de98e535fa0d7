"""Documents of this machine in files of every kind that a corpus is read from."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

from helpers import local_models


@functools.cache
def documents() -> tuple[str, ...]:
    """Return some hundred paragraphs of the standard library's documentation, all different."""
    return tuple(local_models.docstrings())


def write(folder: Path, texts: tuple[str, ...] | list[str], name: str = "texts") -> dict[str, Path]:
    """Write the texts as .txt (blank lines between them), .jsonl and .parquet; return the paths by ending."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {ending: folder / f"{name}.{ending}" for ending in ("txt", "jsonl", "parquet")}
    paths["txt"].write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    lines = [json.dumps({"id": k, "text": text}) for k, text in enumerate(texts)]
    paths["jsonl"].write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = pyarrow.table({"text": list(texts), "id": list(range(len(texts)))})
    pyarrow.parquet.write_table(table, paths["parquet"], row_group_size=50)
    return paths


@functools.cache
def files() -> dict[str, Path]:
    """Return the paths of the documents by ending; they are gone when the process ends."""
    return write(local_models.folder() / "texts", documents())
