"""The loss on the sentences of training beside that on others, and the gap between the two.

    gap = loss on held-out sentences - loss on training sentences

Both are measured in evaluation mode, with masks of their own, on as many sentences each.  The training
sentences are distinct ones, drawn from all that the run trains on, whether it has come to them yet or not.
Their standard error is that of independent draws, so it is too large where most of the training set is
measured.  The two losses are of different sentences, so the variance of the gap is the sum of theirs.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from raysweep.errors import ConfigError
from raysweep.evaluation.base import Evaluation, Subject
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.languages.base import Estimate
from raysweep.languages.training_set import TrainingSet
from raysweep.models.subject import ModelSubject
from raysweep.seeding import derive


class SplitFields(Evaluation):
    """Base of losses that can be measured on the sentences of training too: with `split` "both"."""

    #: Sentences that are measured on.
    sentences: int
    #: Measure on sentences that training never sees, or on as many of its own, too.
    split: Literal["held_out", "both"] = "held_out"
    #: Decides sentences and masks.
    seed: int

    @property
    def measured(self) -> int:
        """The number of sentences, those of training included."""
        return self.sentences * (2 if self.split == "both" else 1)

    def encode(self) -> dict[str, Any]:
        """Return the normalised plain data, without `split` where it has its default.

        So evaluations from before there was such a field keep their identity.
        """
        data = super().encode()
        return data if self.split == "both" else {k: v for k, v in data.items() if k != "split"}

    def training_problems(self, training: TrainingSet | None) -> list[tuple[str, str]]:
        if self.split == "held_out":
            return []
        if training is None:
            return [
                (
                    "split",
                    "the training set of this model is not known, or is of another language; leave split out",
                )
            ]
        if training.endless:
            return [
                (
                    "split",
                    "every sentence of training is fresh, so there is no training set to compare with; "
                    "set pretrain.sentences, or leave split out",
                )
            ]
        if training.size is not None and training.size < self.sentences:
            message = f"{self.sentences} are asked for, the training has {training.size}; ask for no more"
            return [("sentences", message)]
        return []

    def training_sentences(self, subject: Subject, numbers: range) -> Tensor | None:
        """Return the training sentences `numbers` [n, T] of this evaluation; None where none are wanted.

        What is not trained, such as the look-up table, has none.  Raises `ConfigError` for a model whose
        training set is not known or too small.
        """
        if self.split == "held_out" or not isinstance(subject, ModelSubject):
            return None
        subject.language.prepare()
        training = subject.training
        problems = self.training_problems(training)
        if training is None or problems:
            field, message = problems[0]
            raise ConfigError(f"evaluate.{self.key}.{field}: {message}")
        places = torch.arange(numbers.start, numbers.stop)
        return training.some(places, seed=derive(self.seed, self.kind, "training"))


def gap(quantity: Quantity, held_out: Metric, training: Metric) -> Metric:
    """Return the held-out loss less the training loss."""
    errors = [math.nan if m.standard_error is None else m.standard_error for m in (held_out, training)]
    found = Estimate(value=held_out.value - training.value, standard_error=math.hypot(*errors), n=training.n)
    return quantity.estimate(found)
