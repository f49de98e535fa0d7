"""The part of a sweep that goes to another machine: its file, and the files that it extends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raysweep.errors import ConfigError
from raysweep.registry import Config
from raysweep.sweep.check import is_path
from raysweep.sweep.config import Sweep
from raysweep.sweep.document import Problems
from raysweep.sweep.reading import read_file


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """A sweep file and the files that it extends, in their places relative to one another."""

    #: The folder from which the places start.
    root: Path
    #: Relative places; the sweep file itself is the first.
    files: tuple[Path, ...]

    @classmethod
    def of(cls, file: Path) -> Shipment:
        """Return the shipment of a sweep file.

        Its places start from the folder of this process if that holds all files, so that messages name
        them as they are named here.

        Raises `ConfigError` for a file that cannot be read, or that extends one by an absolute path.
        """
        read: list[Path] = []
        read_file(file, Problems(), files=read)
        paths = [Path(os.path.abspath(path)) for path in dict.fromkeys(read)]
        here = Path.cwd()
        if not all(path.is_relative_to(here) for path in paths):
            here = Path(os.path.commonpath([path.parent for path in paths]))
        found = cls(root=here, files=tuple(path.relative_to(here) for path in paths))
        with TemporaryDirectory() as folder:
            found.copy(Path(folder))
            again: list[Path] = []
            read_file(Path(folder) / found.files[0], Problems(), files=again)
            outside = [path for path in again if not path.is_relative_to(folder)]
        if outside:
            raise ConfigError(
                f"{file}: extends: {outside[0]} is an absolute path, which is not there on a cluster; "
                "write it relative to the file that extends it"
            )
        return found

    def copy(self, folder: Path) -> None:
        """Copy the files into an empty folder, each to its place."""
        for place in self.files:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / place, folder / place)


def local_paths(sweep: Sweep) -> tuple[list[str], list[str]]:
    """Return the files and folders of this machine that a sweep names: relative ones, and absolute ones.

    Each is `section.field: path`.  What lies in the sweep's storage is left out.
    """
    written = {os.path.abspath(text) for text in _texts(sweep.config) if text.startswith("/")}
    relative, absolute = dict[str, None](), dict[str, None]()
    for spec in sweep.runs:
        parts: dict[str, Config] = {"language": spec.language, "model": spec.model}
        parts |= {"algorithm": spec.algorithm, **spec.evaluations}
        named = [pair for name, part in parts.items() for pair in _paths(part, name)]
        if spec.source is not None and spec.source.folder:
            named.append(("init_from.run", spec.source.folder))
        for field, path in named:
            if not Path(path).is_relative_to(sweep.storage):
                (absolute if path in written else relative)[f"{field}: {path}"] = None
    return list(relative), list(absolute)


def _paths(config: Config, name: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of a configuration that name a file or folder, and the absolute path of each."""
    for key in type(config).model_fields:
        value = getattr(config, key)
        parts = value if isinstance(value, tuple | list) else [value]
        for part in parts:
            if isinstance(part, Config):
                yield from _paths(part, f"{name}.{key}")
        may_be = is_path(type(config), key) or key in getattr(type(config), "hub_or_path", ())
        if may_be and isinstance(value, str | Path) and str(value).startswith("/"):
            yield f"{name}.{key}", str(value)


def _texts(data: Any) -> Iterator[str]:
    """Yield all texts in plain data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _texts(value)
    elif isinstance(data, Sequence):
        for value in data:
            yield from _texts(value)
