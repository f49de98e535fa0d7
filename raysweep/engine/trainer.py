"""Pre-training of one run on 1..n Ray Train workers."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray.train
import ray.train.torch
import torch

from raysweep.engine.board import Board, News, StopWatch
from raysweep.engine.outcome import Trouble, in_a_line, is_trouble
from raysweep.engine.worker import check_visible
from raysweep.errors import RaysweepError
from raysweep.sweep import Resources, RunLedger, RunSpec
from raysweep.training import Progress, World, pretrain

log = logging.getLogger("raysweep")


@contextmanager
def run_log(run: RunLedger, name: str) -> Iterator[Path]:
    """Write the log of raysweep in this process to `logs/<name>.log` of the run."""
    path = run.logs / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield path
    finally:
        log.removeHandler(handler)
        handler.close()


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Everything that a worker needs to train a run."""

    spec: RunSpec
    run: RunLedger
    board: Board
    #: Threads of torch.
    threads: int


def train_worker(config: Mapping[str, _Job]) -> None:
    """Train on this worker from the newest checkpoint to the last milestone.

    A failure of the run itself is recorded, so that the controller, which restarts workers, does not try
    again.  Trouble around the run, or an error of another worker, is raised, and the controller decides.
    """
    job = config["job"]
    spec, run, board = job.spec, job.run, job.board
    context = ray.train.get_context()
    world = World(rank=context.get_world_rank(), size=context.get_world_size())
    torch.set_num_threads(job.threads)
    check_visible(run)
    if run.failures():
        return

    def report(progress: Progress) -> None:
        news = News(
            state="training",
            step=progress.step,
            tokens_per_second=progress.tokens_per_second,
            mfu=progress.mfu,
        )
        board.post(spec.run_id, news)

    if world.rank == 0:
        board.post(spec.run_id, News(state="training"))
    watch = StopWatch(board, spec.run_id)
    with run_log(run, f"train-{world.rank}"):
        log.info("worker %d of %d, pid %d on %s", world.rank, world.size, os.getpid(), socket.gethostname())
        try:
            pretrain(
                language=spec.language.build(),
                model=spec.model,
                algorithm=spec.algorithm,
                pretrain=spec.pretrain,
                seed=spec.seed,
                journal=run,
                world=world,
                device=ray.train.torch.get_device(),
                on_progress=report if world.rank == 0 else None,
                stop=watch,
            )
            if watch():
                board.post(spec.run_id, News(state="unfinished"))
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
            watch.close()


def trainer(
    spec: RunSpec, run: RunLedger, resources: Resources, board: Board, scratch: Path
) -> ray.train.torch.TorchTrainer:
    """Return the Ray Train job of one run, named by its run id.

    Ray's own bookkeeping goes to a new folder each time.  The ledger says where to resume, and a bookkeeping
    file that a crash has torn must not stop a run.
    """
    per_worker = dict(resources.per_worker)
    job = _Job(spec=spec, run=run, board=board, threads=max(1, int(per_worker.get("CPU", 1))))
    return ray.train.torch.TorchTrainer(
        train_worker,
        train_loop_config={"job": job},
        scaling_config=ray.train.ScalingConfig(
            num_workers=resources.workers,
            resources_per_worker=per_worker,
            use_gpu=per_worker.get("GPU", 0) > 0,
        ),
        run_config=ray.train.RunConfig(
            name=spec.run_id,
            storage_path=str(scratch / uuid.uuid4().hex[:12]),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )
