"""What a launch is doing, as plain data: for the live table, for lines in a pipe, for a program."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from raysweep.sweep import Sweep
from raysweep.sweep.missing import finished, metrics_at

log = logging.getLogger("raysweep.monitor")

#: What a run can be doing; `unfinished` is one that was begun and is not being worked on, as far as known.
STATES = ("queued", "starting", "training", "evaluating", "unfinished", "done", "failed")


@dataclass(kw_only=True)
class RunState:
    """One run: `state` is one of `STATES`, `eta` are seconds to its end where that is known.

    `tokens_per_second` and `mfu` are those of the newest point of its training curve.
    """

    run_id: str
    model: str
    axes: dict[str, Any]
    #: Its place in the sweep for people: the values of its axes, or its id where it has none.
    label: str
    state: str = "queued"
    step: int = 0
    steps: int = 0
    loss: float | None = None
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    eta: float | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchState:
    """All runs, and how far the sweep is: `done` of `total` steps, `elapsed` and `eta` in seconds."""

    runs: list[RunState]
    done: int
    total: int
    elapsed: float
    eta: float | None


def _blind(state: LaunchState) -> None:
    """See nothing."""


class Pace:
    """Steps a second over the last half minute: the latest half second alone says little of the next hour."""

    def __init__(self, memory: float = 30.0) -> None:
        self._memory = memory
        self._seen: deque[tuple[float, int]] = deque()

    def see(self, now: float, step: int) -> float | None:
        """Note the step reached at a time in seconds; return the pace, None before two seconds are seen.

        >>> pace = Pace()
        >>> [pace.see(t, 10 * t) for t in (0, 1, 2, 4)]
        [None, None, 10.0, 10.0]
        """
        self._seen.append((now, step))
        while now - self._seen[0][0] > self._memory:
            self._seen.popleft()
        since, first = self._seen[0]
        return (step - first) / (now - since) if now - since >= 2.0 else None


class Monitor:
    """Polls the board in a thread and hands each state to an observer."""

    def __init__(
        self,
        sweep: Sweep,
        board: Any,
        observer: Callable[[LaunchState], None],
        *,
        slots: int,
        period: float = 0.5,
    ) -> None:
        self._board = board
        self._observer = observer
        self._slots = slots
        self._period = period
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._rows = {row.run_id: row for row in run_states(sweep)}
        self._at_start = {row.run_id: row.step for row in self._rows.values()}
        self._paces = {row.run_id: Pace() for row in self._rows.values()}
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
        try:
            news = ray.get(self._board.read.remote(), timeout=5)
        except ray.exceptions.RayError:
            return  # the board is being restarted, or Ray is going down
        for run_id, item in news.items():
            row = self._rows.get(run_id)
            if row is not None:
                for name in ("state", "step", "loss", "tokens_per_second", "mfu", "metrics"):
                    if name in item:
                        setattr(row, name, item[name])
                if row.state == "training":
                    row.steps_per_second = self._paces[run_id].see(time.monotonic(), row.step)
                row.step = max(row.step, item.get("evaluated", 0))
                if row.state == "done":
                    row.step = row.steps
        try:
            self._observer(self._summarise())
        except Exception:
            # A view that cannot be shown, say in a closed pipe, is no reason to end a sweep.
            log.exception("the observer failed; it is not called again")
            self._ended.set()
            self._observer = _blind

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

        Two estimates are possible: from training speeds alone, once every size has been seen, or from the
        share of steps done in the time so far, which includes starting and evaluating.  The larger is given.
        """
        gained = sum(row.step - self._at_start[row.run_id] for row in rows)
        missing = sum(row.steps - row.step for row in rows if row.state != "failed")
        estimates = [left / self._slots] if known else []
        if gained > 0:
            estimates.append(elapsed * missing / gained)
        return max(estimates, default=None)


def axes_label(axes: Mapping[str, Any]) -> str:
    """Return the values of a run's axes in few words.

    >>> axes_label({"model.shape": "64/1/2/256", "seed": 1})
    '64/1/2/256 seed 1'
    """
    words = []
    for path, value in axes.items():
        text = value if isinstance(value, str) else json.dumps(value)
        words.append(text if isinstance(value, str) else f"{path.rpartition('.')[2]} {text}")
    return " ".join(words)


def run_states(sweep: Sweep) -> list[RunState]:
    """Return where every run stands by its records alone."""
    ledger = sweep.ledger()
    rows = []
    for spec in sweep.runs:
        run = ledger.open(spec.run_id)
        row = RunState(
            run_id=spec.run_id,
            model=spec.model.label,
            axes=dict(spec.axes),
            label=(axes_label(spec.axes) or spec.run_id) if spec.trains else spec.algorithm.label,
            steps=spec.milestones[-1],
        )
        for step in spec.milestones:
            if metrics := metrics_at(run, spec, step):
                row.step, row.metrics = step, metrics
        checkpoints = run.checkpoints()
        newest = max((record.step for record in checkpoints), default=0)
        row.step = min(max(row.step, newest), row.steps)
        if curve := next((record.curve for record in checkpoints if record.curve), ()):
            row.tokens_per_second, row.mfu = curve[-1].tokens_per_second, curve[-1].mfu
        if run.failures():
            row.state = "failed"
        elif finished(run, spec):
            row.state = "done"
        elif row.step:
            row.state = "unfinished"
        rows.append(row)
    return rows
