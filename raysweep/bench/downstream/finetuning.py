"""Fine-tuning of an encoder on sentences of a PCFG, beside BertForSequenceClassification.

The model and the steps of the peers are the same.  One peer is the Trainer of `transformers`, and the other
is a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from raysweep import seeding
from raysweep.bench.downstream.memory import memory
from raysweep.bench.harness import Case, Contestant, Difference, Peer, Prepared, UnavailableError
from raysweep.bench.peers.sequence_classifier import SequenceClassifier
from raysweep.bench.peers.trainer import WithTrainer
from raysweep.bench.record import Figure, Goal, Peak, Timing
from raysweep.downstream.classifier import Classifier
from raysweep.downstream.finetune import FineTuned, Recipe, fine_tune
from raysweep.languages import PCFG
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM
from raysweep.models.encoder import EncoderConfig
from raysweep.models.precision import multiplies_bfloat16

CLASSES = 5
#: Steps over which losses are compared, and their largest difference (nats).
CHECKED_STEPS, TOLERANCE = 50, 1e-4

#: The accuracies are those of so many epochs, seeds and test sentences.
EPOCHS, LEARNING_RATE, SEEDS, TESTED = 3, 1e-3, 3, 2048

_LOOP = (
    "the Trainer's steps in a plain loop, without its bookkeeping; batches are cut to their longest sentence"
)
_TRAINER = "batches are padded to their longest sentence"


@dataclass(frozen=True, kw_only=True)
class Work:
    """Fine-tuning on `sentences` sentences, for an encoder of `shape`: post-norm, as BERT is.

    `seed` is that of the head, of the order of the sentences and of dropout.
    """

    shape: str
    sentences: int
    seed: int = 0
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
        """Return the number of words of all epochs."""
        return self.recipe.epochs * int(self.language.lengths(self.ids).sum())

    def classifier(self, dropout: float) -> Classifier:
        """Return the classifier before the first step, as `fine_tune` makes it."""
        return Classifier(
            self.model(dropout),
            outputs=CLASSES,
            longest=self.language.max_length,
            pooling="cls",
            head="bert",
            dropout=None,
            generator=seeding.generator(self.seed, "head"),
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the sentences and labels of every step, in the order of `fine_tune`."""
        order = seeding.generator(self.seed, "order")
        for _ in range(self.recipe.epochs):
            for rows in torch.randperm(self.sentences, generator=order).split(self.recipe.batch_size):
                yield self.ids[rows], self.labels[rows]

    def fine_tune(self, model: MaskedLM) -> FineTuned:
        """Do the work with raysweep."""
        return fine_tune(
            model, self.ids, self.labels, classes=CLASSES, recipe=self.recipe, pooling="cls", seed=self.seed
        )


def fine_tuning(shape: str, quick: bool, *, rounds: int, goal: float | None = None) -> Case:
    """Return a case; `goal` is that of the ratio to the peers in float32.

    Peers in bfloat16 take part where the processor has instructions for it; elsewhere they are slower
    than in float32, so that no user would choose them.
    """
    work = Work(shape="32/2/2/64", sentences=256) if quick else Work(shape=shape, sentences=2048)
    steps = 8 if quick else CHECKED_STEPS
    model = work.model(dropout=0.1)
    ours = partial(work.fine_tune, model)
    precisions: list[tuple[str, torch.dtype, float | None]] = [("float32", torch.float32, goal)]
    if multiplies_bfloat16(torch.device("cpu")):
        precisions.append(("bfloat16", torch.bfloat16, None))
    peers = []
    for name, precision, least in precisions:
        peers += [
            _peer(work, f"transformers' Trainer, {name}", WithTrainer, precision, steps, least, _TRAINER),
            _peer(work, f"BertForSequenceClassification, {name}", _plain, precision, steps, least, _LOOP),
        ]
    return Case(
        unit="token",
        ours=Contestant(units=work.tokens, work=ours),
        peers=peers,
        rounds=rounds,
        figures=partial(_figures, work, ours),
    )


#: Makes a contestant of a classifier.
Make = Callable[[SequenceClassifier], SequenceClassifier | WithTrainer]


def _plain(classifier: SequenceClassifier) -> SequenceClassifier:
    return classifier


def loss_difference(work: Work, make: Make = _plain, steps: int = CHECKED_STEPS) -> Difference:
    """Fine-tune both for some steps, without dropout, in float32; compare the losses of all steps."""
    recipe = work.recipe.model_copy(update={"precision": "float32"})
    work = replace(work, sentences=steps * recipe.batch_size, recipe=recipe)
    found = make(SequenceClassifier(work.classifier(dropout=0.0), recipe, torch.float32)).train(
        work.batches()
    )
    ours = work.fine_tune(work.model(dropout=0.0)).losses
    return Difference(
        quantity=f"largest difference of the losses of {len(ours)} steps (nats)",
        value=(found.double() - ours).abs().max().item(),
        tolerance=TOLERANCE,
    )


def _peer(
    work: Work, name: str, make: Make, precision: torch.dtype, steps: int, goal: float | None, note: str
) -> Peer:
    def prepare() -> Prepared:
        other = make(SequenceClassifier(work.classifier(dropout=0.1), work.recipe, precision))

        def run() -> None:
            other.train(work.batches())

        def check() -> Difference:
            # This call fills the caches, so that the timed ones do not.
            run()
            return loss_difference(work, make, steps)

        return Prepared(check=check, contestant=Contestant(units=work.tokens, work=run))

    return Peer(name=name, prepare=prepare, goal=goal, note=note)


def _figures(work: Work, ours: Callable[[], object], timing: Timing | None, peak: Peak) -> list[Figure]:
    took: dict[str, Callable[[], object]] = {"raysweep": ours}
    peers: dict[str, Make] = {"BertForSequenceClassification": _plain, "transformers' Trainer": WithTrainer}
    for name, make in peers.items():
        try:
            other = make(SequenceClassifier(work.classifier(dropout=0.1), work.recipe, torch.float32))
        except UnavailableError:
            continue  # The comparison with it says so.
        took[f"{name}, float32,"] = partial(_train, other, work)
    return [*memory(took, timing, peak), *accuracies(work)]


def _train(other: SequenceClassifier | WithTrainer, work: Work) -> None:
    other.train(work.batches())


def accuracies(work: Work) -> list[Figure]:
    """Return the accuracies of both after a few epochs at a rate that learns the task, and their distance.

    The Trainer takes the same steps as the plain loop, which stands for both peers.
    """
    recipe = work.recipe.model_copy(update={"epochs": EPOCHS, "lr": LEARNING_RATE})
    test = work.language.sample(TESTED, seed=1)
    right: list[list[float]] = [[], []]
    for seed in range(SEEDS):
        own = replace(work, recipe=recipe, seed=seed)
        tuned = own.fine_tune(own.model(dropout=0.1)).classifier
        other = SequenceClassifier(own.classifier(dropout=0.1), recipe, torch.float32)
        # Its dropout is drawn from torch's generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            other.train(own.batches())
        for found, answers in zip(
            right, (tuned.scores(test).argmax(dim=1), other.answers(test)), strict=True
        ):
            found.append((answers == test[:, 0] % CLASSES).double().mean().item())
    accuracy = torch.tensor(right, dtype=torch.float64)
    mean, spread = accuracy.mean(dim=1), accuracy.std(dim=1)
    # Two of equal accuracy in all seeds are as near as the number of test sentences can tell.
    error = max(float(spread.square().sum() / SEEDS) ** 0.5, 1 / TESTED)
    what = f"accuracy after {EPOCHS} epochs at a rate of {LEARNING_RATE:g}, mean of {SEEDS} seeds"
    return [
        Figure(name=what, unit="", value=mean[0].item()),
        Figure(name="the same of BertForSequenceClassification, float32", unit="", value=mean[1].item()),
        Figure(
            name="the distance of the two in its standard errors over seeds",
            unit="",
            value=(mean[0] - mean[1]).abs().item() / error,
            goal=Goal(sense="at most", value=3.0),
        ),
    ]
