"""The training loop: from the last good checkpoint to the next milestones.

A run is a function of (language, model, algorithm, batch size, mask, seeds): batches, masks, dropout and
initial weights are keyed by seeds and step, and a checkpoint holds everything else.  So a run that is killed
at any moment and started again ends with bitwise the same weights as one that was never killed, on the same
kind of processor with the same number of threads and workers, and the same sharding.

Losses stay on the device.  The loop reads them when a curve point is due, about twice a second for progress,
and before every checkpoint, so no checkpoint ever holds weights that are not finite.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import torch
from torch import distributed

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.errors import ConfigError, RunFailedError
from raysweep.languages.base import Language
from raysweep.languages.training_set import TrainingSet
from raysweep.models.base import ModelConfig
from raysweep.models.batch import Batch
from raysweep.training import checkpoint as disk
from raysweep.training.ahead import drawn
from raysweep.training.checkpoint import CheckpointRecord, CurvePoint, LoopState
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, chunks
from raysweep.training.journal import Journal, survey
from raysweep.training.memory import keep_freed_memory
from raysweep.training.pieces import held
from raysweep.training.progress import Looks, Progress
from raysweep.training.seeds import Seeds
from raysweep.training.start import Start
from raysweep.training.step import Stepper
from raysweep.training.throughput import Throughput
from raysweep.training.timing import StepTimes
from raysweep.training.workers import on_first, summed

LOG_EVERY = 50  # steps a curve point covers

log = logging.getLogger(__name__)


def pretrain(
    *,
    language: Language,
    model: ModelConfig,
    algorithm: AlgorithmConfig,
    pretrain: PretrainConfig,
    seed: int | Seeds,
    journal: Journal,
    start: Start | None = None,
    world: World | None = None,
    device: str | torch.device = "cpu",
    on_progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    timings: StepTimes | None = None,
    training: TrainingSet | None = None,
) -> int:
    """Train until every milestone has a committed checkpoint; return the step reached.

    Training resumes from the newest intact checkpoint before the first missing milestone; milestone 0 is the
    state before the first step.  A checkpoint whose
    files are damaged is quarantined and computed again.  With nothing missing this returns at once.
    `on_progress` is called on rank 0, about twice a second.  When `stop()` is true on any rank, all ranks
    write a checkpoint at a step boundary and return.  `timings` records where the time of every step goes.

    A thread draws sentences one chunk of steps ahead, where that pays; `training` is where they come from, if
    they are stored.  Every point of the curve holds tokens a second and model FLOPs utilisation.

    One `seed` decides initial weights, data and dropout, or `Seeds` one each.  With `start` the weights are
    those of another run's checkpoint or of a model's folder instead (`raysweep.training.start`); it is read
    only where the run has no checkpoint of its own to go on from.

    With `world.size` > 1 every worker calls this, `torch.distributed` is initialised, and `journal.directory`
    is on storage that all of them see.  With `world.shards` > 1 they share the weights.

    Raises `ConfigError` for an algorithm that does not train, for a batch smaller than the number of workers
    and for more `pretrain.sentences` than there are, `RunFailedError` naming the first step with a loss that
    is not finite, `StorageError` where a checkpoint cannot be written, and `CheckpointError` for a `start`
    that has gone, has changed or is of another model.
    """
    if not algorithm.trains:
        raise ConfigError(f"algorithm.kind: '{algorithm.kind}' does no training; evaluate it directly")
    here, where = world or World(), torch.device(device)
    loop = _Loop(language, model, algorithm, pretrain, seed, journal, start, here, where, training)
    # Steps may seed torch's generator for their dropout; the caller's generator is restored afterwards.
    with torch.random.fork_rng(devices=[loop.device] if loop.device.type == "cuda" else []):
        return loop.run(on_progress, stop, timings)


class _Loop:
    """One call of `pretrain`."""

    def __init__(
        self,
        language: Language,
        model: ModelConfig,
        algorithm: AlgorithmConfig,
        config: PretrainConfig,
        seed: int | Seeds,
        journal: Journal,
        start: Start | None,
        world: World,
        device: torch.device,
        training: TrainingSet | None,
    ) -> None:
        self.language, self.config, self.seeds = language, config, Seeds.of(seed)
        self.journal, self.world, self.device = journal, world, device
        self._model, self._algorithm, self._training, self._source = model, algorithm, training, start
        self.latest = math.nan
        self.tokens_per_second: float | None = None
        self.mfu: float | None = None
        self.step = self.pending = 0
        self.train_seconds = 0.0
        #: None if a part of the training was not counted.
        self.train_cpu_seconds: float | None = 0.0
        #: The points since the checkpoint before the last one, which was of step `last`.
        self.curve: list[CurvePoint] = []
        self.last = 0
        self.known_points: set[int] = set()

    def run(
        self,
        on_progress: Callable[[Progress], None] | None,
        stop: Callable[[], bool] | None,
        timings: StepTimes | None,
    ) -> int:
        """Train to the last milestone; return the step reached."""
        self.steps = self.config.milestones[-1]
        record, done = on_first(self.world, lambda: survey(self.journal, self.config.milestones))
        if done:
            return self.steps
        keep_freed_memory()
        self._start(record)
        looks = Looks(self, on_progress, stop)
        milestones = set(self.config.milestones)
        if record is None and 0 in milestones:
            self._keep(milestone=True)
        if timings is not None:
            self.stepper.mark = timings.mark
            timings.begin()
        first = self.step + 1
        with closing(drawn(self._chunks(first, self.steps), self.device)) as batches:
            for step, batch in enumerate(batches, start=first):
                if timings is not None:
                    timings.mark("data")
                self.losses[self.pending] = self.stepper.update(batch, step)
                if step == first:
                    self.point_seconds = self._seconds()
                else:
                    self.throughput.add(batch)
                self.pending += 1
                self.step = step
                if timings is not None:
                    timings.end()
                if step % LOG_EVERY == 0:
                    self._add_point()
                leave = looks.look()
                every = self.config.checkpoint_every
                if step in milestones or leave or (every is not None and step % every == 0):
                    self._keep(milestone=step in milestones)
                if leave:
                    break
                if timings is not None:
                    timings.begin()
        return self.step

    def _start(self, record: CheckpointRecord | None) -> None:
        """Make the model, its optimizer and the loss buffer, at the step of `record` or at 0."""
        model = self._model.build(self.language, seed=self.seeds.init)
        source = self._source if record is None else None
        if source is not None:
            source.set_weights(model, self.language)
            log.info("training starts from %s", source)
        self.stepper = Stepper(
            model,
            self._algorithm,
            language=self.language,
            pretrain=self.config,
            seed=self.seeds,
            world=self.world,
            device=self.device,
        )
        if source is not None:
            source.set_optimizer(self.stepper.model, self.stepper.optimizer, self.world)
        # This rank's parts of the losses of the steps since the last curve point.
        self.losses = torch.zeros(LOG_EVERY, dtype=torch.float64, device=self.device)
        before = None
        if record is not None:
            place = disk.checkpoint_directory(self.journal.directory, record.step)
            stepper = self.stepper
            average = None if stepper.average is None else stepper.average.tensors
            state = disk.restore(place, record.files, stepper.model, stepper.optimizer, average, self.world)
            self.step, self.train_seconds, self.pending = state.step, state.train_seconds, len(state.losses)
            self.train_cpu_seconds = state.train_cpu_seconds
            before = state.precision
            # A checkpoint holds losses summed over ranks, so one rank alone takes them up.
            if self.world.rank == 0:
                self.losses[: self.pending] = torch.tensor(state.losses, dtype=torch.float64)
        if self.world.rank == 0:
            # After going back to an older checkpoint, newer records keep the points that they have.
            records = self.journal.checkpoints()
            self.known_points = {p.step for r in records for p in r.curve}
            if record is not None:
                before_it = max((r.step for r in records if r.step < record.step), default=0)
                self.curve = [p for p in record.curve if p.step > before_it]
                self.last = record.step
        if self.world.size > 1:
            [[example]] = self._chunks(1, 1)
            self.stepper.connect(example)
        log.info("matrix products of the training are in %s", self._precision)
        if before not in (None, self._precision):
            log.warning(
                "trained in %s up to step %d, it goes on in %s, the faster on this machine; set "
                "pretrain.precision to hold a sweep to one of them",
                before, self.step, self._precision,
            )  # fmt: skip
        self.throughput = Throughput(model, self.config, self.world, self.device, self.stepper.dtype)
        self._begin_clocks()

    def _chunks(self, first: int, last: int) -> Iterator[list[Batch]]:
        return chunks(
            self.language,
            self.config,
            seed=self.seeds.data,
            first=first,
            last=last,
            world=self.world,
            device=self.device,
            training=self._training,
        )

    @property
    def _precision(self) -> str:
        return str(self.stepper.dtype).removeprefix("torch.")

    def _begin_clocks(self) -> None:
        """Count the time of training from here on."""
        self.clock, self.cpu_clock = time.monotonic(), time.process_time()

    def _seconds(self) -> float:
        """Return the seconds of training up to now, over all attempts, without writing checkpoints."""
        return self.train_seconds + time.monotonic() - self.clock

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
                rate = self._algorithm.learning_rate(step, self.config.steps)
                raise RunFailedError(
                    f"step {step}: the training loss is {value}; lower the learning rate (algorithm.lr, now "
                    f"{rate:g} at this step), warm up for longer, or clip the gradient"
                )
        return values

    def _add_point(self) -> None:
        values = self.recent_losses()
        self.latest = math.fsum(values) / len(values)
        # Reading the losses waited for the device, so the clock counts finished steps only.
        seconds = self._seconds()
        tokens_per_second, mfu = self.throughput.take(seconds - self.point_seconds)
        self.tokens_per_second, self.mfu = self.throughput.mean
        self.point_seconds = seconds
        if self.world.rank == 0 and self.step not in self.known_points:
            self.curve.append(
                CurvePoint(
                    step=self.step,
                    loss=self.latest,
                    time_ms=time.time_ns() // 10**6,
                    tokens_per_second=tokens_per_second,
                    mfu=mfu,
                )
            )
        self.pending = 0

    def _is_kept(self) -> bool:
        return any(record.step == self.step and record.milestone for record in self.journal.checkpoints())

    def _keep(self, *, milestone: bool) -> None:
        """Write and commit a checkpoint of this step, then remove older states that it makes superfluous.

        A milestone that is there, on the way to one that is not, stays as it is: others may be reading it.
        """
        if not milestone and on_first(self.world, self._is_kept):
            return
        losses = self.recent_losses()
        sound = all(bool(held(p).isfinite().all()) for p in self.stepper.model.parameters())
        if sum(summed(self.world, [float(not sound)], self.device)):
            raise RunFailedError(
                f"step {self.step}: weights are not finite after this step; lower the learning rate "
                "(algorithm.lr), warm up for longer, or clip the gradient"
            )
        self.train_seconds = self._seconds()
        if self.train_cpu_seconds is not None:
            self.train_cpu_seconds += time.process_time() - self.cpu_clock
        state = LoopState(
            step=self.step,
            train_seconds=self.train_seconds,
            train_cpu_seconds=self.train_cpu_seconds,
            losses=tuple(losses),
            precision=self._precision,
        )

        run, stepper = self.journal.directory, self.stepper
        average = None if stepper.average is None else stepper.average.tensors
        files = disk.write_checkpoint(run, stepper.model, stepper.optimizer, state, average, self.world)

        def commit() -> None:
            record = CheckpointRecord(
                step=self.step,
                milestone=milestone,
                files=files,
                curve=tuple(self.curve),
                time=time.time(),
                train_seconds=self.train_seconds,
                train_cpu_seconds=self.train_cpu_seconds,
                micro_batch=stepper.micro_batch,
            )
            self.journal.commit(record)
            self.curve = [p for p in self.curve if p.step > self.last]
            self.last = self.step
            for older in self.journal.checkpoints():
                if older.step < self.step and not older.milestone:
                    disk.remove(run, older.step)

        on_first(self.world, commit)
        self._begin_clocks()
