"""Pre-training of one run on 1..n Ray Train workers, which are started for this run and end with it."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch

from raysweep.engine.board import Board, Line, News
from raysweep.engine.choice import reserved
from raysweep.engine.cleaner import CleanerCallback
from raysweep.engine.outcome import Trouble, in_a_line, is_trouble
from raysweep.engine.worker import built, check_visible, prepare
from raysweep.errors import RaysweepError
from raysweep.sweep import Resources, RunLedger, RunSpec
from raysweep.sweep.logs import BoundedLog
from raysweep.sweep.missing import missing_now
from raysweep.sweep.sentences import training_of
from raysweep.training import Progress, World, pretrain
from raysweep.training.workers import on_first

log = logging.getLogger("raysweep")

#: Seconds between two lines of progress in the log of a run.
_EVERY = 30.0


@contextmanager
def run_log(run: RunLedger, name: str) -> Iterator[Path]:
    """Write the log of raysweep in this process to `logs/<name>.log` of the run."""
    path = run.logs / f"{name}.log"
    handler = BoundedLog(path)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield path
    finally:
        log.removeHandler(handler)
        handler.close()


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to train, and where to train it; `needed` are the steps that other runs start from."""

    spec: RunSpec
    run: RunLedger
    needed: Collection[int] = ()

    def stored(self) -> list[ray.ObjectRef]:
        """Store the job in Ray, so that processes that only pass it on need not import its classes."""
        return [ray.put(self)]


def stored_job(stored: list[ray.ObjectRef]) -> Job:
    """Return the job that `Job.stored` has stored."""
    job: Job = ray.get(stored[0])
    return job


def still_lacking(job: Job, world: World) -> tuple[int, ...]:
    """Return the milestones of a job that lack a checkpoint now; all workers call this together.

    Workers that are started again have the job of the first ones.  Milestones that have been measured since
    may be gone again (`keep`), and are not to be trained once more.
    """
    return on_first(world, lambda: missing_now(job.run, job.spec, needed=job.needed).checkpoints)


def train(job: Job, world: World, board: Board, threads: int) -> None:
    """Train on this worker from the newest checkpoint to the last milestone, with `threads` of torch.

    A failure of the run itself is recorded, so that the controller, which restarts workers, does not try
    again.  Trouble around the run, or an error of another worker, is raised, and the controller decides.
    """
    spec, run = job.spec, job.run
    prepare(threads)
    check_visible(run)
    if run.failures():
        return

    next_line = time.monotonic() + _EVERY

    def report(progress: Progress) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _EVERY
            log.info("step %d of %d, loss %.4f nats", progress.step, progress.steps, progress.loss)
        news = News(
            state="training",
            step=progress.step,
            tokens_per_second=progress.tokens_per_second,
            mfu=progress.mfu,
        )
        if line is not None:
            line.say(news)

    # One worker speaks for all: what it hears, it tells the others at the steps that they agree on.
    line = Line(board, spec.run_id) if world.rank == 0 else None
    with run_log(run, f"train-{world.rank}"):
        log.info("worker %d of %d, pid %d on %s", world.rank, world.size, os.getpid(), socket.gethostname())
        try:
            here = ray.train.torch.get_device()
            if milestones := still_lacking(job, world):
                language = built(spec.language).to(here)
                pretrain(
                    language=language,
                    model=spec.model,
                    algorithm=spec.algorithm,
                    pretrain=spec.pretrain.model_copy(update={"milestones": milestones}),
                    seed=spec.seeds,
                    journal=run,
                    start=None if spec.source is None else spec.source.start(run),
                    world=world,
                    device=here,
                    on_progress=report,
                    stop=line,
                    training=training_of(spec, language, run.storage),
                )
            if line is not None:
                line.say(News(state="unfinished") if line() else News(step=spec.pretrain.milestones[-1]))
        except Exception as error:
            log.exception("training ends here")
            # With several workers, an error that is not raysweep's is mostly the sign that another worker
            # died.  A defect comes again until the controller gives up.
            own = isinstance(error, RaysweepError) or world.size == 1
            if is_trouble(error) or not own:
                trouble = Trouble.of(error)
                # What another worker's death looks like from here says nothing of its cause.
                if own or trouble.kind != "other":
                    board.post(spec.run_id, News(trouble=trouble))
                raise
            run.record_failure(in_a_line(error), error=type(error).__name__)
            if world.size > 1:
                raise  # others may wait for this worker in a collective: the group must be taken down
        finally:
            if line is not None:
                line.close()


def world(resources: Resources) -> World:
    """Return the place of this worker among the workers of its group."""
    context = ray.train.get_context()
    size = context.get_world_size()
    return World(rank=context.get_world_rank(), size=size, shards=resources.shards(size))


def _train_worker(config: Mapping[str, Any]) -> None:
    train(stored_job(config["job"]), world(config["resources"]), config["board"], config["threads"])


class _Trainer(ray.train.torch.TorchTrainer):
    """A TorchTrainer without the actor that serves datasets of Ray Data, and with a cleaner of ours.

    No run has datasets.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()  # type: ignore[misc]  # mypy sees the old trainer
        left_out = ("DatasetsCallback", "PlacementGroupCleanerCallback")
        return [*[each for each in callbacks if type(each).__name__ not in left_out], CleanerCallback()]


def train_job(
    loop: Callable[[Any], None],
    config: dict[str, Any],
    *,
    resources: Resources,
    name: str,
    storage: Path,
    max_failures: int,
    callbacks: Sequence[Any] = (),
) -> ray.train.torch.TorchTrainer:
    """Return the Ray Train job that calls `loop` on all workers.

    Ray's own bookkeeping goes to a new folder each time.  The ledger says where to resume, and a bookkeeping
    file that a crash has torn must not stop a run.
    """
    per_worker = dict(resources.per_worker)
    most, least = resources.workers, resources.min_workers
    # mypy sees the old class, whose number of workers is fixed.
    scaling: dict[str, Any] = {
        "num_workers": most if least is None else (least, most),
        "elastic_resize_monitor_interval_s": resources.resize_every,
        "resources_per_worker": per_worker,
        "use_gpu": per_worker.get("GPU", 0) > 0,
    }
    return _Trainer(
        loop,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(**scaling),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(storage / uuid.uuid4().hex[:12]),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            callbacks=list(callbacks),
        ),
    )


def torch_threads(resources: Resources) -> int:
    """Return the threads of torch in each worker."""
    return max(1, int(resources.per_worker.get("CPU", 1)))


def trainer(
    job: Job, resources: Resources, board: Board, scratch: Path, *, shared: bool
) -> ray.train.torch.TorchTrainer:
    """Return the Ray Train job of one run, named by its run id; `shared` is as in `Services`."""
    return train_job(
        _train_worker,
        {
            "job": job.stored(),
            "board": board,
            "threads": torch_threads(resources),
            "resources": resources,
        },
        resources=reserved(resources, shared),
        name=job.spec.run_id,
        storage=scratch,
        max_failures=3,
    )
