"""The masked-language-model loss on sentences that training never sees.

    loss = E −log f(x_t | words that are not masked),    t over the masked positions of all sentences

With m_i masked words in sentence i whose losses sum to l_i, the estimate is the ratio Σ l_i / Σ m_i, and its
standard error that of a ratio of means over sentences (Cochran, "Sampling techniques", 1977, section 6.3):
the residuals l_i − loss · m_i take the place of the values.

It serves languages without a known truth.  Where the truth is known, the excess loss is far less noisy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from raysweep.errors import DataError
from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations, forward
from raysweep.evaluation.sharding import draw_sentences, shard_count, shard_range
from raysweep.evaluation.split import SplitFields, gap
from raysweep.languages.base import Estimate, Language
from raysweep.seeding import derive, one_position
from raysweep.training.config import check_mask
from raysweep.training.data import some_positions

HELD_OUT_LOSS = Quantity(
    name="held_out_loss", heading="held-out loss", short="loss", unit="nats", kind="loss", better="less",
    live=True, report=True,
)  # fmt: skip

TRAIN_LOSS = Quantity(
    name="train_loss", heading="training loss", short="train", unit="nats", better="less", report=True
)
GAP = Quantity(name="generalisation_gap", heading="generalisation gap", short="gap", unit="nats", report=True)


class HeldOutLossConfig(SplitFields):
    """Loss over `sentences` held-out sentences, the same words of them masked for every run.

    With `split: both` it is measured over as many sentences of the training set too (`train_loss`), and
    `generalisation_gap` is the held-out loss less that (see `raysweep.evaluation.split`).  `mask` is "one" or
    a rate, as in `pretrain`; every masked word is hidden by the mask token.
    """

    kind: Literal["held_out_loss"] = "held_out_loss"

    sentences: int = Field(default=4096, gt=1)
    #: `one` position a sentence, or a rate, as in `pretrain`.
    mask: Literal["one"] | float = 0.15
    seed: int = Field(default=0, ge=0)
    #: Sentences a shard.
    shard_size: int = Field(default=1024, gt=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(sentences=40, shard_size=16, mask=0.5)

    @field_validator("mask", mode="before")
    @classmethod
    def _mask_is_one_or_a_rate(cls, value: object) -> object:
        return check_mask(value)

    def problems(self, language: Language) -> list[tuple[str, str]]:
        """Return the problem of a language with too few held-out sentences, where that is known by now."""
        held = language.held_out.distinct
        if held is not None and held < self.sentences:
            return [("sentences", f"{self.sentences} are asked for, {held} are held out; ask for no more")]
        return []

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return sentences · 2·P·T, for each of the splits."""
        return Operations.fixed(self.measured * forward(parameters, language))

    def shards(self) -> int:
        return shard_count(self.sentences, self.shard_size)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return the sum of losses and the number of masked words of each sentence [n], float64.

        Those of the training sentences stand beside them.  Raises `DataError` for a language with fewer
        held-out sentences, and `ConfigError` as `training_sentences` does.
        """
        language = subject.language
        numbers = shard_range(self.sentences, self.shard_size, shard)
        language.held_out.prepare()
        for field, message in self.problems(language):
            raise DataError(f"{field}: {message}")
        ids = draw_sentences(language, numbers, seed=self.seed, purpose="held_out_loss")
        loss, masked = self._losses(subject, ids, numbers, "mask")
        found = {"loss": loss, "masked": masked}
        own = self.training_sentences(subject, numbers)
        if own is not None:
            found["train_loss"], found["train_masked"] = self._losses(subject, own, numbers, "training mask")
        return found

    def _losses(
        self, subject: Subject, ids: Tensor, numbers: range, purpose: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of losses and the number of masked words of each sentence [n]."""
        at = torch.arange(numbers.start, numbers.stop)
        lengths, key = subject.language.lengths(ids), derive(self.seed, "held_out_loss", purpose)
        if self.mask == "one":
            mask = torch.zeros_like(ids, dtype=torch.bool)
            mask[torch.arange(len(ids)), one_position(key, at, lengths)] = True
        else:
            mask = some_positions(lengths, ids.shape[1], self.mask, seed=key, sentences=at)
        losses = -subject.word_log_probs(ids, mask).cpu()
        rows = mask.nonzero()[:, 0]
        sums = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, rows, losses)
        return sums.numpy(), mask.sum(dim=1).double().numpy()

    def quantities(self) -> Sequence[Quantity]:
        return (HELD_OUT_LOSS,)

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return the losses in nats a masked word; n counts sentences."""
        held_out = HELD_OUT_LOSS.estimate(_mean(shards, "loss", "masked"))
        if "train_loss" not in shards[0]:
            return [held_out]
        training = TRAIN_LOSS.estimate(_mean(shards, "train_loss", "train_masked"))
        return [held_out, training, gap(GAP, held_out, training)]


def _mean(shards: Sequence[Mapping[str, np.ndarray]], sums: str, counts: str) -> Estimate:
    return mean_per_word(*(np.concatenate([shard[name] for shard in shards]) for name in (sums, counts)))


def mean_per_word(sums: np.ndarray, counts: np.ndarray) -> Estimate:
    """Return the mean of a word's values, given their sum [n] and number [n] in each of n sentences.

    It is a ratio of means over sentences, with the standard error of the module's docstring; NaN for one.
    """
    n = len(sums)
    value = float(sums.sum() / counts.sum())
    residuals = sums - value * counts
    error = math.sqrt(n / (n - 1) * float(residuals @ residuals)) / float(counts.sum()) if n > 1 else math.nan
    return Estimate(value=value, standard_error=error, n=n)
