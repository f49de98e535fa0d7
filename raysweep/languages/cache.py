"""The folder for work that languages do once: tokens of corpora, hashes of large files, kept tokens."""

from __future__ import annotations

import os
from pathlib import Path

from raysweep.errors import ConfigError


def cache_directory() -> Path:
    """Return `$RAYSWEEP_CACHE` or `~/.cache/raysweep`, the folder of files that can be made again.

    Raises `ConfigError` where there is no such home.
    """
    given = os.environ.get("RAYSWEEP_CACHE")
    path = os.path.expanduser(given or "~/.cache/raysweep")
    if path.startswith("~"):
        raise ConfigError(f"RAYSWEEP_CACHE: there is no home '{path}'; set it to a folder of this machine")
    return Path(path).absolute()
