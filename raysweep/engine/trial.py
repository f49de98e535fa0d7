"""One Tune trial: one run, trained by Ray Train and evaluated by Ray tasks while training goes on.

The trial itself needs no CPU.  It watches the run's ledger; for every milestone that appears there it fans
out the missing evaluation shards, and when a milestone is complete it reports its metrics to Tune, in order
of steps.  Killed anywhere and started again, it finds in the ledger what is done and does the rest.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from raysweep.engine.gap import lacking_checkpoints, metrics_at
from raysweep.engine.tasks import Window, measure_shard, task_options
from raysweep.engine.trainer import run_log, trainer
from raysweep.errors import RunFailedError
from raysweep.sweep import Ledger, RunLedger, RunSpec, Sweep, evaluation_identity

log = logging.getLogger("raysweep.trial")

Cell = tuple[int, str]  # (step, evaluation kind)


@dataclass(frozen=True, kw_only=True)
class Services:
    """What the driver lends to every trial."""

    board: Any
    references: Any
    window: int
    scratch: Path


def resolve(sweep: Sweep, config: Mapping[str, Any]) -> RunSpec:
    """Return the run that a trial's config names.

    `{"run": run id}` is a run of the sweep; anything else are dotted paths with values, laid over the
    sweep's base (`{"algorithm.lr": 3e-4}`).  Raises `ConfigError` for what makes no sense.
    """
    if set(config) == {"run"}:
        return sweep.run(config["run"])
    return sweep.variant(dict(config))


class Evaluations:
    """The evaluations of one run: which are missing, in flight, done."""

    def __init__(
        self, spec: RunSpec, run: RunLedger, services: Services, resources: Mapping[str, float]
    ) -> None:
        self._spec = spec
        self._run = run
        self._services = services
        self._resources = dict(resources)
        self._window: Window[tuple[int, str, int]] = Window(services.window)
        self._left: dict[Cell, int] = {}
        self._started: dict[Cell, float] = {}
        self._newest = 0
        self.submitted: set[int] = set()

    def submit(self, step: int) -> None:
        """Queue what is missing at a milestone."""
        self.submitted.add(step)
        for kind, evaluation in self._spec.evaluations.items():
            if self._run.evaluation(step, evaluation) is not None:
                continue
            cell = (step, kind)
            present = set(self._run.saved_shards(step, kind, evaluation_identity(evaluation)))
            shards = [shard for shard in range(evaluation.shards()) if shard not in present]
            self._left[cell] = len(shards)
            self._started[cell] = time.time()
            references = self._references(kind)
            for shard in shards:
                self._window.add((step, kind, shard), self._task(step, kind, shard, references))
            if not shards:
                self._finish(cell)

    def _references(self, kind: str) -> list[Any]:
        evaluation = self._spec.evaluations[kind]
        if not evaluation.needs_reference:
            return []
        store = self._services.references
        references: list[Any] = ray.get(store.get.remote(self._spec.language, evaluation, self._resources))
        return references

    def _task(self, step: int, kind: str, shard: int, references: list[Any]) -> Callable[[], ray.ObjectRef]:
        def submit() -> ray.ObjectRef:
            task = measure_shard.options(name=f"{kind}@{step}", **task_options(self._resources))
            reference = references[shard] if references else None
            return task.remote(self._spec, self._run, step, kind, shard, reference)

        return submit

    def advance(self, timeout: float) -> None:
        """Collect what has ended, waiting up to `timeout` seconds; raises what a shard raised."""
        for (step, kind, _), reference in self._window.ready(timeout):
            ray.get(reference)
            self._left[step, kind] -= 1
            if self._left[step, kind] == 0:
                self._finish((step, kind))

    def _finish(self, cell: Cell) -> None:
        step, kind = cell
        evaluation = self._spec.evaluations[kind]
        identity = evaluation_identity(evaluation)
        arrays = [self._run.load_arrays(step, kind, identity, shard) for shard in range(evaluation.shards())]
        damaged = [shard for shard, content in enumerate(arrays) if content is None]
        if damaged:  # torn by a crash of this machine: they have been moved aside, and are measured again
            self._left[cell] = len(damaged)
            references = self._references(kind)
            for shard in damaged:
                self._window.add((step, kind, shard), self._task(step, kind, shard, references))
            return
        metrics = evaluation.combine([content for content in arrays if content is not None])
        seconds = time.time() - self._started[cell]
        self._run.record_evaluation(step, evaluation, metrics, seconds=seconds)
        del self._left[cell]
        log.info("step %d: %s evaluated", step, kind)
        if step >= self._newest:
            self._newest = step
            news = {"metrics": metrics_at(self._run, self._spec, step), "evaluated": step}
            self._services.board.post.remote(self._spec.run_id, news)

    def complete(self, step: int) -> bool:
        """Return whether a milestone has all its evaluations."""
        return step in self.submitted and not any(cell[0] == step for cell in self._left)

    def __len__(self) -> int:
        return len(self._left)

    def cancel(self) -> None:
        """Drop what is not done."""
        self._window.cancel()


class _Training(threading.Thread):
    """Runs the Train job beside the evaluations."""

    def __init__(self, job: Any) -> None:
        super().__init__(name="raysweep-train", daemon=True)
        self._job = job
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._job.fit()
        except BaseException as error:
            self.error = error


def run_trial(config: dict[str, Any], *, sweep: Sweep, services: Services, strict: bool) -> None:
    """Train and evaluate the run that `config` names; the function that Ray Tune schedules.

    A run that fails says so in the ledger.  With `strict` it is an error of the trial as well, as search
    algorithms want to know it; Tune then starts it again in vain, to be told the same.
    """
    spec = resolve(sweep, config)
    run = Ledger(sweep.directory).run(spec)
    with run_log(run, "trial"):
        try:
            _run_trial(spec, run, sweep, services)
        except RunFailedError:
            if strict:
                raise


def _start_training(spec: RunSpec, run: RunLedger, sweep: Sweep, services: Services) -> _Training | None:
    """Start to train towards the milestones that lack a checkpoint; None where none does.

    Training resumes at or before the first such milestone, even where later checkpoints exist, and ends at
    the last.
    """
    lacking = lacking_checkpoints(run, spec, check=True)
    if not lacking:
        return None
    pretrain = spec.pretrain.model_copy(update={"steps": lacking[-1], "milestones": tuple(lacking)})
    log.info("training to step %d", lacking[-1])
    training = _Training(
        trainer(
            replace(spec, pretrain=pretrain),
            run.rewound(lacking[0]),
            sweep.resources,
            services.board,
            services.scratch / spec.run_id,
        )
    )
    training.start()
    return training


def _run_trial(spec: RunSpec, run: RunLedger, sweep: Sweep, services: Services) -> None:
    failed = run.failures()
    if failed:
        raise RunFailedError(f"{spec.run_id} failed before: {failed[-1].message}")
    board = services.board
    board.post.remote(spec.run_id, {"state": "starting"})
    evaluations = Evaluations(spec, run, services, sweep.resources.evaluate)
    training = _start_training(spec, run, sweep, services)
    reported: set[int] = set()
    try:
        while True:
            alive = training is not None and training.is_alive()
            lacking = set(lacking_checkpoints(run, spec, check=False))
            for step in spec.milestones:
                if step not in evaluations.submitted and step not in lacking:
                    evaluations.submit(step)
            if not alive and len(evaluations):
                board.post.remote(spec.run_id, {"state": "evaluating"})
            evaluations.advance(timeout=0.25)
            for step in spec.milestones:
                if step not in reported and evaluations.complete(step):
                    reported.add(step)
                    tune.report({"run_id": spec.run_id, "step": step, **metrics_at(run, spec, step)})
            if not alive and not len(evaluations):
                break
            if not len(evaluations):
                time.sleep(0.25)
        _check(spec, run, training)
    except Exception as error:
        # Processes that die are restarted by Ray before an error arrives here; what does arrive would only
        # come again, so it is the run's failure.
        evaluations.cancel()
        log.exception("run failed")
        if not run.failures():
            cause = getattr(error, "cause", None) or error
            run.record_failure(_message(error), error=type(cause).__name__)
        board.post.remote(spec.run_id, {"state": "failed"})
        raise RunFailedError(f"{spec.run_id}: {run.failures()[-1].message}") from error
    finally:
        shutil.rmtree(services.scratch / spec.run_id, ignore_errors=True)
    finished = len(reported) == len(spec.milestones)
    board.post.remote(spec.run_id, {"state": "done" if finished else "unfinished"})


def _message(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else traceback.format_exception_only(error)[-1].strip()


def _check(spec: RunSpec, run: RunLedger, training: _Training | None) -> None:
    """Raise `RunFailedError` where training ended with an error."""
    failed = run.failures()
    if failed:
        raise RunFailedError(f"{spec.run_id}: {failed[-1].message}")
    if training is not None and training.error is not None:
        raise RunFailedError(f"{spec.run_id}: {_message(training.error)}") from training.error
