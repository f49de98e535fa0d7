"""How a model is trained: optimizer, schedule, regularisation and objective.

An algorithm is a config that makes a torch optimizer for a model, says its learning rate at each step, and
how the gradient of a step comes about.  Steps count from 1: step s goes from the weights after s - 1 updates
to those after s.  Where neither rate nor gradient depends on the number of steps of the run, a run to 2N
steps contains the run to N; where they do, `depends_on_steps` says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM
from raysweep.registry import KindConfig


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices and embeddings decay, biases and LayerNorm parameters do not.

    Tied parameters appear once.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


class Backward(Protocol):
    """Backpropagation of a step's loss, as the training loop offers it to an algorithm."""

    def __call__(self, half: int | None = None) -> Tensor:
        """Add the gradient of the batch's mean loss to `.grad`; return this worker's part of that loss.

        With `half` 0 or 1 it is the loss of the batch's even or odd sentences alone.  The gradient is summed
        over workers, so all of them see that of the whole (half) batch; the loss (nats, detached) is not.
        Dropout is keyed (see `raysweep.training.step`): the same sentences see the same masks however often
        they are asked for, the two halves see different ones.
        """


class ExtraLoss(nn.Module, ABC):
    """A term of the objective beside the masked-LM loss."""

    @abstractmethod
    def forward(self, model: MaskedLM, step: int) -> Tensor:
        """Return the term at step `step`, a scalar: a function of weights, seed and step alone.

        All workers compute the same term; dropout is off in it.
        """


class AlgorithmConfig(KindConfig):
    """Base of algorithm configurations."""

    #: False for what is evaluated without any training; `subject` then says what that is.
    trains: ClassVar[bool] = True
    #: False where what is evaluated has no parameters, as the look-up table.
    gives_parameters: ClassVar[bool] = True
    #: False where what is evaluated is no masked language model, so that only evaluations made for it apply.
    gives_masked_lm: ClassVar[bool] = True

    @classmethod
    def example(cls, folder: Path) -> Self:
        """Return the configuration with all defaults; a kind whose defaults take long overrides this."""
        return cls.decode({})

    @property
    def label(self) -> str:
        """A short readable name that tells this configuration from its neighbours in a sweep."""
        raise TypeError(f"{type(self).__name__} has no label")

    @property
    def depends_on_steps(self) -> bool:
        """Whether what a step does depends on the number of steps of the run.

        Then a run cannot be extended, and runs of different lengths share no training.
        """
        return False

    @property
    def halves(self) -> bool:
        """Whether `gradient` asks for the halves of a batch, so that every worker needs two sentences."""
        return False

    @property
    def average_decay(self) -> float | None:
        """Decay of the moving average of weights that is evaluated in their place; None for no average."""
        return None

    def content(self) -> dict[str, Any]:
        """Return the plain data that determines the training: the algorithm's part of a run's identity.

        By default it is every field; a kind leaves out fields that change no result.
        """
        return self.encode()

    def problems(self, language: Language) -> list[tuple[str, str]]:
        """Return (field, message) for every value that does not fit the language; [] when all fit."""
        return []

    def subject(self, language: Language) -> Any:
        """Return what is evaluated of an algorithm that does not train.

        It is a `raysweep.models.subject.Subject`, unless `gives_masked_lm` is False.  Raises `ConfigError`
        for a language that it does not fit.
        """
        raise TypeError(f"{type(self).__name__} does not say what is evaluated of it")

    def build(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of the model's trainable parameters; its state consists of tensors.

        The model is on the device that it is trained on.
        """
        raise TypeError(f"{type(self).__name__} does not say how to build its optimizer")

    def learning_rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step `step`, counted from 1, of a run of `steps` steps."""
        raise TypeError(f"{type(self).__name__} does not say its learning rate")

    def gradient(self, model: nn.Module, backward: Backward) -> Tensor:
        """Leave in `.grad` the gradient that the optimizer is to use; the weights stay as they were.

        Returns this worker's part of the loss at these weights, detached; where anything on the way was not
        finite, it is not finite either.
        """
        return backward()

    def before_update(self, model: nn.Module) -> None:
        """Change the gradient before the optimizer uses it; by default, do not."""

    def extra_loss(self, language: Language, *, seed: int, device: torch.device) -> ExtraLoss | None:
        """Return what is added to the loss of every step, None for nothing."""
        return None
