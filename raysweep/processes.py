"""The processes of a launch, read from /proc: who started whom, their CPU time and their memory.

A process is known by its number and its start, because numbers are used again.  CPU time is what a process
has used itself.  That of a process that ends between two samples is known up to the last one.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

PROC = Path("/proc")
#: Ticks a second of the times in /proc.
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process at one moment."""

    pid: int
    parent: int
    #: Ticks from the start of the machine to that of the process.
    started: int
    #: CPU seconds that it has used itself.
    seconds: float
    #: Bytes of resident memory.
    resident: int
    #: One letter, as `ps` shows it.
    state: str

    @property
    def key(self) -> tuple[int, int]:
        """Return what no other process has."""
        return self.pid, self.started


def parse(line: str) -> Process:
    """Return the process of a line of /proc/PID/stat.

    >>> parse("7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 900 0 3 0").seconds
    2.0
    """
    pid, _, rest = line.partition(" ")
    # The name in brackets may hold brackets and blanks.
    fields = rest.rpartition(")")[2].split()
    return Process(
        pid=int(pid),
        state=fields[0],
        parent=int(fields[1]),
        seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        started=int(fields[19]),
        resident=int(fields[21]) * _PAGE,
    )


def age() -> float | None:
    """Return the seconds since this process was started; None where the system does not tell."""
    try:
        started = parse(PROC.joinpath("self", "stat").read_text()).started
    except OSError:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / _TICKS


def snapshot(proc: Path = PROC) -> dict[int, Process]:
    """Return all processes of this machine that have not ended, by number."""
    found = {}
    for name in filter(str.isdecimal, os.listdir(proc)):
        # A process may end at any moment.
        with suppress(OSError), open(f"{proc}/{name}/stat", "rb", buffering=0) as file:
            process = parse(file.read().decode(errors="replace"))
            if process.state not in "ZX":
                found[process.pid] = process
    return found


def below(roots: Iterable[int], every: Mapping[int, Process]) -> list[Process]:
    """Return the processes with these numbers and all their descendants, parents first."""
    children: dict[int, list[int]] = {}
    for process in every.values():
        children.setdefault(process.parent, []).append(process.pid)
    waiting, found = [pid for pid in roots if pid in every], dict[int, Process]()
    for pid in waiting:
        if pid not in found:
            found[pid] = every[pid]
            waiting += sorted(children.get(pid, []))
    return list(found.values())


def title(pid: int, proc: Path = PROC) -> str:
    """Return the command line of a process, which Ray sets to the task or actor; "" if it has ended.

    Of a program, it is the file's name alone, without its folder and its arguments; of a module that Python
    runs, also the module.
    """
    try:
        text = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    first, *rest = (word.strip() for word in text.split("\0"))
    if first.startswith("ray::"):
        return first
    options = list(takewhile(lambda word: word.startswith("-"), rest))
    module = ["-m", *rest[len(options) :][:1]] if options[-1:] == ["-m"] else []
    return " ".join([first.rpartition("/")[2], *module])


def shared_memory(pid: int, proc: Path = PROC) -> int:
    """Return the proportional set size of a process in bytes: memory that several share is divided."""
    with suppress(OSError):
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """All processes of a tree at one moment, those that have ended included in the CPU time."""

    #: Unix seconds.
    time: float
    cpu_seconds: float
    processes: int
    #: Resident bytes of the root alone, or of the only process that it guards.
    root: int
    #: Proportional set size of all processes in bytes; 0 where it was not measured.
    memory: int = 0


class Watch(threading.Thread):
    """Samples a process and its descendants until `close`.

    Descendants that lose their parent are followed further.  Memory is measured with `memory` alone, because
    it takes noticeable time.
    """

    def __init__(self, pid: int, *, period: float = 0.25, memory: bool = False, proc: Path = PROC) -> None:
        super().__init__(name="raysweep-watch", daemon=True)
        self._root, self._period, self._memory, self._proc = pid, period, memory, proc
        self._last: dict[tuple[int, int], Process] = {}
        self._ended = threading.Event()
        self.samples: list[Sample] = []

    def run(self) -> None:
        while not self._ended.wait(self._period):
            self.look()

    def look(self) -> list[Process]:
        """Take a sample and return the processes that are alive."""
        alive = self.alive()
        self._last.update((process.key, process) for process in alive)
        self.samples.append(
            Sample(
                time=time.time(),
                cpu_seconds=sum(process.seconds for process in self._last.values()),
                processes=len(alive),
                root=self._own(alive),
                memory=sum(shared_memory(p.pid, self._proc) for p in alive) if self._memory else 0,
            )
        )
        return alive

    def _own(self, alive: list[Process]) -> int:
        """Return the resident bytes of the root, or of the process that it does nothing but guard."""
        root = [process.resident for process in alive if process.pid == self._root]
        children = [process.resident for process in alive if process.parent == self._root]
        return max([*root, *(children if len(children) == 1 else [])], default=0)

    def alive(self) -> list[Process]:
        """Return the processes of the tree that have not ended."""
        every = snapshot(self._proc)
        known = [pid for pid, started in self._last if pid in every and every[pid].started == started]
        return below(known if self._last else [self._root], every)

    def close(self) -> None:
        """End the sampling."""
        self._ended.set()
        self.join()

    def cpu_at(self, moment: float) -> float:
        """Return the CPU seconds up to a moment in unix seconds, between two samples in proportion."""
        times = [sample.time for sample in self.samples]
        k = bisect_left(times, moment)
        if k in (0, len(times)):
            return self.samples[min(k, len(times) - 1)].cpu_seconds
        before, after = self.samples[k - 1], self.samples[k]
        share = (moment - before.time) / (after.time - before.time)
        return before.cpu_seconds + share * (after.cpu_seconds - before.cpu_seconds)
