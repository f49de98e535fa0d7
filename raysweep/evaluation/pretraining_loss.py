"""The pre-training loss by which evaluations judge a change of the weights.

It is the excess loss where exact conditionals are known and cheap, else the held-out loss.  A change of the
weights is measured as the difference on the same sentences and masked words, so the spread between sentences
has hardly any part in its error:

    rise = Σ (l'_i - l_i) / Σ m_i

with l_i and l'_i the losses of sentence i before and after the change, and m_i its masked words; the excess
loss is a mean over the words of each sentence already, so there l_i is that mean and m_i = 1.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import lru_cache
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import Field, field_validator

from raysweep.evaluation.base import Evaluation, Subject
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.evaluation.held_out_loss import HeldOutLossConfig
from raysweep.languages.base import Language
from raysweep.languages.known import Known
from raysweep.models.base import MaskedLM
from raysweep.models.subject import ModelSubject
from raysweep.training.config import check_mask

#: The evaluation that measures the loss; its name is part of those of metrics.
Loss = Literal["excess_loss", "held_out_loss"]

#: Headings of the losses.
HEADINGS: dict[Loss, str] = {"excess_loss": "excess loss", "held_out_loss": "held-out loss"}

#: The reason for the held-out loss of a language whose excess loss is known.
COSTLY = "exact conditionals of this language are costly, so the loss is the held-out loss"


class PretrainingLossFields(Evaluation):
    """Base of evaluations that measure the pre-training loss of changed weights."""

    #: Masked words of a sentence for the held-out loss, as in `pretrain`; the excess loss masks all in turn.
    mask: Literal["one"] | float = 0.15
    #: Decides all draws.
    seed: int = Field(default=0, ge=0)

    @field_validator("mask", mode="before")
    @classmethod
    def _mask_is_one_or_a_rate(cls, value: object) -> object:
        return check_mask(value)

    def loss_on(self, language: Language, sentences: int, shard_size: int) -> PretrainingLoss:
        """Return the loss of a language on so many sentences, in shards of `shard_size`."""
        if language.exact and not language.stores_conditionals:
            exact = ExcessLossConfig(sentences=sentences, shard_size=shard_size, seed=self.seed)
            return PretrainingLoss(language, exact)
        held_out = HeldOutLossConfig(
            sentences=sentences, shard_size=shard_size, seed=self.seed, mask=self.mask
        )
        return PretrainingLoss(language, held_out)


class PretrainingLoss:
    """The excess or held-out loss of one language; `name` says which."""

    def __init__(self, language: Language, evaluation: ExcessLossConfig | HeldOutLossConfig) -> None:
        self.language, self.evaluation = language, evaluation
        self.name: Loss = evaluation.kind
        #: Why it is not the excess loss, although the conditionals are known; None where there is no reason.
        self.reason = COSTLY if language.exact and self.name == "held_out_loss" else None

    def problems(self) -> list[str]:
        """Return why the language cannot give the sentences; [] where it can."""
        return [message for _, message in self.evaluation.problems(self.language)]

    def terms(self, subject: Subject, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of losses and the number of masked words of each sentence [n] of a shard, float64.

        Exact conditionals are kept in this process, because they are the same for every model.
        """
        if isinstance(self.evaluation, HeldOutLossConfig):
            found = self.evaluation.measure(subject, shard)
            return found["loss"], found["masked"]
        reference = _conditionals(Known(self.language), self.evaluation, shard)
        excess = self.evaluation.measure(subject, shard, reference)["excess_loss"]
        return excess, np.ones_like(excess)

    def terms_before(self, model: MaskedLM, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `terms` of a model to which changes are compared, kept for as long as its weights stay."""
        versions = tuple(parameter._version for parameter in model.parameters())
        key = (Known(self.language), self.evaluation, shard, versions)
        found = _BEFORE.get(model)
        if found is None or found[0] != key:
            found = key, self.terms(ModelSubject(self.language, model), shard)
            _BEFORE[model] = found
        return found[1]


#: The loss that was last asked for of each model: its key and terms.
_BEFORE: MutableMapping[MaskedLM, tuple[object, tuple[np.ndarray, np.ndarray]]] = WeakKeyDictionary()


@lru_cache(maxsize=2)
def _conditionals(known: Known, evaluation: ExcessLossConfig, shard: int) -> np.ndarray:
    return evaluation.reference(known.language, shard)
