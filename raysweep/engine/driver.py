"""The launch of a sweep: Tune schedules the runs that the ledger lacks until none is missing.

    lock -> prepare -> plan -> (nothing missing: done) -> Ray -> Tuner over the missing runs -> results

Only the ledger carries over from one launch to the next.  A launch that was killed at any point therefore
continues when the sweep is launched again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray

from raysweep.engine.board import Board
from raysweep.engine.cluster import Cluster, check_storage, concurrency, connected
from raysweep.engine.interrupt import terminate_as_interrupt
from raysweep.engine.monitor import Monitor, Observer
from raysweep.engine.scratch import remove_scratch
from raysweep.engine.services import start_services
from raysweep.engine.tuner import Bookkeeping, build
from raysweep.sweep import FailureRecord, Plan, Sweep, SweepLock, make_plan, tidy
from raysweep.sweep.missing import unfinished
from raysweep.sweep.provenance import provenance, save_launch
from raysweep.sweep.stored import save_sweep, select
from raysweep.tracking import Tracker

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("raysweep.launch")

#: Seconds that workers get to write a checkpoint after Ctrl-C.
GRACE = 20.0

OnStart = Callable[[Plan, Cluster | None], None]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of a launch."""

    sweep: Sweep
    #: The last failure of each failed run, by run id.
    failures: dict[str, FailureRecord]
    #: Runs that neither finished nor failed, because Ray gave them up; the next launch continues them.
    unfinished: tuple[str, ...]
    #: Runs that this launch trained or evaluated; empty if everything was there already.
    worked_on: tuple[str, ...]
    #: False if the tracking server could not take everything; the next launch fills the gap.
    tracked: bool

    def to_frame(self) -> pd.DataFrame:
        """Return the tidy table: one row per run x milestone x metric."""
        return tidy(self.sweep.ledger(), self.sweep)


def _wind_down(board: Board) -> None:
    """Ask the workers for a last checkpoint and wait until they have left, at most `GRACE` seconds."""
    deadline = time.monotonic() + GRACE
    with suppress(ray.exceptions.RayError):
        board.request_stop()
        while time.monotonic() < deadline:
            if all(news.state != "training" for news in board.read().values()):
                return
            time.sleep(0.2)


def launch(
    sweep: Sweep,
    *,
    address: str | None = None,
    only: Sequence[str] | None = None,
    retry_failed: bool = False,
    observer: Observer | None = None,
    on_start: OnStart | None = None,
) -> Results:
    """Train and evaluate the missing part of a sweep, and return the results.

    `only` restricts the work to runs with an id that matches one of the patterns (`*` and `?`).
    `retry_failed` tries failed runs again.  `on_start` is called once, with the plan and the cluster; if
    nothing is missing, Ray is not started and the cluster is None.  Steps are timed only if there
    is an `on_start`.  Afterwards `observer` is called twice a second with the state of all runs, from a
    thread.

    A failed run does not stop the others; see `Results.failures`.  Raises `LockedError` if another launch of
    the same sweep is at work, `StorageError` if the cluster or the storage cannot be reached, and
    `KeyboardInterrupt` on Ctrl-C or SIGTERM, after the workers have written a checkpoint.
    """
    chosen = select(sweep, only)
    ledger = sweep.ledger()
    facts = provenance()
    with SweepLock(sweep.directory), terminate_as_interrupt():
        ledger.clean()
        if retry_failed:
            for spec in chosen.runs:
                ledger.open(spec.run_id).retry()
        save_sweep(sweep)
        save_launch(sweep.directory, facts)
        if unfinished(chosen):
            # Steps can be timed only on languages that are prepared.
            chosen.prepare()
        plan = make_plan(chosen, timed=on_start is not None)
        tracker = Tracker(sweep, commit=facts["git_commit"])
        if plan.finished:
            if on_start is not None:
                on_start(plan, None)
            tracker.start()
        else:
            _work(chosen, plan, tracker, address, observer, on_start)
        tracked = tracker.close()
    failures = {s.run_id: found[-1] for s in chosen.runs if (found := ledger.open(s.run_id).failures())}
    return Results(
        sweep=sweep,
        failures=failures,
        unfinished=unfinished(chosen),
        worked_on=tuple(run.run_id for run in plan.to_do),
        tracked=tracked,
    )


def _work(
    sweep: Sweep,
    plan: Plan,
    tracker: Tracker,
    address: str | None,
    observer: Observer | None,
    on_start: OnStart | None,
) -> None:
    with connected(address) as cluster:
        check_storage(sweep.directory)
        slots = concurrency(sweep.resources, cluster)
        if on_start is not None:
            on_start(plan.at(slots), cluster)
        shared = start_services(sweep)
        monitor = Monitor(sweep, shared.board, observer, slots=slots) if observer is not None else None
        built = build(
            sweep,
            shared,
            strict=False,
            runs=[run.run_id for run in plan.to_do],
            max_concurrent=slots,
            callbacks=[Bookkeeping(tracker)],
        )
        if monitor is not None:
            monitor.start()
        try:
            grid = built.fit()
            for error in grid.errors:
                log.warning("a trial ended with an error: %s", error)
        except KeyboardInterrupt:
            _wind_down(shared.board)
            raise
        finally:
            try:
                if monitor is not None:
                    monitor.close()
            finally:
                tracker.close()
                remove_scratch(shared.scratch)
