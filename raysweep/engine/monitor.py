"""The state of a running launch: polled from the board and handed to observers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import ray

from raysweep.engine.board import Board, News
from raysweep.sweep import Plan, Sweep
from raysweep.sweep.estimate import END, NOTHING
from raysweep.sweep.progress import Progress
from raysweep.sweep.run_state import Evaluated, LaunchState, Pace, run_states
from raysweep.sweep.told import OVER

log = logging.getLogger("raysweep.monitor")

#: Seconds between two looks are at least so many times those of processor time that a look takes.
_IDLE = 10.0

Observer = Callable[[LaunchState], None]


class Monitor:
    """Polls the board in a thread and hands each state to observers."""

    def __init__(
        self,
        sweep: Sweep,
        plan: Plan,
        board: Board,
        *observers: Observer,
        slots: int,
        period: float = 0.5,
    ) -> None:
        self._board = board
        self._observers = list(observers)
        self._period = period
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._ledger = sweep.ledger()
        self._rows = {row.run_id: row for row in run_states(sweep)}
        #: The mark of the news that were read, and those of runs that are not known yet.
        self._mark = 0
        self._early: dict[str, News] = {}
        timed = {run.run_id: run.cost.step for run in plan.runs if run.cost.step is not None}
        expected = {
            (run.run_id, kind): seconds for run in plan.runs for kind, seconds in run.cost.evaluations.items()
        }
        self._progress = Progress(self._rows.values(), timed, expected, slots=slots, now=self._started)
        self._paces = {row.run_id: Pace() for row in self._rows.values()}
        self._thread = threading.Thread(target=self._watch, name="raysweep-monitor", daemon=True)

    def follow(self, sweep: Sweep) -> None:
        """Take up the runs that a search has added to the sweep, and those that it has stopped."""
        known = self._rows
        changed = tuple(s for s in sweep.runs if s.run_id not in known or s.stopped is not None)
        fresh = {row.run_id: row for row in run_states(replace(sweep, runs=changed))}
        for run_id in fresh.keys() - known.keys():
            self._paces[run_id] = Pace()
        self._rows = {**known, **fresh}

    def resize(self, slots: int) -> None:
        """Expect so many runs at once from now on."""
        self._progress.slots = slots

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling and hand over the last state."""
        self._ended.set()
        self._thread.join(timeout=10)
        self.look()

    def _watch(self) -> None:
        pause = self._period
        while not self._ended.wait(pause):
            began = time.thread_time()
            self.look()
            # The view of ten thousand runs must not take the launch's time.
            pause = max(self._period, _IDLE * (time.thread_time() - began))

    def look(self) -> None:
        """Read the news, and hand the state to the observers."""
        if not self._observers:
            return
        try:
            self._mark, news = self._board.read(self._mark)
        except ray.exceptions.RayError:
            return  # the board is being restarted, or Ray is going down
        known, early = self._rows, {**self._early, **news}
        self._early = {run_id: item for run_id, item in early.items() if run_id not in known}
        for run_id, item in early.items():
            row = known.get(run_id)
            if row is not None and row.state != "stopped":
                for name in ("state", "step", "tokens_per_second", "mfu", "evaluated", "metrics", "shards"):
                    value = getattr(item, name)
                    if value is not None:
                        setattr(row, name, value)
                for kind, (done, seconds) in (item.evaluations or {}).items():
                    wanted = row.evaluations[kind].wanted
                    row.evaluations = {**row.evaluations, kind: Evaluated(done, wanted, seconds)}
                row.trouble = item.trouble.message if item.trouble and row.state == "unfinished" else ""
                if row.state in ("failed", "cancelled") and (
                    failures := self._ledger.open(run_id).failures()
                ):
                    row.trouble = " ".join(failures[-1].message.split())
                row.step = max(row.step, item.evaluated or 0)
                if row.state == "done":
                    row.step = row.steps
        now = time.monotonic()
        for row in known.values():
            if row.state == "training":
                row.steps_per_second = self._paces[row.run_id].see(now, row.step)
        state = self._summarise()
        for observer in list(self._observers):
            try:
                observer(state)
            except Exception:
                # A view that cannot be shown, say in a closed pipe, is no reason to end a sweep.
                log.exception("the observer failed; it is not called again")
                self._observers.remove(observer)

    def _summarise(self) -> LaunchState:
        rows, now = list(self._rows.values()), time.monotonic()
        share, left = self._progress.see(now, rows)
        if left is not None or all(row.state in OVER for row in rows):
            left = END.least + (left or NOTHING)[0], END.most + (left or NOTHING)[1]
        for row in rows:
            row.eta = 0.0 if row.state in OVER else self._progress.runs.get(row.run_id)
        return LaunchState(runs=rows, elapsed=now - self._started, share=share, left=left)
