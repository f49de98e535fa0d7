"""Launches of a sweep under faults: one is planned at a time, and hits at a random moment."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from raysweep.bench.chaos.faults import Deck, Fault, Scene
from raysweep.bench.chaos.verdict import DONE, FAILED, trouble
from raysweep.bench.harness import Say
from raysweep.bench.launching import last_words, start_launch
from raysweep.bench.record import Applied, Launch
from raysweep.errors import RunFailedError
from raysweep.processes import Watch, title

#: Seconds without a fault after which a launch that has not ended hangs.
PATIENCE = 300.0
#: Seconds for which a fault waits for its target.
TARGET_PATIENCE = 60.0
#: Seconds for the processes of a launch to leave after its end.
LEAVE = 30.0
#: Launches of a sweep before it is given up.
MOST_LAUNCHES = 100
#: The share of launches after which a file is torn or lost.
BETWEEN_SHARE = 0.5
#: Characters of a launch's last words that are kept.
_WORDS = 400
#: Addresses of machines, in the words of Ray and the system.
_ADDRESS = re.compile(r"\b(?!127\.0\.0\.1\b)\d{1,3}(?:\.\d{1,3}){3}\b")


class Ambush:
    """A fault that waits until its target appears, and from then on for a random time."""

    def __init__(self, fault: Fault, now: float, draws: random.Random) -> None:
        self.fault = fault
        self._random, self._within = draws, fault.within
        self._until = now + TARGET_PATIENCE
        self._due: float | None = None

    def due(self, scene: Scene, now: float) -> bool:
        """Return whether the fault is to hit now."""
        if self._due is None and self.fault.ready(scene):
            self._due = now + self._random.uniform(0.0, self._within)
        return self._due is not None and now >= self._due

    def missed(self) -> None:
        """Note that the target was gone; the next one is hit when it appears."""
        self._due, self._within = None, 0.0

    def hopeless(self, now: float) -> bool:
        """Return whether no target has come for too long."""
        return self._due is None and now > self._until


class Monkey:
    """Launches sweeps and applies faults to them: `kills`, or fewer if these take longer than `seconds`.

    The words of a launch go to `log`, which a full `volume` must not cut.
    """

    def __init__(
        self,
        kills: int,
        *,
        seconds: float,
        running: Deck,
        between: Deck,
        draws: random.Random,
        volume: Path | None,
        log: Path,
        say: Say,
    ) -> None:
        self._kills, self._until = kills, time.monotonic() + seconds
        self._running, self._between, self._random = running, between, draws
        self._volume, self._log, self._say = volume, log, say

    @property
    def left(self) -> int:
        """The number of faults to come."""
        return self._kills if time.monotonic() < self._until else 0

    def torment(self, file: Path, directory: Path) -> list[Launch]:
        """Launch a sweep, with its results in `directory`, until it is done and no fault follows.

        Raises `RunFailedError` if it is not done after many launches.
        """
        launches: list[Launch] = []
        torn: list[Applied] = []
        while len(launches) < MOST_LAUNCHES:
            # A fault that counts as a run's own failure is a finding; the sweep must go on all the same.
            again = ("--retry-failed",) if launches and launches[-1].code == FAILED else ()
            launches.append(self._launch(file, directory, torn, again))
            torn = self._disturb_files(directory)
            if launches[-1].code == DONE and not torn:
                return launches
        raise RunFailedError(f"bench chaos: a sweep is not done after {MOST_LAUNCHES} launches")

    def _disturb_files(self, directory: Path) -> list[Applied]:
        """Tear or remove a file of a sweep that nobody launches, or do nothing."""
        if not self.left or self._random.random() >= BETWEEN_SHARE:
            return []
        fault, scene = self._between.draw(), Scene(directory=directory, random=self._random)
        hit = fault.hit(scene)
        if hit is None:
            self._between.put_back(fault)
            return []
        self._kills -= 1
        self._say(f"  {fault.name}: {hit}")
        return [Applied(kind=fault.name, hit=hit, after=None)]

    def _launch(self, file: Path, directory: Path, torn: Sequence[Applied], options: Sequence[str]) -> Launch:
        """Launch the sweep once, with faults as long as it runs."""
        storage, log = directory.parent, self._log
        log.unlink(missing_ok=True)
        process = start_launch(file, storage, log, *options)
        began = time.monotonic()
        watch = Watch(process.pid)
        watch.start()
        try:
            applied, hangs = self._disturb(process, watch, directory)
            ended = time.monotonic()
            left = _leave(watch)
        finally:
            end(watch)
            watch.close()
        faults = (*torn, *applied)
        text = log.read_text(encoding="utf-8", errors="replace")
        bad = trouble(process.wait(), text, [fault.kind for fault in faults])
        bad = (f"not ended {PATIENCE:.0f} s after the last fault",) if hangs else bad
        if left:
            bad += (f"left behind after {LEAVE:.0f} s: {', '.join(left)}",)
        found = Launch(
            code=process.returncode,
            seconds=ended - began,
            leaving=time.monotonic() - ended,
            faults=faults,
            words=_ADDRESS.sub("…", last_words(log).replace(str(storage.parent), "…"))[-_WORDS:],
            trouble=bad,
        )
        self._say(f"  exit code {found.code} after {found.seconds:.0f} s; {'; '.join(bad) or 'ended well'}")
        return found

    def _disturb(
        self, process: subprocess.Popen[bytes], watch: Watch, directory: Path
    ) -> tuple[list[Applied], bool]:
        """Apply faults until the launch has ended; return them, and whether it hangs."""
        scene = Scene(
            directory=directory,
            random=self._random,
            volume=self._volume,
            driver=process,
            processes=watch.alive,
        )
        began = quiet_since = time.monotonic()
        applied: list[Applied] = []
        ambush: Ambush | None = None
        while process.poll() is None:
            now = time.monotonic()
            if now - quiet_since > PATIENCE:
                return applied, True
            if self.left and ambush is None:
                ambush = Ambush(self._running.draw(), now, self._random)
            if ambush is not None and ambush.due(scene, now):
                hit = ambush.fault.hit(scene)
                if hit is None:
                    ambush.missed()
                    continue
                self._kills -= 1
                applied.append(Applied(kind=ambush.fault.name, hit=hit, after=now - began))
                self._say(f"  {ambush.fault.name} after {now - began:.1f} s: {hit}")
                ambush, quiet_since = None, time.monotonic()
            elif ambush is not None and ambush.hopeless(now):
                self._running.put_back(ambush.fault)
                ambush = None
            time.sleep(0.1)
        if ambush is not None:
            self._running.put_back(ambush.fault)
        return applied, False


def _leave(watch: Watch) -> list[str]:
    """Wait for the processes of a launch to leave, and return the titles of those that do not."""
    deadline = time.monotonic() + LEAVE
    while (alive := watch.alive()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return sorted(title(process.pid) for process in alive)


def end(watch: Watch) -> None:
    """End whatever is left of a launch."""
    for process in watch.alive():
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
