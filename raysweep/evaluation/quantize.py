"""The pre-training loss after rounding or disturbing the weights (`raysweep.downstream.quantize`).

    rise = loss of the changed weights - loss of the weights as they are, on the same sentences

`int8` and `int4` are weights rounded to the nearest level per output channel, `noise0.03` weights with
Gaussian noise of 3 % of each matrix's norm, averaged over draws.  At equal loss, the rise grows with the
sharpness of the minimum: for small noise its mean is half the trace of the Hessian, weighted by the squared
sizes of the weights.

The standard error is over sentences.  That of noise is also over draws: the sum of both variances, which is
slightly more than the variance of a mean over crossed sentences and draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from raysweep.downstream.quantize import noisy, quantized
from raysweep.errors import DataError
from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.held_out_loss import mean_per_word
from raysweep.evaluation.labels import model_of
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.notes import text_arrays, text_of
from raysweep.evaluation.operations import Operations
from raysweep.evaluation.pretraining_loss import HEADINGS, PretrainingLoss, PretrainingLossFields
from raysweep.evaluation.sharding import shard_count, shard_range
from raysweep.languages.base import Estimate, Language
from raysweep.models.base import MaskedLM
from raysweep.models.subject import ModelSubject
from raysweep.seeding import derive

RISE = Quantity(
    name="quantize/{weights}", heading="rise of the loss", short="rise", unit="nats", better="less",
    report=True,
)  # fmt: skip
AFTER = {
    loss: Quantity(name=f"quantize_{loss}/{{weights}}", heading=f"{heading} of changed weights", unit="nats")
    for loss, heading in HEADINGS.items()
}


Bits = Annotated[int, Field(ge=2, le=16)]
NoiseSize = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class QuantizeConfig(PretrainingLossFields):
    """Loss of a model whose weights are rounded to each of `bits`, or have noise of each size of `noise`."""

    kind: Literal["quantize"] = "quantize"
    needs_parameters: ClassVar[bool] = True

    #: Bits of a weight.
    bits: tuple[Bits, ...] = (8, 4)
    #: Sizes of Gaussian noise relative to the norm of each matrix.
    noise: tuple[NoiseSize, ...] = (0.01, 0.03, 0.1)
    #: Draws of noise of each size.
    draws: int = Field(default=4, gt=0)
    #: Whether embeddings, and a decoder tied to them, are changed too.
    embeddings: bool = True
    #: Sentences that the loss is measured on.
    sentences: int = Field(default=1024, gt=1)
    #: Sentences a shard.
    shard_size: int = Field(default=256, gt=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(sentences=40, shard_size=16, draws=2, noise=(0.1,))

    @field_validator("bits", "noise")
    @classmethod
    def _each_is_named_once(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(values)) != len(values):
            raise ValueError(f"a value is named twice in {list(values)}")
        return values

    @model_validator(mode="after")
    def _there_is_something_to_measure(self) -> Self:
        if not self.bits and not self.noise:
            raise ValueError("bits and noise are both empty; name a number of bits or a size of noise")
        return self

    def problems(self, language: Language) -> list[tuple[str, str]]:
        return [("sentences", message) for message in self._loss(language).problems()]

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return the operations of the loss times 1 + bits + noise · draws."""
        weights = 1 + len(self.bits) + len(self.noise) * self.draws
        loss = self._loss(language).evaluation.operations(parameters, language)
        return Operations.fixed(weights * loss.most)

    def shards(self) -> int:
        return shard_count(self.sentences, self.shard_size)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return the loss of each sentence and of each kind of weights, and its masked words.

        The loss of the weights as they are stands under `excess_loss` or `held_out_loss` [n], that of rounded
        ones under their names [n], that of noise under its name [n, draws]; `masked` [n].  All are float64.
        """
        language, model = subject.language, model_of(self.kind, subject)
        shard_range(self.sentences, self.shard_size, shard)  # refuses a shard that is not there
        language.held_out.prepare()
        for field, message in self.problems(language):
            raise DataError(f"{field}: {message}")
        loss = self._loss(language)

        def of(changed: MaskedLM) -> np.ndarray:
            return loss.terms(ModelSubject(language, changed), shard)[0]

        plain, masked = loss.terms(subject, shard)
        arrays: Arrays = {loss.name: plain, "masked": masked}
        for bits in self.bits:
            arrays[f"int{bits}"] = of(quantized(model, bits, embeddings=self.embeddings))
        for size in self.noise:
            arrays[f"noise{size:g}"] = np.stack([of(other) for other in self._noisy(model, size)], axis=1)
        if loss.reason is not None and shard == 0:
            arrays |= text_arrays({"loss": f"quantize: {loss.reason}"})
        return arrays

    def _noisy(self, model: MaskedLM, size: float) -> Iterator[MaskedLM]:
        seed = derive(self.seed, "quantize")
        for draw in range(self.draws):
            yield noisy(model, size, seed=seed, draw=draw, embeddings=self.embeddings)

    def _loss(self, language: Language) -> PretrainingLoss:
        return self.loss_on(language, self.sentences, self.shard_size)

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return the rise of the loss and the loss of each kind of weights; n counts sentences."""

        def joined(name: str) -> np.ndarray:
            return np.concatenate([shard[name] for shard in shards])

        (loss,) = (name for name in AFTER if name in shards[0])
        plain, masked = joined(loss), joined("masked")
        metrics = []
        for weights in [*(f"int{b}" for b in self.bits), *(f"noise{size:g}" for size in self.noise)]:
            changed, of = joined(weights).reshape(len(plain), -1), {"weights": weights}
            metrics.append(RISE.estimate(mean_over_draws(changed - plain[:, None], masked), of=of))
            metrics.append(AFTER[loss].estimate(mean_over_draws(changed, masked), of=of))
        return metrics

    def notes(self, shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
        """Return why the loss is not the excess loss, where that is known."""
        reason = text_of(shards[0], "loss")
        return {} if reason is None else {"loss": reason}


def mean_over_draws(sums: np.ndarray, counts: np.ndarray) -> Estimate:
    """Return the mean of a word's values over sentences and draws, given sums [n, draws] and counts [n].

    With one draw the standard error is over sentences alone.
    """
    whole = mean_per_word(sums.mean(axis=1), counts)
    if sums.shape[1] == 1:
        return whole
    means = sums.sum(axis=0) / counts.sum()
    error = math.hypot(whole.standard_error, float(means.std(ddof=1)) / math.sqrt(len(means)))
    return Estimate(value=whole.value, standard_error=error, n=whole.n)


def in_words(weights: Iterable[str]) -> str:
    """Return what values of the coordinate `weights` stand for, one example of each form.

    >>> in_words(["int4", "int8", "noise0.01", "noise0.1"])
    "int4: weights rounded to 4 bits; noise0.01: Gaussian weight noise of 1 % of each matrix's norm"
    """
    forms: dict[str, str] = {}
    for name in weights:
        form = "noise" if name.startswith("noise") else "int"
        size = name.removeprefix(form)
        words = f"weights rounded to {size} bits"
        if form == "noise":
            words = f"Gaussian weight noise of {100 * float(size):g} % of each matrix's norm"
        forms.setdefault(form, f"{name}: {words}")
    return "; ".join(forms.values())
