"""Fine-tuning of an encoder on sentences of a PCFG, beside BertForSequenceClassification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from raysweep import seeding
from raysweep.bench.harness import Case, Contestant, Difference, Peer, Prepared, UnavailableError
from raysweep.bench.peers.sequence_classifier import SequenceClassifier
from raysweep.downstream.classifier import Classifier
from raysweep.downstream.finetune import FineTuned, Recipe, fine_tune
from raysweep.languages import PCFG
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM
from raysweep.models.encoder import EncoderConfig
from raysweep.models.precision import multiplies_bfloat16

CLASSES = 5
#: Steps over which losses are compared, and their largest difference (nats).
CHECKED_STEPS, TOLERANCE = 8, 1e-5

#: Of the Trainer, next to which a plain loop is the faster peer.
_NOTE = (
    "the steps of transformers' Trainer in a plain loop, without its bookkeeping; batches are cut to their "
    "longest sentence"
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One epoch on `sentences` sentences, for an encoder of `shape`: post-norm, as BERT is."""

    shape: str
    sentences: int
    recipe: Recipe = field(default_factory=lambda: Recipe(epochs=1, warmup_steps=8))
    language: Language = field(default_factory=PCFG.random)

    def model(self, dropout: float) -> MaskedLM:
        """Return the model with its initial weights, and a place for the sentence-level token."""
        words: Any = SimpleNamespace(
            vocabulary_size=self.language.vocabulary_size,
            pad_id=self.language.pad_id,
            max_length=self.language.max_length + 1,
        )
        return EncoderConfig(shape=self.shape, norm="post", dropout=dropout).build(words, seed=0)

    @cached_property
    def ids(self) -> Tensor:
        """Return the sentences [n, T]."""
        return self.language.sample(self.sentences, seed=0)

    @property
    def labels(self) -> Tensor:
        """Return the labels [n]: the remainder of the first word's number."""
        return self.ids[:, 0] % CLASSES

    @property
    def tokens(self) -> int:
        """Return the number of words of all sentences."""
        return int(self.language.lengths(self.ids).sum())

    def classifier(self, dropout: float) -> Classifier:
        """Return the classifier before the first step, as `fine_tune` makes it."""
        return Classifier(
            self.model(dropout),
            outputs=CLASSES,
            longest=self.language.max_length,
            pooling="cls",
            head="bert",
            dropout=None,
            generator=seeding.generator(0, "head"),
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the sentences and labels of every step, in the order of `fine_tune`."""
        order = torch.randperm(self.sentences, generator=seeding.generator(0, "order"))
        for rows in order.split(self.recipe.batch_size):
            yield self.ids[rows], self.labels[rows]

    def fine_tune(self, model: MaskedLM) -> FineTuned:
        """Do the work with raysweep."""
        return fine_tune(
            model, self.ids, self.labels, classes=CLASSES, recipe=self.recipe, pooling="cls", seed=0
        )


def fine_tuning(shape: str, quick: bool, *, rounds: int, goal: float | None = None) -> Case:
    """Return a case; `goal` is that of the ratio to the peer in float32."""
    work = Work(shape="32/2/2/64", sentences=256) if quick else Work(shape=shape, sentences=2048)
    model = work.model(dropout=0.1)
    return Case(
        unit="token",
        ours=Contestant(units=work.tokens, work=partial(work.fine_tune, model)),
        peers=[
            _peer(work, "BertForSequenceClassification, float32", torch.float32, goal),
            _peer(work, "BertForSequenceClassification, bfloat16", torch.bfloat16, None),
        ],
        rounds=rounds,
    )


def loss_difference(work: Work) -> Difference:
    """Fine-tune both on the first sentences, without dropout, in float32; compare the losses of all steps."""
    recipe = work.recipe.model_copy(update={"precision": "float32"})
    few = min(work.sentences, CHECKED_STEPS * recipe.batch_size)
    work = replace(work, sentences=few, recipe=recipe)
    other = SequenceClassifier(work.classifier(dropout=0.0), recipe, torch.float32)
    found, ours = other.train(work.batches()), work.fine_tune(work.model(dropout=0.0)).losses
    return Difference(
        quantity=f"largest difference of the losses of {len(ours)} steps (nats)",
        value=(found.double() - ours).abs().max().item(),
        tolerance=TOLERANCE,
    )


def _peer(work: Work, name: str, precision: torch.dtype, goal: float | None) -> Peer:
    def prepare() -> Prepared:
        if precision == torch.bfloat16 and not multiplies_bfloat16(torch.device("cpu")):
            raise UnavailableError(
                "this processor has no instructions for bfloat16, so it is slower than float32"
            )
        other = SequenceClassifier(work.classifier(dropout=0.1), work.recipe, precision)

        def run() -> None:
            other.train(work.batches())

        def check() -> Difference:
            # This call fills the caches, so that the timed ones do not.
            run()
            return loss_difference(work)

        return Prepared(check=check, contestant=Contestant(units=work.tokens, work=run))

    return Peer(name=name, prepare=prepare, goal=goal, note=_NOTE)
