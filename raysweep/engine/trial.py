"""One Tune trial: one run, trained by Ray Train and evaluated by Ray tasks during training.

The trial itself needs no CPU.  It watches the run's ledger.  For every milestone that appears there, it
starts a task for each missing evaluation shard.  It reports complete milestones to Tune, in the order of
their steps, where a caller's Tuner or a scheduler reads them.  A trial that was killed and started again
reads the ledger and does the rest.  A trial ends its training when it ends.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray import tune

from raysweep.engine.board import GRACE, News, pause
from raysweep.engine.choice import evaluation_need
from raysweep.engine.evaluations import Evaluations
from raysweep.engine.lane import LaneTraining, kept_lane, rest_lane
from raysweep.engine.outcome import RunUnfinishedError, Trouble, cause_of, in_a_line, is_trouble
from raysweep.engine.services import Services
from raysweep.engine.trainer import Job, run_log, trainer
from raysweep.errors import RunFailedError
from raysweep.evaluation.metric import numbers
from raysweep.remote import RemotePath, listed
from raysweep.sweep import FailureRecord, Ledger, RunLedger, RunSpec, Sweep
from raysweep.sweep.keeping import Needs, discard, keep_of, standing
from raysweep.sweep.missing import metrics_at, missing_now
from raysweep.sweep.run_state import State
from raysweep.sweep.starts import check_source, needed_of
from raysweep.sweep.stored import load_stored

log = logging.getLogger("raysweep.trial")

#: Seconds between two looks at the ledger, the least and the most, and their share of the time since the
#: latest milestone.  A look lists folders, and reads small files where something has come.  A thousand runs
#: share the storage.
_LEAST, _MOST, _SHARE = 0.25, 5.0, 0.02

#: The least seconds between two looks at a ledger in an object store.
_LEAST_REMOTE = 2.0


def resolve(sweep: Sweep, config: Mapping[str, Any]) -> RunSpec:
    """Return the run that a trial's config names.

    `{"run": run id}` is a run of the sweep, or one that its search has chosen since.  Any other config maps
    dotted paths to values, which replace those of the sweep's base (`{"algorithm.lr": 3e-4}`).  Raises
    `ConfigError` for paths or values that do not fit.
    """
    if set(config) == {"run"}:
        known = any(spec.run_id == config["run"] for spec in sweep.runs)
        return (sweep if known or sweep.search is None else load_stored(sweep.directory)).run(config["run"])
    return sweep.variant(dict(config))


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

    The ledger says how a run ended.  With `strict`, an end other than success is also an error of the trial,
    because search algorithms need to know it.  Tune then starts the trial again, mostly in vain.
    """
    scheduled = sweep.search is not None and sweep.search.scheduler is not None
    spec = resolve(sweep, config)
    run = Ledger(sweep.directory).run(spec)
    with run_log(run, "trial"):
        log.info("trial, pid %d on %s", os.getpid(), socket.gethostname())
        try:
            _Trial(spec, run, sweep, services, tells=strict or scheduled).run()
        except (RunFailedError, RunUnfinishedError):
            if strict:
                raise


def _over(failures: Sequence[FailureRecord]) -> State:
    """Return the state of a run that cannot go on."""
    return "cancelled" if failures and failures[-1].cancelled else "failed"


class _Trial:
    """One attempt at one run; with `tells`, milestones are reported to Tune, which keeps all of them."""

    def __init__(
        self, spec: RunSpec, run: RunLedger, sweep: Sweep, services: Services, *, tells: bool
    ) -> None:
        self._spec, self._run, self._sweep, self._services = spec, run, sweep, services
        need = evaluation_need(sweep.resources, services.shared)
        self._evaluations = Evaluations(spec, run, services, need)
        self._tells = tells
        self._training: _Training | LaneTraining | None = None
        self._reported: set[int] = set()
        #: Steps that other runs start from, and wait for.
        self._needed = needed_of(sweep, spec)
        self._keep = keep_of(sweep)
        self._sources: dict[int, str] = {}
        if self._keep != "milestones":
            self._sources = Needs(sweep).of(spec.run_id, finished_too=True)

    def _post(self, state: State) -> None:
        self._services.board.post(self._spec.run_id, News(state=state))

    def run(self) -> None:
        """Do the missing work; raises `RunFailedError` or `RunUnfinishedError`."""
        failed = self._run.failures()
        if failed:
            self._post(_over(failed))
            raise RunFailedError(f"{self._spec.run_id} failed before: {failed[-1].message}")
        run_id = self._spec.run_id
        self._services.board.begin(run_id)
        try:
            self._start_training()
            self._follow()
            self._check()
            complete = len(self._reported) == len(self._spec.milestones)
            self._post("done" if complete else "unfinished")
        except Exception as error:
            log.exception("the run ends here")
            self._leave()
            raise self._ended(error) from error
        finally:
            # Tune ends a trial that its scheduler stops by raising SystemExit in `tune.report`.
            self._leave()
            rest_lane(self._services.scratch)
            self._services.board.leave(run_id)
            shutil.rmtree(self._services.scratch / run_id, ignore_errors=True)

    def _start_training(self) -> None:
        """Start training towards the milestones that lack a checkpoint.

        Training resumes before the first of them, even if later checkpoints exist, and ends at the last.
        """
        lacking = missing_now(self._run, self._spec, check_files=True, needed=self._needed).checkpoints
        if not lacking:
            return
        if not any(record.step < lacking[0] for record in self._run.checkpoints()):
            check_source(self._run, self._spec)
        # A rate may depend on the number of steps, so that stays.
        pretrain = self._spec.pretrain.model_copy(update={"milestones": lacking})
        parts = self._services.parts.get(self._spec.run_id, 1)
        if parts > 1:
            resources = self._sweep.resources
            each = -(-pretrain.batch_size // resources.workers)
            # Workers that share weights have equally many parts, also where one has a sentence more.
            least = 1 if resources.sharding == "none" else 2
            rows = max(least, min(pretrain.micro_batch or each, each) // parts)
            pretrain = pretrain.model_copy(update={"micro_batch": rows})
            log.warning("the memory did not suffice: at most %d sentences at a time", rows)
        log.info("training to step %d", lacking[-1])
        spec = replace(self._spec, pretrain=pretrain)
        job = Job(spec=spec, run=self._run, needed=self._needed)
        self._training = self._training_of(job)
        self._training.start()

    def _training_of(self, job: Job) -> _Training | LaneTraining:
        resources, services = self._sweep.resources, self._services
        if services.engine == "lanes":
            return kept_lane(resources, services.board, services.scratch).training(job)
        scratch = services.scratch / self._spec.run_id
        return _Training(trainer(job, resources, services.board, scratch, shared=services.shared))

    def _follow(self) -> None:
        """Evaluate and report milestones until training has ended and nothing is left to evaluate.

        A run that is cancelled is left at once.
        """
        evaluations = self._evaluations
        least = _LEAST_REMOTE if isinstance(self._run.directory, RemotePath) else _LEAST
        latest, look, all_known, told = time.monotonic(), 0.0, False, False
        known: object = None
        while True:
            alive = self._training is not None and self._training.is_alive()
            now = time.monotonic()
            last = not alive and not all_known
            if now >= look or last:
                with listed(self._run.directory):
                    # To read many records takes long, and is left out where nothing has come since.
                    on_disk = self._run.steps_on_disk()
                    found = self._run.record_names(), on_disk
                    changed = last or found != known
                    if changed and any(failure.cancelled for failure in self._run.failures()):
                        return
                    asks = changed and self._spec.trains
                    lacking = missing_now(self._run, self._spec).checkpoints if asks else ()
                if changed:
                    # A checkpoint that is there and does not count may be replaced under the same name.
                    known = None if on_disk.intersection(lacking) else found
                    for step in self._spec.milestones:
                        if step not in evaluations.submitted and step not in lacking:
                            evaluations.submit(step)
                            latest = now
                all_known = not alive
                look = now + min(_MOST, max(least, _SHARE * (now - latest)))
            if not alive and len(evaluations) and not told:
                told = True
                self._post("evaluating")
            evaluations.advance(timeout=0.25)
            self._report()
            if all_known and not len(evaluations):
                return
            if self._training is not None and not len(evaluations):
                self._training.join(0.25)

    def _report(self) -> None:
        """Note complete milestones, up to the first incomplete one, and report them to Tune if it `tells`."""
        for step in self._spec.milestones:
            if step in self._reported:
                continue
            if not self._evaluations.complete(step):
                return
            self._reported.add(step)
            found = metrics_at(self._run, self._spec, step)
            log.info("step %d is measured: %s", step, ", ".join(f"{m.name} {m.value:.4g}" for m in found))
            if self._tells:
                tune.report({"run_id": self._spec.run_id, "step": step, **numbers(found)})
            if self._keep != "milestones":
                discard(self._run, standing(self._run, self._spec, self._keep, self._sources))

    def _check(self) -> None:
        """Raise an error if training has ended with one."""
        failed = self._run.failures()
        if failed:
            raise RunFailedError(failed[-1].message)
        if self._training is not None and self._training.error is not None:
            error = self._training.error
            raise RunUnfinishedError(f"training was given up: {in_a_line(error)}") from error

    def _leave(self) -> None:
        """Drop the evaluations, and let training write a checkpoint and end before the trial ends."""
        self._evaluations.cancel()
        if self._training is not None and self._training.is_alive():
            board = self._services.board
            board.request_stop(self._spec.run_id)
            self._training.join(pause(board.at_work()) + GRACE)

    def _reported_trouble(self) -> Trouble | None:
        """Return what a worker said of its end: it knows the cause, which Ray Train does not pass on."""
        try:
            return self._services.board.troubles().get(self._spec.run_id)
        except ray.exceptions.RayError:
            return None

    def _ended(self, error: Exception) -> Exception:
        """Record a failure of the run itself, and return the error that the trial raises."""
        message = f"{self._spec.run_id}: {in_a_line(error)}"
        if is_trouble(error):
            trouble = self._reported_trouble() or Trouble.of(error)
            self._services.board.post(self._spec.run_id, News(state="unfinished", trouble=trouble))
            return RunUnfinishedError(message)
        if not self._run.failures():
            self._run.record_failure(in_a_line(error), error=type(cause_of(error)).__name__)
        self._post(_over(self._run.failures()))
        return RunFailedError(message)
