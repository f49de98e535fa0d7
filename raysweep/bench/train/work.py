"""The work of all contestants, and raysweep's steps on its batches, as in the training loop."""

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from raysweep.algorithms.adamw import AdamWConfig
from raysweep.bench.harness import Device
from raysweep.languages import PCFG
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.encoder import EncoderConfig
from raysweep.models.precision import Precision
from raysweep.training.ahead import drawn
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, batches, chunks
from raysweep.training.step import Stepper
from raysweep.training.timing import StepTimes


@dataclass(frozen=True, kw_only=True)
class Work:
    """`steps` training steps of an encoder of `shape`, on `batch_size` sentences each.

    The encoder is post-norm, as BERT is.
    """

    shape: str
    batch_size: int
    steps: int
    device: Device
    algorithm: AdamWConfig = field(default_factory=AdamWConfig)
    language: Language = field(default_factory=PCFG.random)
    precision: Precision = "auto"

    @property
    def pretrain(self) -> PretrainConfig:
        """Return the training that begins with these steps: one masked word in each sentence."""
        return PretrainConfig(steps=self.steps, batch_size=self.batch_size, precision=self.precision)

    def encoder(self, dropout: float) -> EncoderConfig:
        """Return the configuration of the model."""
        return EncoderConfig(shape=self.shape, norm="post", dropout=dropout)

    def model(self, dropout: float) -> MaskedLM:
        """Return a model with the initial weights, on the CPU."""
        return copy.deepcopy(_drawn(self.encoder(dropout), self.language))

    def stepper(self, dropout: float) -> Stepper:
        """Return raysweep's model and optimizer before the first step."""
        return Stepper(
            self.model(dropout),
            self.algorithm,
            language=self.language,
            pretrain=self.pretrain,
            seed=0,
            world=World(),
            device=torch.device(self.device),
        )

    def batches(self) -> Iterator[Batch]:
        """Draw the batches of the steps."""
        return batches(self.language, self.pretrain, seed=0, first=1, last=self.steps, device=self.device)

    def drawn(self) -> Generator[Batch]:
        """Draw them as the training loop does: beside a GPU, and where it is faster, during the steps."""
        given = chunks(self.language, self.pretrain, seed=0, first=1, last=self.steps, device=self.device)
        return drawn(given, torch.device(self.device))

    @cached_property
    def lengths(self) -> Tensor:
        """Return the number of words of each sentence of the steps [steps · batch_size], on the CPU."""
        return torch.cat([batch.lengths for batch in self.batches()])

    @property
    def tokens(self) -> int:
        """Return the number of words of all steps."""
        return int(self.lengths.sum())


# With dropout and without.
@lru_cache(maxsize=2)
def _drawn(encoder: EncoderConfig, language: Language) -> MaskedLM:
    """Draw a model's initial weights, which takes seconds for a large one; every contestant copies them."""
    return encoder.build(language, seed=0)


def by_length(given: Sequence[Batch]) -> list[Batch]:
    """Return the sentences of `given` in as many batches, sorted by length and cut to their longest sentence.

    All batches have one masked word in each sentence.
    """
    ids = torch.cat([batch.ids for batch in given])
    positions = torch.cat([batch.index for batch in given])
    targets = torch.cat([batch.targets for batch in given])
    lengths = torch.cat([batch.lengths for batch in given])
    order = lengths.argsort(stable=True)
    return [
        Batch(
            ids=ids[rows][:, : int(lengths[rows].max())],
            index=positions[rows],
            targets=targets[rows],
            lengths=lengths[rows],
            count=len(rows),
            rows=range(len(rows)),
            single=True,
        )
        for rows in order.split([len(batch.ids) for batch in given])
    ]


def train(work: Work, stepper: Stepper) -> None:
    """Draw the sentences and do the steps as the training loop does; return when all are done."""
    with closing(work.drawn()) as given:
        for step, batch in enumerate(given, start=1):
            stepper.update(batch, step)
    wait(work.device)


def losses(work: Work, given: Sequence[Batch]) -> Tensor:
    """Return the losses on given batches from the initial weights, without dropout: float64 [steps]."""
    stepper = work.stepper(dropout=0.0)
    found = [stepper.update(batch, step) for step, batch in enumerate(given, start=1)]
    return torch.stack(found).double().cpu()


def wait(device: Device) -> None:
    """Wait until the device has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def split(work: Work, stepper: Stepper) -> dict[str, float]:
    """Return the median seconds a step of each of its parts (see `StepTimes`).

    The time of data is the mean over the steps, because sentences of many steps are drawn at once.  Seconds
    are CPU seconds; on a GPU they are wall seconds, and the code waits for the GPU after every part.
    """
    clock = time.process_time if work.device == "cpu" else time.perf_counter
    times = StepTimes(work.device, clock)
    stepper.mark = times.mark
    times.begin()
    with closing(work.drawn()) as given:
        for step, batch in enumerate(given, start=1):
            times.mark("data")
            stepper.update(batch, step)
            times.end()
            times.begin()
    stepper.mark = None
    return times.seconds()
