"""The training loop: from the last good checkpoint to the next milestones.

What a run computes is a function of (language, model, algorithm, batch size, mask, seed): batches, masks,
dropout and initial weights are keyed by seed and step, and a checkpoint holds everything else.  A run that is
killed at any moment and started again therefore ends with bitwise the weights of one never killed, on the
same kind of processor with the same number of threads and workers.

Losses stay on the device; they are looked at when a curve point is due, every few tenths of a second for the
caller's eyes, and before every checkpoint, so no checkpoint ever holds weights that are not finite.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import distributed

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.errors import CheckpointError, ConfigError, RaysweepError, RunFailedError, StorageError
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig
from raysweep.training import checkpoint as disk
from raysweep.training.checkpoint import CheckpointRecord, CurvePoint, LoopState
from raysweep.training.config import PretrainConfig
from raysweep.training.data import Batch, World, batches
from raysweep.training.memory import keep_freed_memory
from raysweep.training.step import Stepper

LOG_EVERY = 50  # steps a curve point covers
LOOK_SECONDS = 0.5  # between two looks at progress (and, with several workers, at `stop`)

log = logging.getLogger(__name__)

T = TypeVar("T")


class Journal(Protocol):
    """The durable memory of one run; rank 0 alone calls its methods."""

    @property
    def directory(self) -> Path:
        """The folder of the run; checkpoints lie in it."""

    def checkpoints(self) -> Sequence[CheckpointRecord]:
        """Return the committed records, newest (largest step) first."""

    def commit(self, record: CheckpointRecord) -> None:
        """Keep a record: durable when it returns.

        One for a step that is already there replaces all of it but its curve and time.
        """

    def quarantine(self, record: CheckpointRecord, reason: str) -> None:
        """Forget a record whose files cannot be trusted; the loop moves the files aside afterwards."""


@dataclass(frozen=True)
class Progress:
    """Where a run is: `step` of `steps`, `loss` (nats) of the latest steps."""

    step: int
    steps: int
    loss: float


def pretrain(
    *,
    language: Language,
    model: ModelConfig,
    algorithm: AlgorithmConfig,
    pretrain: PretrainConfig,
    seed: int,
    journal: Journal,
    world: World | None = None,
    device: str | torch.device = "cpu",
    on_progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> int:
    """Train until every milestone has a committed checkpoint; return the step reached.

    It resumes from the newest good checkpoint before the first milestone that is missing; a checkpoint whose
    files are not those recorded is quarantined and computed again.  With nothing missing it returns at once.
    `on_progress` is called on rank 0, at most about twice a second.  When `stop()` is true on any rank, all
    leave at a step boundary after a checkpoint to resume from.

    With `world.size` > 1 every worker calls this, `torch.distributed` is initialised, and `journal.directory`
    is on storage that all of them see.

    Raises `ConfigError` for an algorithm that does not train or a batch smaller than the number of workers,
    `RunFailedError` naming the step whose loss is not finite, and `StorageError` where a checkpoint cannot be
    written.
    """
    if not algorithm.trains:
        raise ConfigError(f"algorithm.kind: '{algorithm.kind}' does no training; evaluate it directly")
    loop = _Loop(language, model, algorithm, pretrain, seed, journal, world or World(), torch.device(device))
    # Each step seeds torch's generator for its dropout; the caller's stays as it was.
    with torch.random.fork_rng(devices=[loop.device] if loop.device.type == "cuda" else []):
        return loop.run(on_progress, stop)


class _Loop:
    """One call of `pretrain`."""

    def __init__(
        self,
        language: Language,
        model: ModelConfig,
        algorithm: AlgorithmConfig,
        config: PretrainConfig,
        seed: int,
        journal: Journal,
        world: World,
        device: torch.device,
    ) -> None:
        self.language, self.config, self.seed = language, config, seed
        self.journal, self.world, self.device = journal, world, device
        self._model, self._algorithm = model, algorithm
        self.latest = math.nan
        self.step = self.pending = 0
        self.train_seconds = 0.0
        self.curve: list[CurvePoint] = []
        self.known_points: set[int] = set()

    def run(self, on_progress: Callable[[Progress], None] | None, stop: Callable[[], bool] | None) -> int:
        """Train to the last milestone; return the step reached."""
        self.steps = self.config.milestones[-1]
        record, done = self._on_first(self._survey)
        if done:
            return self.steps
        keep_freed_memory()
        self._start(record)
        looks = _Looks(self, on_progress, stop)
        milestones = set(self.config.milestones)
        for step, batch in enumerate(self._batches(self.step + 1, self.steps), start=self.step + 1):
            self.losses[self.pending] = self.stepper.update(batch, step)
            self.pending += 1
            self.step = step
            if step % LOG_EVERY == 0:
                self._add_point()
            leave = looks.look()
            every = self.config.checkpoint_every
            if step in milestones or leave or (every is not None and step % every == 0):
                self._keep(milestone=step in milestones)
            if leave:
                break
        return self.step

    def _survey(self) -> tuple[CheckpointRecord | None, bool]:
        """Return the record to resume from, None for a fresh start, and whether nothing is missing."""
        run = self.journal.directory
        disk.remove_unfinished(run)
        while True:
            records = sorted(self.journal.checkpoints(), key=lambda r: r.step, reverse=True)
            broken = next((found for r in records if r.milestone and (found := self._incomplete(r))), None)
            if broken is None:
                have = {r.step for r in records if r.milestone}
                missing = [m for m in self.config.milestones if m not in have]
                if not missing:
                    return None, True
                # States between milestones are removed once a newer one is kept: their absence is no fault.
                record = next(
                    (
                        r
                        for r in records
                        if r.step < missing[0] and disk.checkpoint_directory(run, r.step).exists()
                    ),
                    None,
                )
                if record is None:
                    return None, False
                try:
                    disk.verify(disk.checkpoint_directory(run, record.step), record.files)
                except CheckpointError as error:
                    broken = (record, str(error))
                else:
                    return record, False
            self._quarantine(*broken)

    def _incomplete(self, record: CheckpointRecord) -> tuple[CheckpointRecord, str] | None:
        """Return the record and what is plainly wrong with its files, unread; None if nothing is."""
        place = disk.checkpoint_directory(self.journal.directory, record.step)
        for name, digest in record.files.items():
            path = place / name
            if not path.exists() or path.stat().st_size != digest.size:
                return record, f"{path}: missing or not of the recorded size"
        return None

    def _quarantine(self, record: CheckpointRecord, reason: str) -> None:
        log.warning("checkpoint of step %d is set aside and will be computed again: %s", record.step, reason)
        self.journal.quarantine(record, reason)
        disk.move_aside(self.journal.directory, record.step)

    def _start(self, record: CheckpointRecord | None) -> None:
        """Make the model, its optimizer and the loss buffer, at the step of `record` or at 0."""
        model = self._model.build(self.language, seed=self.seed)
        self.stepper = Stepper(
            model,
            self._algorithm,
            language=self.language,
            pretrain=self.config,
            seed=self.seed,
            world=self.world,
            device=self.device,
        )
        # This rank's parts of the losses of the steps since the last curve point.
        self.losses = torch.zeros(LOG_EVERY, dtype=torch.float64, device=self.device)
        if record is not None:
            place = disk.checkpoint_directory(self.journal.directory, record.step)
            stepper = self.stepper
            average = None if stepper.average is None else stepper.average.tensors
            state = disk.restore(place, record.files, stepper.model, stepper.optimizer, average)
            self.step, self.train_seconds, self.pending = state.step, state.train_seconds, len(state.losses)
            # Those in a checkpoint are sums over ranks; one rank carries them on.
            if self.world.rank == 0:
                self.losses[: self.pending] = torch.tensor(state.losses, dtype=torch.float64)
        if self.world.rank == 0:
            # Going back to an older checkpoint, the newer ones that stand keep the points they have.
            self.known_points = {p.step for r in self.journal.checkpoints() for p in r.curve}
        if self.world.size > 1:
            self.stepper.connect(next(self._batches(1, 1)))
        self.clock = time.monotonic()

    def _batches(self, first: int, last: int) -> Iterator[Batch]:
        return batches(
            self.language,
            self.config,
            seed=self.seed,
            first=first,
            last=last,
            world=self.world,
            device=self.device,
        )

    def recent_losses(self) -> list[float]:
        """Return the losses of the steps since the last curve point; all ranks call this together.

        Raises `RunFailedError` naming the first step whose loss is not finite.
        """
        losses = self.losses[: self.pending].clone()
        if self.world.size > 1:
            distributed.all_reduce(losses)
        values: list[float] = losses.tolist()
        for step, value in enumerate(values, start=self.step - self.pending + 1):
            if not math.isfinite(value):
                raise RunFailedError(
                    f"step {step}: the training loss is {value}; lower the learning rate "
                    f"(algorithm.lr, now {self._algorithm.learning_rate(step, self.steps):g} at this step), "
                    "warm up for longer, or clip the gradient"
                )
        return values

    def _add_point(self) -> None:
        values = self.recent_losses()
        self.latest = math.fsum(values) / len(values)
        if self.world.rank == 0 and self.step not in self.known_points:
            self.curve.append(CurvePoint(step=self.step, loss=self.latest, time_ms=time.time_ns() // 10**6))
        self.pending = 0

    def _keep(self, *, milestone: bool) -> None:
        """Write and commit a checkpoint of this step, then remove the states it makes superfluous."""
        losses = self.recent_losses()
        if not all(bool(p.isfinite().all()) for p in self.stepper.model.parameters()):
            raise RunFailedError(
                f"step {self.step}: weights are not finite after this step; lower the learning rate "
                "(algorithm.lr), warm up for longer, or clip the gradient"
            )
        self.train_seconds += time.monotonic() - self.clock
        state = LoopState(step=self.step, train_seconds=self.train_seconds, losses=tuple(losses))

        def write() -> None:
            run, stepper = self.journal.directory, self.stepper
            average = None if stepper.average is None else stepper.average.tensors
            record = CheckpointRecord(
                step=self.step,
                milestone=milestone,
                files=disk.write_checkpoint(run, stepper.model, stepper.optimizer, state, average),
                curve=tuple(self.curve),
                time=time.time(),
                train_seconds=self.train_seconds,
            )
            self.journal.commit(record)
            self.curve.clear()
            for older in self.journal.checkpoints():
                if older.step < self.step and not older.milestone:
                    disk.remove(run, older.step)

        self._on_first(write)
        self.clock = time.monotonic()

    def _on_first(self, work: Callable[[], T]) -> T:
        """Return what `work` returns on rank 0, on all ranks; where it fails there, all fail in kind.

        Rank 0 raises what it met; on the others an `OSError` of it is a `StorageError`, since storage that
        fails is not the run's own failure.
        """
        if self.world.size == 1:
            return work()
        outcome: list[Any] = [None, None]
        try:
            if self.world.rank == 0:
                outcome = [work(), None]
        except (RaysweepError, KeyboardInterrupt, SystemExit) as error:
            outcome = [None, error]
            raise
        except OSError as error:
            outcome = [None, StorageError(f"worker 0: {type(error).__name__}: {error}")]
            raise
        except BaseException as error:
            outcome = [None, RunFailedError(f"worker 0: {type(error).__name__}: {error}")]
            raise
        finally:
            distributed.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result


class _Looks:
    """When to look up from the work: to report progress, and to ask whether to stop."""

    def __init__(
        self, loop: _Loop, on_progress: Callable[[Progress], None] | None, stop: Callable[[], bool] | None
    ) -> None:
        self.loop, self.on_progress, self.stop = loop, on_progress, stop
        self.last_time, self.last_step = time.monotonic(), loop.step
        self.next_step = loop.step + 1

    def look(self) -> bool:
        """Report progress where it is due; return whether to stop."""
        if self.loop.world.size == 1:
            if time.monotonic() - self.last_time >= LOOK_SECONDS:
                self._report()
            return self.stop is not None and self.stop()
        # Asking the others costs as much as a small step, so it is done at steps that all agree on.
        if self.loop.step < self.next_step:
            return False
        speed = self._report()
        ask = 0 if self.stop is None else int(self.stop())
        pause = max(1, min(1000, round(speed * LOOK_SECONDS))) if self.loop.world.rank == 0 else 0
        agreed = torch.tensor([ask, pause], device=self.loop.device)
        distributed.all_reduce(agreed, op=distributed.ReduceOp.MAX)
        stop, pause = agreed.tolist()
        self.next_step = self.loop.step + pause
        return bool(stop)

    def _report(self) -> float:
        """Check and report the latest losses; return the steps a second since the last time."""
        loop, now = self.loop, time.monotonic()
        speed = (loop.step - self.last_step) / max(now - self.last_time, 1e-9)
        self.last_time, self.last_step = now, loop.step
        values = loop.recent_losses()
        loss = math.fsum(values) / len(values) if values else loop.latest
        if self.on_progress is not None and loop.world.rank == 0:
            self.on_progress(Progress(step=loop.step, steps=loop.steps, loss=loss))
        return speed
