"""How long a training step takes here, and where its time goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, batches
from raysweep.training.memory import keep_freed_memory
from raysweep.training.step import Stepper

_WARM_UP = 2  # steps in which memory is taken and kernels are chosen


class StepTimes:
    """Where the time of training steps goes, for `pretrain(timings=...)`.

    Parts are `data` (waiting for the batch), `forward`, `backward` and `optimizer` (with all that stands
    between the gradient and the next batch); where a model makes its gradients along with the loss, forward
    and backward are one part, `forward+backward`.  Each is seconds of `clock`, on the wall by default; a GPU
    is waited for behind every part, so the whole takes longer than it does otherwise.
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
        """Set the clock: what came before belongs to no step."""
        self._taken, self._last = {}, self._now()

    def mark(self, part: str) -> None:
        """Count the time since `begin` or the last mark as that of `part`."""
        now = self._now()
        self._taken[part] = self._taken.get(part, 0.0) + now - self._last
        self._last = now

    def end(self) -> None:
        """Keep the parts as those of a step."""
        self.steps.append(self._taken)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part a step: their median over the steps, but the mean for `data`.

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
) -> float:
    """Return the median seconds of `steps` timed training steps on this CPU, drawing sentences included.

    It uses torch's current number of threads, keeps nothing, and leaves torch's generator as it was.
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
        # A language makes its tables when it is first used, and draws a chunk of steps at once: the first
        # chunk is not on the clock, the second is.
        last = max(steps + _WARM_UP, language.drawn_at_once // pretrain.batch_size)
        for _ in range(2):
            start = time.perf_counter()
            drawn = list(batches(language, pretrain, seed=0, first=1, last=last))
            drawing = (time.perf_counter() - start) / last
        times = []
        for step, batch in enumerate(drawn[: steps + _WARM_UP], start=1):
            start = time.perf_counter()
            stepper.update(batch, step)
            times.append(time.perf_counter() - start)
    return statistics.median(times[_WARM_UP:]) + drawing
