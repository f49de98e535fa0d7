"""The time of a training step on this machine, in all and by part."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.languages.base import Language
from raysweep.languages.training_set import TrainingSet
from raysweep.models.base import ModelConfig
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, batches
from raysweep.training.memory import keep_freed_memory
from raysweep.training.step import Stepper

_LOOK = 0.5  # seconds of drawing that tell what a sentence costs, where it costs more than reading
_WARM_UP = 2  # steps in which memory is taken and kernels are chosen


class StepTimes:
    """Records the time of each part of training steps, for `pretrain(timings=...)`.

    Parts are `data` (waiting for the batch), `forward`, `backward` and `optimizer` (everything between the
    gradient and the next batch).  Where a model computes its gradients along with the loss, forward and
    backward are one part, `forward+backward`.  Times are seconds of `clock`, wall time by default.  A GPU is
    synchronised after every part, so a timed step takes longer than an untimed one.
    """

    def __init__(
        self, device: str | torch.device = "cpu", clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device, self._clock = torch.device(device), clock
        #: Seconds of each part, a dictionary a step.
        self.steps: list[dict[str, float]] = []
        self._taken: dict[str, float] = {}
        self._last = 0.0

    def begin(self) -> None:
        """Start the clock of a step."""
        self._taken, self._last = {}, self._now()

    def mark(self, part: str) -> None:
        """Add the time since `begin` or the last mark to `part`."""
        now = self._now()
        self._taken[part] = self._taken.get(part, 0.0) + now - self._last
        self._last = now

    def end(self) -> None:
        """Store the parts of the step."""
        self.steps.append(self._taken)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part of a step: the median over steps, but the mean for `data`.

        Sentences of many steps are drawn at once, so most steps wait for none.
        """
        parts = {
            part: [step[part] for step in self.steps if part in step] for step in self.steps for part in step
        }
        return {
            part: statistics.fmean(taken) if part == "data" else statistics.median(taken)
            for part, taken in parts.items()
        }

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()


def step_seconds(
    language: Language,
    model: ModelConfig,
    algorithm: AlgorithmConfig,
    pretrain: PretrainConfig,
    steps: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the median seconds of `steps` timed training steps on this CPU, drawing sentences included.

    They are seconds of `clock`.  Where sentences cost more to draw than to read, few are drawn, and all steps
    train on these.  It uses torch's current number of threads, keeps nothing, and leaves torch's generator as
    it was.
    """
    keep_freed_memory()
    device = torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        stepper = Stepper(
            model.build(language, seed=0),
            algorithm,
            language=language,
            pretrain=pretrain,
            seed=0,
            world=World(),
            device=device,
        )
        # A language builds its tables at first use and draws a chunk of steps at once, so the second chunk
        # is timed, not the first.
        last = max(steps + _WARM_UP, language.drawn_at_once // pretrain.batch_size)
        training, drawing = None, 0.0
        if language.stores_sentences:
            few, last = _Few(language, clock), steps + _WARM_UP
            training = TrainingSet(language=language, seed=0, store=few)
            drawing = few.seconds * pretrain.batch_size
        for _ in range(2):
            start = clock()
            drawn = list(batches(language, pretrain, seed=0, first=1, last=last, training=training))
            making = (clock() - start) / last
        times = []
        for step, batch in enumerate(drawn[: steps + _WARM_UP], start=1):
            start = clock()
            stepper.update(batch, step)
            times.append(clock() - start)
    return statistics.median(times[_WARM_UP:]) + drawing + making


class _Few:
    """A few sentences again and again, in the place of a store, with the seconds that drawing one took."""

    def __init__(self, language: Language, clock: Callable[[], float]) -> None:
        language.sample(1, seed=0)  # makes what drawing needs
        n, taken = 0, 0.0
        # More at once cost less each, as training draws them.
        while taken < _LOOK and n < language.drawn_at_once:
            n = min(max(1, 4 * n), language.drawn_at_once)
            start = clock()
            self._ids = language.sample(n, seed=0)
            taken = clock() - start
        self.seconds = taken / n

    def take(self, numbers: Tensor) -> Tensor:
        return self._ids[numbers % len(self._ids)]
