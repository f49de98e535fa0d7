"""An algorithm: optimizer, schedule, regularisation and objective.

An algorithm is a config that makes a torch optimizer for a model and determines the learning rate and the
gradient of each step.  Steps count from 1: step s goes from the weights after s - 1 updates to those after s.
If neither rate nor gradient depends on the number of steps of the run, a run to 2N steps contains the run to
N; if one does, `depends_on_steps` is True.
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
    """The backpropagation of a step's loss, which the training loop hands to an algorithm."""

    def __call__(self, half: int | None = None) -> Tensor:
        """Add the gradient of the batch's mean loss to `.grad`; return this worker's part of that loss.

        With `half` 0 or 1 the loss is that of the batch's even or odd sentences.  The gradient is summed over
        workers, so each has the gradient of the whole (half) batch; the loss (nats, detached) is not summed.
        Dropout is keyed (see `raysweep.training.step`): a sentence has the same masks in every pass, and the
        two halves have different ones.
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

    #: False if nothing is trained; evaluations then measure the `subject`.
    trains: ClassVar[bool] = True
    #: False if the subject has no parameters, like the look-up table.
    gives_parameters: ClassVar[bool] = True
    #: False if the subject is no masked language model; only evaluations made for it then apply.
    gives_masked_lm: ClassVar[bool] = True
    #: True where the work of a step is the same kernels in every step, given rate and words, so that a GPU
    #: may record it (`raysweep.training.recorded`).
    recordable: ClassVar[bool] = False

    @classmethod
    def example(cls, folder: Path) -> Self:
        """Return the configuration with all defaults; a kind whose defaults take long overrides this."""
        return cls.decode({})

    @property
    def label(self) -> str:
        """A short readable name that distinguishes this configuration from its neighbours in a sweep."""
        raise TypeError(f"{type(self).__name__} has no label")

    @property
    def depends_on_steps(self) -> bool:
        """Whether a step depends on the number of steps of the run.

        If so, a run cannot be extended, and runs of different lengths share no training.
        """
        return False

    @property
    def halves(self) -> bool:
        """Whether `gradient` uses the halves of a batch; every worker then needs two sentences."""
        return False

    @property
    def average_decay(self) -> float | None:
        """Decay of the moving average of weights that evaluations use; None to use the weights themselves."""
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
        """Return the subject of evaluations of an algorithm that does not train.

        It is a `raysweep.models.subject.Subject`, unless `gives_masked_lm` is False.  Raises `ConfigError`
        for a language that it does not fit.
        """
        raise TypeError(f"{type(self).__name__} does not define `subject`")

    def build(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of the model's trainable parameters; its state consists of tensors.

        The model is already on the device of the training.
        """
        raise TypeError(f"{type(self).__name__} does not say how to build its optimizer")

    def learning_rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step `step`, counted from 1, of a run of `steps` steps."""
        raise TypeError(f"{type(self).__name__} does not say its learning rate")

    def gradient(self, model: nn.Module, backward: Backward) -> Tensor:
        """Set `.grad` to the gradient for the optimizer, and leave the weights as they are.

        Returns this worker's part of the loss at these weights, detached.  It is not finite if any loss or
        gradient on the way was not.
        """
        return backward()

    def before_update(self, model: nn.Module) -> None:
        """Change the gradient before the optimizer uses it; by default do nothing."""

    @property
    def keeps_gradient(self) -> bool:
        """Whether `gradient` and `before_update` leave the gradient of the batch's mean loss as it is."""
        return False

    def extra_loss(self, language: Language, *, seed: int, device: torch.device) -> ExtraLoss | None:
        """Return the term that is added to the loss of every step; None for no term."""
        return None
