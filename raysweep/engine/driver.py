"""The launch of a sweep: Tune schedules the runs that the ledger lacks until none is missing.

    lock -> prepare -> plan -> (nothing missing: done) -> Ray -> Tuner over the missing runs -> results
                                                                   ^--- runs that trouble left unfinished
Only the ledger carries over from one launch to the next.  A launch that was killed at any point therefore
continues when the sweep is launched again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray import tune

from raysweep.compiled import when_compiling
from raysweep.engine.board import Board
from raysweep.engine.choice import choose_engine, shares
from raysweep.engine.chronicle import Chronicle
from raysweep.engine.cluster import Cluster, check_storage, connected, warmed_up
from raysweep.engine.forks import close_fork_server, compile_ahead
from raysweep.engine.guard import tell_cluster, tell_done
from raysweep.engine.heed import heeded, wind_down
from raysweep.engine.interrupt import Interrupts
from raysweep.engine.lifeline import end, hand_over, parts, watched
from raysweep.engine.monitor import Monitor, Observer
from raysweep.engine.notify import noticed
from raysweep.engine.outcome import Trouble
from raysweep.engine.phases import Phases
from raysweep.engine.results import Results
from raysweep.engine.scratch import remove_scratch
from raysweep.engine.search import Samples, Searching
from raysweep.engine.services import Services, start_services
from raysweep.engine.slots import Slots
from raysweep.engine.tuner import build
from raysweep.errors import StorageError
from raysweep.remote import listed
from raysweep.sweep import Plan, Sweep, SweepLock, make_plan
from raysweep.sweep.config import check_sweep
from raysweep.sweep.estimate import History
from raysweep.sweep.keeping import keep_of, tidy_up
from raysweep.sweep.learnt import Learnt
from raysweep.sweep.provenance import provenance, save_launch
from raysweep.sweep.sentences import with_sentences
from raysweep.sweep.starts import failures, starts, unfinished
from raysweep.sweep.stored import Launched, save_sweep, select
from raysweep.sweep.survey import survey
from raysweep.sweep.units import count
from raysweep.tracking import Tracker

log = logging.getLogger("raysweep.launch")

#: Seconds that MLflow gets after Ctrl-C or an error.
_HURRY = 5.0

#: Seconds before each further attempt at the runs that trouble has left unfinished.
PAUSES = (2.0, 10.0, 30.0)

#: Runs whose records are read again at the end, for the estimates of other launches.
_TELLING = 64

#: Seconds between two looks at the board for trouble that concerns the whole launch.
_LOOK = 1.0

OnStart = Callable[[Plan, Cluster | None], None]


def launch(
    sweep: Sweep,
    *,
    address: str | None = None,
    only: Sequence[str] | None = None,
    retry_failed: bool = False,
    observer: Observer | None = None,
    on_start: OnStart | None = None,
    on_work: Callable[[], None] | None = None,
    reconnect: float = 0.0,
    notify: Sequence[str] = (),
) -> Results:
    """Train and evaluate the missing part of a sweep, and return the results.

    `only` restricts the work to the runs that one of its names means (`raysweep.sweep.names`).
    `retry_failed` tries failed runs again.  `on_work` is called as soon as work is found missing, before Ray
    is started.  `on_start` is called once, with the plan and the cluster; if nothing is missing, Ray is not
    started and the cluster is None.  Steps are timed only if there is an `on_start`.  Afterwards `observer`
    is called twice a second with the state of all runs, from a thread.

    A failed run does not stop the others; see `Results.failures`.  A run that trouble ends, such as a process
    that dies, is tried again after each of `PAUSES`; if memory was short, with one run less at once and a
    smaller micro-batch.  Raises `ConfigError` for a file in place of a sweep, `LockedError` if another launch
    of the same sweep is at work, `StorageError` if the cluster or the storage cannot be reached or the
    storage is full, and `KeyboardInterrupt` on Ctrl-C, SIGTERM, SIGHUP or `raysweep cancel`, after the
    workers have written a checkpoint.

    Commands and webhooks of the sweep's `notify` and of `notify` learn of the end (`raysweep.sweep.notice`).

    If Ray itself dies, this process ends with one sentence and exit code 4, because no call to Ray returns
    then.  With `reconnect`, seconds, the program `raysweep` waits that long for a cluster to answer again and
    then goes on (`raysweep.engine.guard`).
    """
    check_sweep(sweep)
    chosen = select(sweep, only)
    ledger = sweep.ledger()
    facts = provenance()
    troubles: Mapping[str, Trouble] = {}
    with (
        SweepLock(sweep.directory) as lock,
        Interrupts() as interrupts,
        Chronicle(sweep.directory) as chronicle,
        noticed(chosen, (*sweep.notify, *notify)),
        heeded(lock, interrupts, chronicle.say),
        Phases(sweep.directory) as phases,
        ExitStack() as stack,
    ):
        with listed(sweep.directory):
            ledger.clean()
            if retry_failed:
                for spec in chosen.runs:
                    ledger.open(spec.run_id).retry()
            works = bool(unfinished(chosen) or chosen.to_choose)
            if works:
                if on_work is not None:
                    on_work()
                # A launch that is refused is none: it is not in the list of sweeps.
                stack.enter_context(warmed_up(chosen.resources, address))
            launched = Launched(sweep.directory)
            save_sweep(sweep)
            gone = tidy_up(chosen, chosen.runs)
            if gone:
                chronicle.say(f"removed {count(gone, 'checkpoint')} (keep: {keep_of(sweep)})")
            facts = with_sentences(facts, chosen)
            save_launch(sweep.directory, facts)
            if works:
                # Steps can be timed only on languages that are prepared.
                chosen.prepare()
            elif not ray.is_initialized():
                close_fork_server()  # the program may have begun one early, and no Ray is served by it
            with when_compiling(partial(compile_ahead, chosen)):
                plan = make_plan(chosen, timed=on_start is not None, launched=launched)
            plan = plan if address is None else replace(plan, here=())
        for line in plan.lines(limit=12):
            chronicle.say(line)
        tracker = Tracker(sweep, commit=facts["git_commit"])
        searching = Searching(chosen, sweep)
        searching.told.append(tracker.follow)
        try:
            if plan.finished:
                if on_start is not None:
                    on_start(plan, None)
                tracker.start()
            else:
                # Ray takes seconds to start, and Tune imports MLflow before its first trial in any case.
                tracker.warm_up()
                with connected(address, patience=reconnect + 60) as cluster:
                    interrupts.install()
                    awaited = reconnect and not cluster.embedded and tell_cluster(cluster.address, reconnect)
                    with watched(parts(), hand_over if awaited else end):
                        phases.begin("work")
                        troubles = _work(
                            searching, plan, tracker, cluster, chronicle, observer, on_start, interrupts
                        )
                        phases.begin("end")
                tell_done()
                save_launch(sweep.directory, {**facts, "learnt": _learnt(chosen, plan).encode()})
        except BaseException:
            # Who asked a launch to end, or has an error to read, does not wait for MLflow.
            tracker.close(most=_HURRY)
            raise
        # Nothing of the cluster is held meanwhile.
        tracked = tracker.close()
        tidy_up(searching.sweep, searching.sweep.runs)
    if searching.error is not None:
        raise searching.error
    before, done = {spec.run_id for spec in chosen.runs}, searching.sweep
    with listed(sweep.directory):
        # Of thousands of runs, this leaves an index of their records for the commands to come.
        waits = starts(done)
        failed, left = failures(done, waits), unfinished(done, waits)
    return Results(
        sweep=searching.whole,
        failures=failed,
        unfinished={r: troubles[r].message if r in troubles else "" for r in left},
        worked_on=(
            *(run.run_id for run in plan.to_do),
            *(spec.run_id for spec in done.runs if spec.run_id not in before),
        ),
        tracked=tracked,
    )


def _learnt(sweep: Sweep, plan: Plan) -> Learnt:
    """Return what this launch tells the next ones, by some of its runs."""
    runs = tuple(run.spec for run in plan.to_do[:_TELLING])
    return History(replace(sweep, runs=runs), survey(sweep.ledger(), runs, verify=True), {}).tells()


def _work(
    searching: Searching,
    plan: Plan,
    tracker: Tracker,
    cluster: Cluster,
    chronicle: Chronicle,
    observer: Observer | None,
    on_start: OnStart | None,
    interrupts: Interrupts,
) -> Mapping[str, Trouble]:
    """Do the missing work on a cluster; return the trouble of the runs that are still unfinished."""
    sweep = searching.sweep
    check_storage(sweep.directory)
    stops = sweep.search is not None and sweep.search.scheduler is not None
    # If a scheduler stops a trial, its processes must end, and the training with them.
    engine = "nested" if stops else choose_engine(sweep.resources, plan)
    shared = shares(sweep.resources, engine, embedded=cluster.embedded)
    slots = Slots(sweep.resources, cluster, spare=stops, shared=shared)
    if on_start is not None:
        on_start(plan.at(slots.now), cluster)
    services = start_services(sweep, engine, shared)
    observers: list[Observer] = [chronicle, *filter(None, [observer])]
    monitor = Monitor(sweep, plan, services.board, *observers, slots=slots.now)
    slots.told += [monitor.resize, lambda runs: chronicle.say(f"{count(runs, 'run')} at once from now on")]
    slots.join(services.board)
    searching.told.append(monitor.follow)
    tracker.start()
    monitor.start()
    try:
        # A search takes its samples in the order in which it chose them.
        order = plan.order if sweep.search is None else plan.to_do
        return _attempts(searching, [run.run_id for run in order], services, slots, interrupts)
    except (KeyboardInterrupt, StorageError):
        wind_down(services.board)
        raise
    finally:
        try:
            monitor.close()
        finally:
            remove_scratch(services.scratch)
            with suppress(ray.exceptions.RayError):
                slots.close()
            services.close()


def _attempts(
    searching: Searching, runs: Sequence[str], shared: Services, slots: Slots, interrupts: Interrupts
) -> Mapping[str, Trouble]:
    """Work on runs until none is unfinished or `PAUSES` is exhausted; return the last troubles."""
    for pause in (*PAUSES, None):
        troubles = _attempt(searching, runs, shared, slots, interrupts)
        sweep = searching.sweep
        runs = unfinished(sweep)
        if not (runs or sweep.to_choose) or searching.error is not None or pause is None:
            break
        short = [run_id for run_id in runs if run_id in troubles and troubles[run_id].kind == "memory"]
        if short:
            slots.fewer()
            shared = shared.divided(short)
        time.sleep(pause)
    return troubles


def _attempt(
    searching: Searching, runs: Sequence[str], shared: Services, slots: Slots, interrupts: Interrupts
) -> dict[str, Trouble]:
    """Let Tune work on runs once; return the trouble of each run that had some."""
    halving = searching.halving(shared.board)
    if halving is not None:
        runs = [run_id for run_id in runs if run_id not in halving.stopped]
    sweep = searching.sweep
    if not runs and not sweep.to_choose:
        return {}
    samples = Samples(searching, runs, shared.board) if sweep.to_choose else None
    look = _Look(shared.board, interrupts)
    built = build(
        sweep,
        shared,
        slots=slots,
        strict=False,
        runs=runs,
        scheduler=halving,
        search_alg=samples,
        num_samples=1 if samples is None else samples.most,
        callbacks=[look],
    )
    troubles: dict[str, Trouble] = {}
    try:
        built.fit()
    except RuntimeError as error:
        # Tune raises this for an error of Ray that it does not know, such as the word that a trial's process
        # was killed because memory is short.
        if not isinstance(error.__cause__, ray.exceptions.RayError):
            raise
        log.warning("Tune ended with an error: %s", error)
        return {**dict.fromkeys(runs, Trouble.of(error.__cause__)), **_told(shared.board)}
    for run_id, ended in look.errors.items():
        log.warning("the trial of %s ended with an error: %s", run_id, ended)
        troubles[run_id] = Trouble.of(ended)
    return {**troubles, **_told(shared.board)}


def _told(board: Board) -> dict[str, Trouble]:
    """Return the trouble of runs as told on the board; raises `StorageError` if the storage is full."""
    troubles: dict[str, Trouble] = {}
    with suppress(ray.exceptions.RayError):
        troubles = board.troubles()
    for run_id, trouble in troubles.items():
        if trouble.kind == "full":
            raise StorageError(f"{run_id}: {trouble.message}")
    return troubles


class _Look(tune.Callback):
    """Ends the launch if the storage is full: all runs would find it so, and none would lose anything.

    It also ends a launch of another thread than the main one on request, which no signal can do.  At the end
    it has the errors of trials by run id.  Tune's own results do not tell them: where a trial has reported
    nothing, its result may have the config of the trial that had its actor before.
    """

    def __init__(self, board: Board, interrupts: Interrupts) -> None:
        self.errors: dict[str, Exception] = {}
        self._board = board
        self._interrupts = interrupts
        self._next = 0.0

    def on_step_begin(self, iteration: int, trials: list[Any], **_: Any) -> None:
        """Look at the board, at most once a second; Tune calls this in each turn of its loop."""
        if time.monotonic() >= self._next:
            if self._interrupts.asked:
                raise KeyboardInterrupt
            _told(self._board)
            self._next = time.monotonic() + _LOOK

    def on_experiment_end(self, trials: list[Any], **_: Any) -> None:
        """Note the error of each trial that has ended with one."""
        found = {trial.config["run"]: trial.get_pickled_error() or trial.get_error() for trial in trials}
        self.errors = {run_id: error for run_id, error in found.items() if error is not None}
