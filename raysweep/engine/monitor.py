"""The state of a running launch: polled from the board and handed to an observer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import ray

from raysweep.engine.board import Board
from raysweep.sweep import Sweep
from raysweep.sweep.run_state import LaunchState, Pace, Remaining, RunState, run_states

log = logging.getLogger("raysweep.monitor")

Observer = Callable[[LaunchState], None]


class Monitor:
    """Polls the board in a thread and hands each state to an observer."""

    def __init__(
        self,
        sweep: Sweep,
        board: Board,
        observer: Observer,
        *,
        slots: int,
        period: float = 0.5,
    ) -> None:
        self._board = board
        self._observer: Observer | None = observer
        self._slots = slots
        self._period = period
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._rows = {row.run_id: row for row in run_states(sweep)}
        self._at_start = {row.run_id: row.step for row in self._rows.values()}
        self._paces = {row.run_id: Pace() for row in self._rows.values()}
        self._measuring = {row.run_id: Remaining() for row in self._rows.values()}
        self._thread = threading.Thread(target=self._watch, name="raysweep-monitor", daemon=True)

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling and hand over the last state."""
        self._ended.set()
        self._thread.join(timeout=10)
        self._observe()

    def _watch(self) -> None:
        while not self._ended.wait(self._period):
            self._observe()

    def _observe(self) -> None:
        if self._observer is None:
            return
        try:
            news = self._board.read()
        except ray.exceptions.RayError:
            return  # the board is being restarted, or Ray is going down
        for run_id, item in news.items():
            row = self._rows.get(run_id)
            if row is not None:
                for name in ("state", "step", "tokens_per_second", "mfu", "evaluated", "metrics", "shards"):
                    value = getattr(item, name)
                    if value is not None:
                        setattr(row, name, value)
                row.trouble = item.trouble.message if item.trouble and row.state == "unfinished" else ""
                if row.state == "training":
                    row.steps_per_second = self._paces[run_id].see(time.monotonic(), row.step)
                row.step = max(row.step, item.evaluated or 0)
                if row.state == "done":
                    row.step = row.steps
        try:
            self._observer(self._summarise())
        except Exception:
            # A view that cannot be shown, say in a closed pipe, is no reason to end a sweep.
            log.exception("the observer failed; it is not called again")
            self._ended.set()
            self._observer = None

    def _summarise(self) -> LaunchState:
        rows = list(self._rows.values())
        elapsed = time.monotonic() - self._started
        speeds: dict[str, list[float]] = {}
        for row in rows:
            if row.steps_per_second:
                speeds.setdefault(row.model, []).append(row.steps_per_second)
        left = 0.0
        known = True
        for row in rows:
            if row.state == "evaluating":
                row.eta = self._measuring[row.run_id].see(time.monotonic(), *row.shards)
                known = known and row.eta is not None
                left += row.eta or 0.0
                continue
            remaining = row.steps - row.step
            if row.state in ("done", "failed") or remaining <= 0:
                row.eta = 0.0
                continue
            mine = [row.steps_per_second] if row.steps_per_second else speeds.get(row.model, [])
            if not mine:
                known = False
                row.eta = None
                continue
            row.eta = remaining / (sum(mine) / len(mine))
            left += row.eta
        return LaunchState(
            runs=rows,
            done=sum(row.step for row in rows),
            total=sum(row.steps for row in rows),
            elapsed=elapsed,
            eta=self._eta(rows, left, known, elapsed),
        )

    def _eta(self, rows: list[RunState], left: float, known: bool, elapsed: float) -> float | None:
        """Estimate the seconds to the end.

        Return the larger of two estimates.  One comes from training speeds, once every size has been seen.
        The other comes from the share of steps done in the time so far, which includes start and evaluation.
        """
        gained = sum(row.step - self._at_start[row.run_id] for row in rows)
        missing = sum(row.steps - row.step for row in rows if row.state != "failed")
        estimates = [left / self._slots] if known else []
        if gained > 0 and missing > 0:
            estimates.append(elapsed * missing / gained)
        return max(estimates, default=None)
