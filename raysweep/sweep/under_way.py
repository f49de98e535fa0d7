"""The work that is under way: a small file in the folder of a sweep at work, for `raysweep status`.

    under-way.json    runs at work with their states and steps, the share of all work, and the time left

It is written again every few seconds, and goes with the launch.  That of a launch that was killed is not
looked at, because its lock has no holder.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysweep.files import write_atomic
from raysweep.remote import RemotePath
from raysweep.sweep.run_state import LaunchState, RunState
from raysweep.sweep.time_left import AT_WORK
from raysweep.sweep.told import OVER

log = logging.getLogger("raysweep.sweep")

_FILE = "under-way.json"
#: Seconds between two writes, on a disk and in an object store, where each is a request that costs.
_EVERY, _EVERY_THERE = 3.0, 20.0


@dataclass(frozen=True)
class UnderWay:
    """The work that is under way; nothing of it is known where no launch has told."""

    #: State and step by run id.
    runs: dict[str, tuple[str, int]] = field(default_factory=dict)
    share: float | None = None
    #: The least and the most seconds to the end.
    left: tuple[float, float] | None = None

    @classmethod
    def read(cls, directory: Path) -> UnderWay:
        """Return what the launch at work in a sweep's folder has told last."""
        try:
            content: dict[str, Any] = json.loads((directory / _FILE).read_bytes())
        except FileNotFoundError:
            return cls()
        left = content["left"]
        runs = {run_id: (state, step) for run_id, (state, step) in content["runs"].items()}
        return cls(runs, content["share"], None if left is None else (left[0], left[1]))

    def put(self, rows: Iterable[RunState]) -> None:
        """Put states and steps into the rows of the runs that they are of, where a row is not over."""
        for row in rows:
            told = self.runs.get(row.run_id)
            if told is not None and row.state not in OVER:
                row.state, row.step = told[0], max(row.step, told[1])  # type: ignore[assignment]


class Teller:
    """Writes what a launch is doing while it is entered."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._every = _EVERY_THERE if isinstance(directory, RemotePath) else _EVERY
        self._next = 0.0

    def __enter__(self) -> Teller:
        self._path.unlink(missing_ok=True)  # of a launch that was killed
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)

    def __call__(self, state: LaunchState) -> None:
        """Write a state, unless one was written just before."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        runs = {row.run_id: (row.state, row.step) for row in state.runs if row.state in AT_WORK}
        content = {"runs": runs, "share": state.share, "left": state.left}
        try:
            write_atomic(self._path, json.dumps(content).encode())
        except OSError as error:
            log.warning("status does not tell what is under way from now on: %s", error)
            self._next = math.inf
