"""The format of stored results: a sweep's folder says which version of raysweep can read it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from raysweep.errors import DataError
from raysweep.version import __version__

#: File in a sweep's folder that keeps its latest launch.
STORED = "sweep.json"

#: The first version of raysweep that writes results as this one does; raise it when their format changes.
FORMAT = "0.2"

#: Results of 0.1 do not say their format.
_FIRST = "0.1"

_HEAD = re.compile(rb'\{\s*"format"\s*:\s*"([^"]*)"')


def check_format(directory: Path) -> None:
    """Raise `DataError` if the folder of a sweep holds results that this version cannot read."""
    path = directory / STORED
    try:
        with path.open("rb") as file:
            head = _HEAD.match(file.read(256))
        if head is not None:
            found = head[1].decode(errors="replace")
        else:
            content = json.loads(path.read_bytes())
            found = content.get("format", _FIRST) if isinstance(content, dict) else FORMAT
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return  # there is no sweep, or a damaged one, which says nothing of its format
    if found != FORMAT:
        raise DataError(
            f"{directory}: results of raysweep {found}, which raysweep {__version__} cannot read; "
            f"open them with raysweep {found}, or name another folder for new results (--storage)"
        )
