"""The phases of a launch, with their seconds and processor time, for `raysweep status --time`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Self

from raysweep.processes import PROC, Watch, age
from raysweep.sweep.provenance import add_phases
from raysweep.sweep.spent import phase

#: Seconds between two looks at the processes.  A look reads a small file for each process of the machine.
_PERIOD = 1.0


def loading() -> dict[str, Any]:
    """Return the phase `load` of a program that begins a launch now: the time since its process started.

    Where the system does not tell that, its seconds are those of processor time, the least that they can be.
    """
    used, since = time.process_time(), age()
    return phase("load", used if since is None else since, used)


class Phases:
    """Counts the phases of a launch while it is entered: `start`, and those that `begin` names.

    At the end they are added to the record of the launch, unless it has never come to its second one.
    Processor time is that of this process and of all that descend from it, such as those of a Ray of its own;
    it is None where the system has no /proc.  Processes of other nodes are not in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._watch = Watch(os.getpid(), period=_PERIOD) if PROC.joinpath("self", "stat").exists() else None
        self._name, self._last = "start", self._now()
        self._ended: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        if self._watch is not None:
            self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ended:
            self.begin("")
            add_phases(self._directory, self._ended)
        if self._watch is not None:
            self._watch.close()

    def _now(self) -> tuple[float, float | None]:
        if self._watch is None:
            return time.monotonic(), None
        self._watch.look()
        return time.monotonic(), self._watch.samples[-1].cpu_seconds

    def begin(self, name: str) -> None:
        """Begin a phase, and so end the one before."""
        (before, used), self._last = self._last, self._now()
        after, using = self._last
        cpu_seconds = None if used is None or using is None else using - used
        self._ended.append(phase(self._name, after - before, cpu_seconds))
        self._name = name
