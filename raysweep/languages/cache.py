"""The folder of what languages prepare once: tokens of corpora, hashes of large files, kept tokens."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return the folder of everything that can be made again: `$RAYSWEEP_CACHE` or `~/.cache/raysweep`."""
    given = os.environ.get("RAYSWEEP_CACHE")
    return Path(given or "~/.cache/raysweep").expanduser().absolute()
