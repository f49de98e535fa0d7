"""How long a training step takes here, for estimates of a sweep's time."""

from __future__ import annotations

import statistics
import time

import torch

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, batches
from raysweep.training.memory import keep_freed_memory
from raysweep.training.step import Stepper

_WARM_UP = 2  # steps in which memory is taken and kernels are chosen


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
