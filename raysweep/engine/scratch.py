"""The folder of Ray's own bookkeeping: one for each driver, removed by this driver or by the next one.

Nothing in it is needed again, because the ledger holds the results.  The driver locks its folder.  A folder
without a lock was left behind by a killed driver and can be removed.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from raysweep.sweep import SweepLock
from raysweep.sweep.lock import holder

_LOCKS: dict[Path, SweepLock] = {}


def make_scratch(directory: Path) -> Path:
    """Remove the folders in `directory`/scratch that nobody holds, and make one for this process."""
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
