"""Requests of a person to stop a launch, or some of its runs, through the storage.

    <storage>/<sweep>/cancel.json    the launch that is asked to stop, by the time at which it took its lock

A run is cancelled by a failure in its ledger, which its trial heeds: it leaves a checkpoint and goes.  So a
launch leaves the run alone until a retry, as any other failed run.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from raysweep.files import write_atomic
from raysweep.sweep.config import Sweep
from raysweep.sweep.lock import Holder
from raysweep.sweep.records import CANCELLED
from raysweep.sweep.run import RunSpec
from raysweep.sweep.starts import unfinished

_REQUEST = "cancel.json"


def request(directory: Path, launch: Holder) -> None:
    """Ask a launch of the sweep in a folder to stop."""
    who = f"process {os.getpid()} on {socket.gethostname()}"
    write_atomic(directory / _REQUEST, json.dumps({"launch": launch.started, "by": who}).encode())


def requested(directory: Path, started: float) -> str | None:
    """Return who has asked the launch that took its lock at this time to stop; None for nobody."""
    try:
        asked = json.loads((directory / _REQUEST).read_bytes())
        return str(asked["by"]) if asked["launch"] == started else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def withdraw(directory: Path) -> None:
    """Remove a request, if there is one; what stays is for a launch that has ended."""
    with suppress(OSError):
        (directory / _REQUEST).unlink(missing_ok=True)


def cancel_runs(sweep: Sweep, runs: Sequence[RunSpec]) -> list[str]:
    """Cancel those of some runs of a sweep that are not finished; return their ids."""
    ledger = sweep.ledger()
    # A run that waits for another one is unfinished among all runs, not alone.
    left = set(unfinished(sweep))
    cancelled = [spec for spec in runs if spec.run_id in left]
    for spec in cancelled:
        ledger.run(spec).record_failure(f"cancelled from {socket.gethostname()}", error=CANCELLED)
    return [spec.run_id for spec in cancelled]
