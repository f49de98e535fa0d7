"""Fine-tuning: a classifier on top of a pre-trained model, all of whose weights are trained on labels.

    θ, φ = argmin 1/n Σ_i ℓ(z_φ(h_θ(x_i)), y_i)

with ℓ the cross-entropy of a classification, or the squared error of a regression, θ starting from the
pre-trained weights and the head φ drawn (`raysweep.downstream.classifier`).  AdamW makes `epochs` passes over
the training set, each in an order of its own.

The defaults are the recipe of Liu, Xie, Li and Ma ("Same pre-training loss, better downstream", ICML 2023,
appendix A.5): the state of the sentence-level token, AdamW at 1e-4, 200 steps of warm-up, 10 epochs.  They
refer to Devlin et al. ("BERT", NAACL 2019) for the rest, so that is BERT's: a rate that falls linearly to
zero, β = (0.9, 0.999), eps 1e-6, weight decay 0.01, and gradients clipped to a norm of 1.  The batch of 128
is our choice: the paper names none, and BERT's are 16 and 32.

>>> from raysweep.languages.hmm import HMM
>>> from raysweep.models.encoder import EncoderConfig
>>> language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,))
>>> model, ids = EncoderConfig(shape="8/1/2/16").build(language, seed=0), language.sample(256, seed=0)
>>> tuned = fine_tune(model, ids, ids[:, 0] % 2, classes=2, recipe=Recipe(epochs=1), pooling="mean", seed=0)
>>> tuned.losses.shape, tuned.scores(ids).shape
(torch.Size([2]), torch.Size([256, 2]))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from raysweep import seeding
from raysweep.algorithms.adamw import AdamWConfig
from raysweep.algorithms.trained import Schedule
from raysweep.downstream.classifier import Classifier, Head, Pooling
from raysweep.errors import ConfigError, DataError, RunFailedError
from raysweep.models.base import MaskedLM
from raysweep.models.precision import Precision, multiplies_bfloat16
from raysweep.models.reproducible import reproducible
from raysweep.registry import Config

_LOOK = 50  # steps between two looks at the losses: each waits for the device


class DivergedError(RunFailedError):
    """Fine-tuning whose loss or weights are no longer finite; `step` is the first such step."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"step {step}: the loss of fine-tuning is not finite; lower lr, warm up for longer, or clip more"
        )
        self.step = step


class Recipe(Config):
    """The hyper-parameters of fine-tuning."""

    #: The representation; `auto` is the sentence-level token where pre-training had it, else the mean.
    pooling: Pooling | Literal["auto"] = "auto"
    #: The classifier on the representation (`raysweep.downstream.classifier`).
    head: Head = "bert"
    #: Learning rate after the warm-up.
    lr: float = Field(default=1e-4, gt=0, allow_inf_nan=False)
    #: Steps of the linear warm-up.
    warmup_steps: int = Field(default=200, ge=0)
    #: The rate after the warm-up.
    schedule: Schedule = "linear"
    #: Passes over the training set.
    epochs: int = Field(default=10, gt=0)
    #: Sentences of a batch.
    batch_size: int = Field(default=128, gt=0)
    #: Decay of the averages of the gradient and of its square.
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    #: Added to the denominator of the update.
    eps: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    #: Of matrices and embeddings; biases and LayerNorm parameters do not decay.
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    #: The largest norm of a gradient; None for no limit.
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 1.0
    #: Of the model and of the head; None keeps the model's own rate.
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    #: Precision of matrix products; `auto` is the one in which the model trains fastest.
    precision: Precision = "auto"

    def steps(self, sentences: int) -> int:
        """Return the number of updates on so many training sentences.

        >>> Recipe().steps(512)
        40
        """
        return self.epochs * math.ceil(sentences / self.batch_size)

    def pooling_of(self, model: MaskedLM, *, cls: bool, longest: int) -> tuple[Pooling, str | None]:
        """Return the representation, and the reason where it is not the sentence-level token by `auto`.

        `cls` says whether the model was pre-trained with that token; sentences have `longest` words.
        """
        if self.pooling != "auto":
            return self.pooling, None
        if not cls:
            return "mean", "the model was pre-trained without the sentence-level token"
        positions = model.with_token().max_length
        if positions <= longest:
            return "mean", f"sentences of {longest} words fill the model's {positions} positions"
        return "cls", None

    def algorithm(self) -> AdamWConfig:
        """Return the optimizer and its schedule."""
        return AdamWConfig(
            lr=self.lr,
            warmup_steps=self.warmup_steps,
            schedule=self.schedule,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
        )

    def dtype(self, model: MaskedLM, device: torch.device) -> torch.dtype:
        """Return the working precision; raises `ConfigError` for one that the device does not support."""
        if self.precision == "auto":
            return model.precision(device)
        if self.precision == "bfloat16" and not multiplies_bfloat16(device):
            raise ConfigError(
                f"precision: {device.type} has no instructions for bfloat16 here; use float32, or auto"
            )
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """A classifier after its last step, and the mean training loss [steps] of each batch, float64."""

    classifier: Classifier
    losses: Tensor
    dtype: torch.dtype

    def scores(self, ids: Tensor) -> Tensor:
        """Return logits [n, C], or numbers [n, 1] of a regression, of sentences ids [n, T]."""
        return self.classifier.scores(ids, dtype=self.dtype)


def fine_tune(
    model: MaskedLM,
    ids: Tensor,
    labels: Tensor,
    *,
    classes: int | None,
    recipe: Recipe,
    pooling: Pooling,
    seed: int,
) -> FineTuned:
    """Train a copy of `model` on sentences ids [n, T] and labels [n]; the model itself stays as it is.

    Labels are int64 below `classes`, or numbers where that is None: a regression.  `seed` decides the head's
    first weights, the orders of the training set, and dropout.

    Raises `DataError` without sentences or for a label that is no class, `RunFailedError` for a model whose
    weights are not finite, and `DivergedError` where that happens in fine-tuning.
    """
    _check(model, labels, classes)
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        lengths = (ids != model.pad_id).sum(dim=1)
        classifier = Classifier(
            model,
            outputs=classes or 1,
            longest=int(lengths.max()),
            pooling=pooling,
            head=recipe.head,
            dropout=recipe.dropout,
            generator=seeding.generator(seed, "head"),
        )
        work = _Training(classifier.train(), recipe, seed, recipe.dtype(model, device))
        work.run(ids, lengths, labels if classes is not None else labels.float())
    return FineTuned(classifier=classifier, losses=work.losses, dtype=work.dtype)


class _Training:
    """The updates of one fine-tuning."""

    losses: Tensor

    def __init__(self, classifier: Classifier, recipe: Recipe, seed: int, dtype: torch.dtype) -> None:
        self.classifier, self.recipe, self.seed, self.dtype = classifier, recipe, seed, dtype
        self.algorithm = recipe.algorithm()
        self.optimizer = self.algorithm.build(classifier)
        self.device = classifier.out.weight.device

    def run(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> None:
        """Make all updates."""
        steps, step = self.recipe.steps(len(ids)), 0
        self.losses = torch.zeros(steps, dtype=torch.float64, device=self.device)
        order = seeding.generator(self.seed, "order")
        for _ in range(self.recipe.epochs):
            for rows in torch.randperm(len(ids), generator=order).split(self.recipe.batch_size):
                step += 1
                self.losses[step - 1] = self._update(ids[rows], lengths[rows], labels[rows], step, steps)
                if step % _LOOK == 0 or step == steps:
                    self._look(step)
        self.losses = self.losses.cpu()

    def _update(self, ids: Tensor, lengths: Tensor, labels: Tensor, step: int, steps: int) -> Tensor:
        """Make update number `step`, counted from 1; return its loss, detached."""
        torch.manual_seed(seeding.derive(self.seed, "head dropout", step))
        words = self.classifier.batch(ids, lengths)
        z = self.classifier(words, seed=seeding.derive(self.seed, "dropout", step), dtype=self.dtype)
        loss = label_loss(z, labels.to(z.device))
        with reproducible(self.device):
            torch.autograd.backward(loss)
        self.algorithm.before_update(self.classifier)
        for group in self.optimizer.param_groups:
            group["lr"] = self.algorithm.learning_rate(step, steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def _look(self, step: int) -> None:
        """Raise `DivergedError` naming the first step whose loss is not finite."""
        wrong = (~self.losses[:step].isfinite()).nonzero()[:1, 0].tolist()
        if wrong:
            raise DivergedError(wrong[0] + 1)
        # After the last update no loss tells.
        if step == len(self.losses) and not finite(self.classifier):
            raise DivergedError(step)


def label_loss(z: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits z [b, C], or squared error of z [b, 1] for float labels."""
    if labels.is_floating_point():
        return F.mse_loss(z[:, 0], labels)
    return F.cross_entropy(z, labels)


def finite(model: torch.nn.Module) -> bool:
    """Return whether all parameters are finite."""
    return all(bool(p.isfinite().all()) for p in model.parameters())


def _check(model: MaskedLM, labels: Tensor, classes: int | None) -> None:
    if len(labels) == 0:
        raise DataError("fine-tuning was given no training sentences")
    if classes is not None and not bool(((labels >= 0) & (labels < classes)).all()):
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise DataError(f"label {int(wrong)} is none of {classes} classes, 0 to {classes - 1}")
    if not finite(model):
        raise RunFailedError(
            "the model's weights are not finite, so it cannot be fine-tuned; "
            "look at its training loss, and lower the learning rate"
        )
