"""The order of runs where some start from others: Tune gets each as soon as its source is there.

    runs that can be trained -> Tune;   a checkpoint appears -> the runs that wait for it -> Tune

A run that waits takes no place of a run that can be trained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from raysweep.engine.board import Board, News
from raysweep.sweep import Sweep
from raysweep.sweep.starts import Starts
from raysweep.sweep.survey import survey

#: Seconds between two looks at the ledger while runs wait.
_PERIOD = 0.5


class Ready(Searcher):
    """Suggests runs of a sweep in order, `{"run": run id}` each, those that wait as soon as they can start.

    It ends when no run is left, or those that are left wait for runs that have all ended.
    """

    def __init__(self, sweep: Sweep, runs: Sequence[str], board: Board) -> None:
        super().__init__()
        self._sweep, self._board = sweep, board
        self._left = list(runs)
        self._active: set[str] = set()
        self._look = 0.0

    def suggest(self, trial_id: str) -> Any:
        """Return the next run, None while all that are left wait, or `Searcher.FINISHED`."""
        if self._left and time.monotonic() < self._look:
            return None
        # A trial that ends after this look is looked at again: it may have left a checkpoint.
        none_active = not self._active
        run_id = self._next()
        if run_id is None:
            self._look = time.monotonic() + _PERIOD
            return None if self._left and not none_active else Searcher.FINISHED
        self._left.remove(run_id)
        self._active.add(trial_id)
        return {"run": run_id}

    def _next(self) -> str | None:
        """Return the first run that can be started, and drop those that wait in vain."""
        left, ledger = [self._sweep.run(run_id) for run_id in self._left], self._sweep.ledger()
        # Of all runs, because what is waited for may be in training; records are read of those that are left.
        found = Starts(ledger, self._sweep.runs, survey(ledger, left, verify=False))
        for spec in left:
            wait = found.wait(spec)
            if wait is None:
                return spec.run_id
            if wait.vain:
                self._left.remove(spec.run_id)
                self._board.post(spec.run_id, News(state="failed"))
        return None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note that a trial has ended; what waits for it is looked at at once."""
        self._active.discard(trial_id)
        self._look = 0.0

    def save(self, checkpoint_path: str) -> None:
        """Write nothing of use: the ledger says what is left, and no Tuner is ever restored."""
        Path(checkpoint_path).write_bytes(b"")

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, as there is nothing to read."""
