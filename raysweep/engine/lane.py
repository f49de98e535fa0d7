"""Warm lanes: training processes that train one run after another.

A lane is one long-lived Ray Train job, kept by the process of a Tune trial, which Tune reuses for the next
trial.  The lane's workers take runs out of a mailbox, so that models' code, languages and compiled kernels
stay warm.  A run is trained by the same function as in a Ray Train job of its own, and with the same result.

If a worker dies, Ray Train starts the worker group again.  The new workers take up the same run, which
continues from its last checkpoint.  A run that lost its workers four times ends with an error, and the lane
goes on with the next run.  A lane ends with the process that keeps it, or when no run has followed for
`mailbox.IDLE` seconds: Tune keeps processes of trials that have ended, and other runs need the resources.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.train.collective import broadcast_from_rank_zero

from raysweep.engine.board import Board
from raysweep.engine.choice import reserved
from raysweep.engine.losses import Losses
from raysweep.engine.mailbox import Mailbox
from raysweep.engine.outcome import RunUnfinishedError, in_a_line
from raysweep.engine.trainer import Job, stored_job, torch_threads, train, train_job, world
from raysweep.sweep import Resources
from raysweep.training import World

log = logging.getLogger("raysweep")

_MAILBOX: Any = ray.remote(num_cpus=0)(Mailbox)


def _work(config: Mapping[str, Any]) -> None:
    """Train on this worker the runs that come in through the mailbox, until it is gone."""
    mailbox, here = config["mailbox"], world(config["resources"])
    group = uuid.uuid4().hex
    ended: int | None = None
    while (taken := _take(mailbox, group, ended, here)) is not None:
        ended, stored = taken
        try:
            train(stored_job(stored), here, config["board"], config["threads"])
        except Exception as error:
            mailbox.note.remote(in_a_line(error))
            raise


def _take(mailbox: Any, group: str, ended: int | None, here: World) -> tuple[int, list[ray.ObjectRef]] | None:
    """Return the next job for all workers alike; None at the end of the lane."""
    taken: tuple[int, list[ray.ObjectRef]] | None = None
    if here.rank == 0:
        try:
            taken = ray.get(mailbox.take.remote(group, ended))
        except ray.exceptions.ActorDiedError:
            log.info("the mailbox of this lane is gone, so nobody waits for its work")
    return broadcast_from_rank_zero(taken) if here.size > 1 else taken


class Lane:
    """A running lane, as the process that keeps it sees it."""

    def __init__(self, resources: Resources, board: Board, storage: Path) -> None:
        self.mailbox = _MAILBOX.remote()
        self.error: BaseException | None = None
        self._last: LaneTraining | None = None
        self._job = train_job(
            _work,
            {
                "mailbox": self.mailbox,
                "board": board,
                "threads": torch_threads(resources),
                "resources": resources,
            },
            resources=reserved(resources, shared=True),
            name="lane",
            storage=storage,
            max_failures=-1,  # the mailbox counts the failures of each run
            callbacks=[Losses(self.mailbox)],
        )
        self._thread = threading.Thread(target=self._fit, name="raysweep-lane", daemon=True)
        self._thread.start()

    def _fit(self) -> None:
        try:
            self._job.fit()
        except BaseException as error:
            self.error = error

    @property
    def alive(self) -> bool:
        """Whether the lane can train."""
        return self._thread.is_alive() and self.error is None

    @property
    def free(self) -> bool:
        """Whether the lane can take a run now."""
        return self.alive and (self._last is None or not self._last.is_alive())

    def training(self, job: Job) -> LaneTraining:
        """Return the training of a run on this lane, to be started."""
        self._last = LaneTraining(self, job)
        return self._last

    def hold(self) -> bool:
        """Keep the workers for the next run; False if they are let go."""
        try:
            return self.free and bool(ray.get(self.mailbox.hold.remote()))
        except ray.exceptions.RayError:
            return False

    def rest(self) -> None:
        """Let the workers go unless another run follows in time."""
        self.mailbox.rest.remote()

    def abandon(self) -> None:
        """Leave the lane alone; its workers end as soon as they look for their next run."""
        ray.kill(self.mailbox)


class LaneTraining:
    """The training of one run on a lane, with the face of a thread."""

    def __init__(self, lane: Lane, job: Job) -> None:
        self._lane = lane
        self._job = job
        self._outcome: ray.ObjectRef | None = None
        self._ended = False
        self.error: BaseException | None = None

    def start(self) -> None:
        """Hand the run to the lane's workers."""
        mailbox = self._lane.mailbox
        self._outcome = mailbox.outcome.remote(mailbox.put.remote(self._job.stored()))

    def is_alive(self) -> bool:
        """Return whether the training goes on."""
        self.join(0.0)
        return self._outcome is not None and not self._ended

    def join(self, timeout: float) -> None:
        """Wait for the end of the training, at most `timeout` seconds."""
        if self._outcome is None or self._ended:
            return
        deadline = time.monotonic() + timeout
        while True:
            alive = self._lane.alive
            left = max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait([self._outcome], timeout=min(left, 1.0) if alive else 0.0)
            if ready:
                self._settle(self._outcome)
            elif not alive:
                self._end(self._lane.error or RunUnfinishedError("its lane has ended"))
            if self._ended or left == 0.0:
                return

    def _settle(self, outcome: ray.ObjectRef) -> None:
        try:
            given_up = ray.get(outcome)
        except ray.exceptions.RayError as error:
            self._lane.error = error  # its mailbox died
            self._end(error)
        else:
            self._end(None if given_up is None else RunUnfinishedError(given_up))

    def _end(self, error: BaseException | None) -> None:
        self._ended, self.error = True, error


#: The lane that this process keeps, with the folder of the launch that it belongs to.
_KEPT: dict[Path, Lane] = {}


def kept_lane(resources: Resources, board: Board, scratch: Path) -> Lane:
    """Return the lane of this process, held; a new one if there is none, or none that can take a run now."""
    lane = _KEPT.get(scratch)
    if lane is None or not lane.hold():
        if lane is not None:
            lane.abandon()
        lane = _KEPT[scratch] = Lane(resources, board, scratch / "lanes")
    return lane


def rest_lane(scratch: Path) -> None:
    """Let go the lane of this process, if it has one, until the next run."""
    if (lane := _KEPT.get(scratch)) is not None:
        lane.rest()
