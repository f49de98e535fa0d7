"""The folder for work that languages do once: tokens of corpora, hashes of large files, kept tokens."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return `$RAYSWEEP_CACHE` or `~/.cache/raysweep`, the folder of files that can be made again."""
    given = os.environ.get("RAYSWEEP_CACHE")
    return Path(given or "~/.cache/raysweep").expanduser().absolute()
