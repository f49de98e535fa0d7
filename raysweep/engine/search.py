"""A search under Ray Tune: the ledger says what is known, Optuna or ASHA decide, the ledger keeps it.

    a slot is free -> a run of a known sample, else the next sample (raysweep.sweep.samples) -> Tune
    a milestone is measured -> ASHA -> the run goes on, or a record says that it ends here

Neither Tune's searcher nor its scheduler remembers anything from one launch to the next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler
from ray.tune.search import Searcher

from raysweep.engine.board import Board, News
from raysweep.engine.ready import Ready
from raysweep.errors import ConfigError
from raysweep.evaluation.metric import numbers
from raysweep.sweep import RunSpec, Sweep
from raysweep.sweep.missing import metrics_at
from raysweep.sweep.records import StopRecord
from raysweep.sweep.samples import with_next, with_stops
from raysweep.sweep.search import Asha, Search
from raysweep.sweep.starts import unfinished
from raysweep.sweep.stored import save_sweep

log = logging.getLogger("raysweep.search")


class Searching:
    """The sweep of a launch as its search goes on; without a search, it stays as it is.

    `sweep` has the runs that are worked on, `whole` all of the file.  What is in `told` hears of each change.
    """

    def __init__(self, sweep: Sweep, whole: Sweep) -> None:
        self.sweep, self.whole = sweep, whole
        self.told: list[Callable[[Sweep], None]] = []
        #: What kept the search from going on.
        self.error: ConfigError | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles what it is given; nobody uses that copy.
        return Searching, (self.sweep, self.whole)

    @property
    def goes_on(self) -> bool:
        """Whether there are samples to choose."""
        return self.sweep.to_choose > 0 and self.error is None

    def choose(self) -> list[str]:
        """Choose the next sample and return its runs that are not finished; [] if there is none to choose."""
        if not self.goes_on:
            return []
        before = {spec.run_id for spec in self.sweep.runs}
        try:
            self._go_on(with_next(self.sweep))
        except ConfigError as error:
            self.error = error
            return []
        return [run_id for run_id in unfinished(self.sweep) if run_id not in before]

    def stop(self, spec: RunSpec, step: int, value: float) -> None:
        """Record that the scheduler of the search has stopped a run."""
        search = self.sweep.search
        if search is None or search.scheduler is None:
            return
        record = StopRecord(
            by=search.scheduler.kind, step=step, metric=search.metric, value=value, time=time.time()
        )
        self.sweep.ledger().run(spec).record_stop(search.stops, record)
        log.info("%s: stopped by %s at step %d", spec.run_id, record.by, step)
        self._go_on(with_stops(self.sweep))

    def halving(self, board: Board) -> Halving | None:
        """Return the scheduler of the search; None if it lets every run come to its end."""
        search = self.sweep.search
        return None if search is None or search.scheduler is None else Halving(self, search, board)

    def _go_on(self, sweep: Sweep) -> None:
        self.sweep = sweep
        # New samples are chosen only where all runs are worked on.
        self.whole = with_stops(self.whole) if sweep.left_out else sweep
        save_sweep(self.whole)
        for tell in self.told:
            tell(sweep)


class Samples(Ready):
    """Suggests the runs of known samples, then those of samples that are chosen as slots are free."""

    def __init__(self, searching: Searching, runs: Sequence[str], board: Board) -> None:
        super().__init__(searching.sweep, list(runs), board)
        self._searching = searching

    @property
    def most(self) -> int:
        """The most runs that are suggested."""
        sweep = self._searching.sweep
        each = -(-len(sweep.runs) // max(1, len(sweep.samples)))
        return len(self._left) + sweep.to_choose * max(1, each)

    def suggest(self, trial_id: str) -> Any:
        """Return the next run, None while all that are left wait, or `Searcher.FINISHED`."""
        found = super().suggest(trial_id)
        while found == Searcher.FINISHED and self._searching.goes_on:
            # A sample that is finished already, as one like another, has no run to suggest.
            self._left += self._searching.choose()
            self._sweep, self._look = self._searching.sweep, 0.0
            found = super().suggest(trial_id) if self._left else found
        return found


class Halving(FIFOScheduler):
    """ASHA over all that was ever measured of a sweep's samples, in the order in which it was measured.

    A run that has been stopped stays so, and what has passed a rung is not asked again.  A milestone that was
    measured when the launch was killed, before its decision was recorded, is decided now: `stopped` names the
    runs that end by that.
    """

    def __init__(self, searching: Searching, search: Search, board: Board) -> None:
        super().__init__()
        sweep, asha = searching.sweep, search.scheduler or Asha()
        self._searching, self._search, self._board = searching, search, board
        last = max((spec.pretrain.steps for spec in sweep.runs), default=1)
        first = min((step for spec in sweep.runs for step in spec.milestones if step), default=1)
        grace = asha.grace_period or first
        self._asha = AsyncHyperBandScheduler(
            time_attr="step",
            metric="value",
            mode=search.mode,
            max_t=max(last, grace),
            grace_period=grace,
            reduction_factor=asha.reduction_factor,
            stop_last_trials=False,
        )
        self._told: set[tuple[str, int]] = set()
        self._known: set[str] = set()
        self.stopped: set[str] = set()
        self._replay()

    def _of_sample(self, spec: RunSpec) -> bool:
        samples = self._searching.sweep.samples
        return any(self._search.belongs(spec.axes, settings) for settings in samples)

    def _replay(self) -> None:
        sweep = self._searching.sweep
        ledger = sweep.ledger()
        events: list[tuple[float, int, RunSpec, float, bool]] = []
        for spec in filter(self._of_sample, sweep.runs):
            run = ledger.open(spec.run_id)
            mine = []
            for step in spec.milestones:
                records = [run.evaluation(step, evaluation) for evaluation in spec.evaluations.values()]
                value = numbers(metrics_at(run, spec, step)).get(self._search.metric)
                if None in records or value is None:
                    break
                mine.append((max(record.time for record in records if record is not None), step, value))
            newest = mine[-1][1] if mine else 0
            events += [(when, step, spec, value, step == newest) for when, step, value in mine]
        for _, step, spec, value, newest in sorted(events, key=lambda e: (e[0], e[1], e[2].run_id)):
            stop = self._decide(spec, step, value)
            if stop and newest and spec.stopped is None and step < spec.milestones[-1]:
                self.stopped.add(spec.run_id)
                self._searching.stop(spec, step, value)

    def _measured_after(self, spec: RunSpec, step: int) -> bool:
        """Return whether there is nothing to save: a later milestone is measured, or there is none.

        Reports may come late, as evaluations of short runs do.
        """
        run = self._searching.sweep.ledger().open(spec.run_id)
        later = [milestone for milestone in spec.milestones if milestone > step]
        known = (numbers(metrics_at(run, spec, milestone)) for milestone in later)
        return not later or any(self._search.metric in metrics for metrics in known)

    def _decide(self, spec: RunSpec, step: int, value: float) -> bool:
        """Return whether ASHA would stop a run that has this value at a step."""
        self._told.add((spec.run_id, step))
        # ASHA knows trials by their ids alone, and asks no controller.
        trial: Any = SimpleNamespace(trial_id=spec.run_id)
        nobody: Any = None
        if spec.run_id not in self._known:
            self._known.add(spec.run_id)
            self._asha.on_trial_add(nobody, trial)
        return bool(self._asha.on_trial_result(nobody, trial, {"step": step, "value": value}) == self.STOP)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return whether a trial goes on after a milestone."""
        run_id, step, value = result["run_id"], result["step"], result.get(self._search.metric)
        spec = self._searching.sweep.run(run_id)
        if not self._of_sample(spec) or (run_id, step) in self._told or value is None:
            return str(self.CONTINUE)
        if not self._decide(spec, step, value) or self._measured_after(spec, step):
            return str(self.CONTINUE)
        self._searching.stop(spec, step, value)
        self._board.post(run_id, News(state="stopped"))
        return str(self.STOP)
