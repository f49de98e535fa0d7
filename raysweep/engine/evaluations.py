"""The evaluations of one run: missing, in flight or done.

Every shard is a task that writes its arrays into the ledger under a name of its own.  When all shards that an
evaluation has asked for are there, it either asks for more, or the shards are combined and the evaluation is
recorded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import ray

from raysweep.engine.board import News, pause
from raysweep.engine.measure import measure_shard
from raysweep.engine.outcome import is_trouble
from raysweep.engine.services import Services
from raysweep.engine.window import Window, task_options
from raysweep.evaluation.run import stored_shards
from raysweep.sweep import RunLedger, RunSpec, arrays_identity
from raysweep.sweep.missing import metrics_at

log = logging.getLogger("raysweep.trial")

Cell = tuple[int, str]  # (step, evaluation kind)
Shard = tuple[int, str, int]

#: Attempts at a shard that lost its inputs or its process, beyond those that Ray itself makes.
ATTEMPTS = 3

#: The least seconds between two calls at the board, which tell the progress and size the window.
_PERIOD = 2.0


class Evaluations:
    """Starts a task for each missing shard of a run's evaluations and records the results."""

    def __init__(
        self, spec: RunSpec, run: RunLedger, services: Services, resources: Mapping[str, float]
    ) -> None:
        self._spec = spec
        self._run = run
        self._services = services
        self._resources = dict(resources)
        self._window: Window[Shard] = Window(1)
        self._look = 0.0
        self._left: dict[Cell, int] = {}
        self._seconds: dict[Cell, float] = {}
        self._cpu_seconds: dict[Cell, float] = {}
        self._attempts: dict[Shard, int] = {}
        self._newest = 0
        self._measured = self._wanted = 0
        #: Shards that each unfinished cell has asked for here, and of each kind the finished cells with their
        #: seconds.
        self._asked: dict[Cell, int] = {}
        self._recorded: dict[str, tuple[int, float]] = {}
        self._told = News(shards=(0, 0), evaluations={})
        self.submitted: set[int] = set()

    def submit(self, step: int) -> None:
        """Queue the missing evaluations of a milestone."""
        self.submitted.add(step)
        for kind, evaluation in self._spec.evaluations.items():
            record = self._run.evaluation(step, evaluation)
            if record is not None:
                self._count(kind, record.seconds)
                continue
            self._seconds[step, kind] = self._cpu_seconds[step, kind] = 0.0
            self._go_on((step, kind))

    def _queue(self, cell: Cell, shards: list[int], *, lost: bool = False) -> None:
        self._left[cell] = self._left.get(cell, 0) + len(shards)
        self._asked[cell] = self._asked.get(cell, 0) + len(shards)
        self._wanted += len(shards)
        references = self._references(cell[1], lost=lost)
        for shard in shards:
            self._window.add((*cell, shard), self._task(*cell, shard, references))

    def _references(self, kind: str, *, lost: bool) -> list[ray.ObjectRef]:
        evaluation = self._spec.evaluations[kind]
        if not evaluation.needs_reference:
            return []
        return self._services.references.get(self._spec.language, evaluation, self._resources, lost=lost)

    def _task(
        self, step: int, kind: str, shard: int, references: list[ray.ObjectRef]
    ) -> Callable[[], ray.ObjectRef]:
        def submit() -> ray.ObjectRef:
            task = measure_shard.options(name=f"{kind}@{step}", **task_options(self._resources))
            reference = references[shard] if references else None
            submitted: ray.ObjectRef = task.remote(self._spec, self._run, step, kind, shard, reference)
            return submitted

        return submit

    def advance(self, timeout: float) -> None:
        """Collect the tasks that have ended, waiting up to `timeout` seconds; raises the error of a shard."""
        # Of a thousand runs, most measure nothing at a moment, and need not ask the cluster for its size.
        if len(self) and time.monotonic() >= self._look:
            at_work = self._ask()
            self._window.size = self._services.window(at_work)
            self._look = time.monotonic() + max(_PERIOD, pause(at_work))
        for shard, reference in self._window.ready(timeout):
            cell = shard[:2]
            try:
                seconds, cpu_seconds = ray.get(reference)
            except ray.exceptions.RayError as error:
                # A lost process or object is made again, such as exact conditionals on a node that died.
                self._attempts[shard] = self._attempts.get(shard, 0) + 1
                if not is_trouble(error) or self._attempts[shard] >= ATTEMPTS:
                    raise
                log.warning("step %d: %s, shard %d is tried again: %s", *shard, error)
                self._left[cell] -= 1
                self._asked[cell] -= 1
                self._wanted -= 1
                self._queue(cell, [shard[2]], lost=True)
                continue
            self._seconds[cell] += seconds
            self._cpu_seconds[cell] += cpu_seconds
            self._left[cell] -= 1
            self._measured += 1
            if self._left[cell] == 0:
                self._go_on(cell)
        if not self._left:
            self._services.board.post(self._spec.run_id, self._news())

    def _count(self, kind: str, seconds: float) -> None:
        number, spent = self._recorded.get(kind, (0, 0.0))
        self._recorded[kind] = number + 1, spent + seconds

    def _ask(self) -> int:
        """Tell the progress and return the number of runs at work; 1 while the board is being restarted."""
        board = self._services.board
        try:
            return max(1, board.answer(board.send(self._spec.run_id, self._news())).at_work)
        except ray.exceptions.RayError:
            return 1

    def _news(self) -> News:
        """Return how many shards are measured, and how many evaluations, where that has changed."""
        evaluations: dict[str, tuple[float, float]] = dict(self._recorded)
        for cell, left in self._left.items():
            number, spent = evaluations.get(cell[1], (0.0, 0.0))
            part = 1 - left / self._asked[cell]
            evaluations[cell[1]] = number + part, spent + self._seconds[cell]
        news = News(shards=(self._measured, self._wanted), evaluations=evaluations)
        if news == self._told:
            return News()
        self._told = news
        return news

    def _go_on(self, cell: Cell) -> None:
        """Queue the missing shards, or record the evaluation."""
        step, kind = cell
        evaluation = self._spec.evaluations[kind]
        identity = arrays_identity(evaluation)
        # Reading moves shards aside that a crash of a machine has torn; they are measured again.
        shards, missing = stored_shards(evaluation, partial(self._run.load_arrays, step, kind, identity))
        if missing:
            self._queue(cell, missing)
            return
        self._run.record_evaluation(
            step,
            evaluation,
            evaluation.metrics(shards),
            seconds=self._seconds[cell],
            cpu_seconds=self._cpu_seconds[cell],
            notes=evaluation.notes(shards),
        )
        self._left.pop(cell, None)
        self._asked.pop(cell, None)
        self._count(kind, self._seconds[cell])
        log.info("step %d: %s evaluated", step, kind)
        if step >= self._newest:
            self._newest = step
            news = News(metrics=metrics_at(self._run, self._spec, step), evaluated=step)
            self._services.board.post(self._spec.run_id, news)

    def complete(self, step: int) -> bool:
        """Return whether a milestone has all its evaluations."""
        return step in self.submitted and not any(cell[0] == step for cell in self._left)

    def __len__(self) -> int:
        return len(self._left)

    def cancel(self) -> None:
        """Drop the shards that are not done."""
        self._window.cancel()
