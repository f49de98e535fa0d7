"""How a model is trained: optimizer, schedule and regularisation.

An algorithm is a config that makes a torch optimizer for a model and says its learning rate at each step.
Steps count from 1: step s goes from the weights after s - 1 updates to those after s.  The rate at step s
does not depend on the number of steps of the run, so a run to 2N steps contains the run to N.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from raysweep.registry import Config


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices and embeddings decay, biases and LayerNorm parameters do not.

    Tied parameters appear once.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


class AlgorithmConfig(Config):
    """Base of algorithm configurations."""

    kind: str
    #: False for what is evaluated without any training.
    trains: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """A short readable name that tells this configuration from its neighbours in a sweep."""
        raise TypeError(f"{type(self).__name__} has no label")

    def build(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of the model's trainable parameters."""
        raise TypeError(f"{type(self).__name__} does not say how to build its optimizer")

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of step `step`, counted from 1."""
        raise TypeError(f"{type(self).__name__} does not say its learning rate")

    def before_update(self, model: nn.Module) -> None:
        """Change the gradients of the whole batch before the optimizer uses them; by default, do not."""
