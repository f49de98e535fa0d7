"""Data sets of the Hugging Face hub and local files: found, and identified by their content."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError, DataError
from raysweep.files import write_atomic
from raysweep.languages.cache import cache_directory

_HASH_BYTES = 1 << 22
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
#: The remedy for local files that are not there.
TEXT_OF_GRAMMAR = (
    "correct the path, or make what is missing first (the comment at the top of the sweep file may say how; "
    "`raysweep language text GRAMMAR.yaml -o FOLDER` writes text and labelled tables from a grammar)"
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?\Z")


def local_files(source: str, endings: Collection[str]) -> list[str]:
    """Return the local files of a source (a file, folder or pattern), sorted; [] where it names none.

    Of a folder, only files with one of `endings` are meant; raises `ConfigError` where it has none.
    """
    path = os.path.abspath(os.path.expanduser(source))
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        found = [str(p) for p in Path(path).rglob("*") if p.is_file() and p.suffix in endings]
        if not found:
            raise ConfigError(f"source: folder {path} holds no {', '.join(endings)} files")
    else:
        found = [p for p in glob.glob(path, recursive=True) if os.path.isfile(p)]
    return sorted(found)


def local_rows(loader: str, files: Sequence[str], **options: Any) -> Any:
    """Return the rows of local files, streamed by a loader of `datasets`: csv, json, parquet or text.

    Nothing leaves this machine; `datasets.load_dataset` would count the reading on a server.
    """
    import datasets

    return getattr(datasets.Dataset, f"from_{loader}")(list(files), streaming=True, **options)


def hub_commit(name: str, revision: str | None, endings: Collection[str]) -> str:
    """Return the commit of a data set on the hub; the hub is not asked where `revision` is one.

    Raises `ConfigError` for what is no name of a data set, `DataError` where the hub does not know it or
    cannot be reached.
    """
    if not _HUB_NAME.match(name) or Path(name).suffix in endings:
        raise ConfigError(f"source: there is no file, folder or pattern '{name}'; {TEXT_OF_GRAMMAR}")
    if revision is not None and _COMMIT.match(revision):
        return revision
    import huggingface_hub

    try:
        return str(huggingface_hub.HfApi().dataset_info(name, revision=revision).sha)
    except Exception as error:  # network, name, login and server each have errors of their own
        raise DataError(
            f"source: '{name}' is no local file, and the Hugging Face hub did not name its data set: "
            f"{brief(error)}; correct the name (a local path may begin with ./), or download the data and "
            "name its files as source; with a commit as revision the hub is not asked"
        ) from error


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
