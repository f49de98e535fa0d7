"""The command lines that launch a sweep once more."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from raysweep.sweep.config import Sweep
from raysweep.sweep.provenance import last_launch
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


def relaunch_command(sweep: Sweep) -> str:
    """Return the command that launches a stored sweep again, with its last overrides and cluster."""
    launched = last_launch(sweep.directory)
    words = [] if launched is None else [str(word) for word in launched["argv"]]
    given = dict[str, list[str]]()
    for k, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("--set", "--address"):
            given.setdefault(option, []).extend([value] if equals else words[k + 1 : k + 2])
    address = given.get("--address", [None])[-1]
    return launch_command(sweep, file=str(sweep.path), overrides=given.get("--set", ()), address=address)
