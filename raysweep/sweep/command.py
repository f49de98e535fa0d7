"""The command line that launches a sweep once more."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from raysweep.sweep.config import Sweep
from raysweep.sweep.storage import storage_flag


def launch_command(
    sweep: Sweep, *, file: str, overrides: Sequence[str] = (), address: str | None = None
) -> str:
    """Return the command that launches this sweep again with the same settings, from the same folder.

    `file`, `overrides` and `address` are those of the launch.  The storage and the tracking URI are named
    only if the environment does not name them.
    """
    words = ["raysweep", "launch", file]
    for text in overrides:
        words += ["--set", text]
    if address is not None:
        words += ["--address", address]
    uri = sweep.tracking_uri
    if uri is not None and uri != os.environ.get("MLFLOW_TRACKING_URI"):
        words += ["--tracking-uri", uri]
    return shlex.join(words) + storage_flag(sweep.storage)
