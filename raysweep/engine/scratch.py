"""The folder of Ray's own bookkeeping: one a driver, removed with it or by the next driver.

Nothing in it is needed again, because the ledger says what is done.  Its own process locks
each folder, so a folder without a lock was left behind by a killed driver.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from raysweep.sweep import SweepLock
from raysweep.sweep.lock import holder

_LOCKS: dict[Path, SweepLock] = {}


def make_scratch(directory: Path) -> Path:
    """Make a folder in `directory`/scratch for this process, after removing those that nobody holds."""
    root = directory / "scratch"
    for left in root.glob("*"):
        if holder(left) is None:
            shutil.rmtree(left, ignore_errors=True)
    scratch = root / uuid.uuid4().hex[:12]
    _LOCKS[scratch] = SweepLock(scratch).acquire()
    return scratch


def remove_scratch(scratch: Path) -> None:
    """Remove a folder that `make_scratch` made."""
    _LOCKS.pop(scratch).release()
    shutil.rmtree(scratch, ignore_errors=True)
