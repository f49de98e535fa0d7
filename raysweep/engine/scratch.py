"""Folders that only one driver needs: Ray's own bookkeeping and the session of an embedded Ray.

Nothing in them is needed again, because the ledger holds the results.  The driver locks each.  A folder with
a lock that nobody holds was left behind by a killed driver and can be removed.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from raysweep.sweep import SweepLock
from raysweep.sweep.lock import holder

_LOCKS: dict[Path, SweepLock] = {}


def make_scratch(directory: Path) -> Path:
    """Remove the folders in `directory`/scratch that nobody holds, and make one for this process."""
    root = directory / "scratch"
    remove_left(root.glob("*"))
    scratch = root / uuid.uuid4().hex[:12]
    claim(scratch)
    return scratch


def claim(folder: Path) -> None:
    """Lock a folder for this process, and make it if it is new."""
    _LOCKS[folder] = SweepLock(folder).acquire()


def remove_left(folders: Iterable[Path]) -> None:
    """Remove the folders that nobody holds."""
    for left in folders:
        if holder(left) is None:
            shutil.rmtree(left, ignore_errors=True)


def remove_scratch(scratch: Path) -> None:
    """Remove a folder that this process has claimed."""
    _LOCKS.pop(scratch).release()
    shutil.rmtree(scratch, ignore_errors=True)
