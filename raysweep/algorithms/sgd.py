"""Stochastic gradient descent, with momentum if asked for.

    b = momentum · b + g + weight_decay · θ;   θ = θ - rate(s) · b

The defaults are those of Liu, Xie, Li and Ma (ICML 2023, appendix B.2), who test with it that SGD seeks flat
minima (their Theorem 3.3): a warm-up over 12 % of all steps, then a constant rate of 1e-3.  They name neither
momentum nor weight decay, and the theorem is about SGD without either: both are zero.  Biases and LayerNorm
parameters do not decay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from raysweep.algorithms.base import decay_groups
from raysweep.algorithms.eager import SGD
from raysweep.algorithms.trained import TrainedConfig


class SGDConfig(TrainedConfig):
    """SGD.  Its warm-up is a proportion of the steps, so a run with other `steps` is another run.

    >>> SGDConfig().label, SGDConfig(warmup_steps=100, momentum=0.9).label
    ('sgd', 'sgd-warmup100-momentum0.9')
    >>> SGDConfig().depends_on_steps, SGDConfig(warmup_steps=100).depends_on_steps
    (True, False)
    """

    kind: Literal["sgd"] = "sgd"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    warmup: Annotated[float, Field(gt=0, le=1)] | None = 0.12
    #: Share of the last update that goes into the next one.
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    #: Weight decay of matrices and embeddings, as a part of the gradient.
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    short: ClassVar[dict[str, str]] = {"lr": "lr", "momentum": "momentum", "weight_decay": "wd"}

    @classmethod
    def example(cls, folder: Path) -> Self:
        """Return plain SGD at a rate that suits a short run of a tiny model."""
        return cls(lr=0.3, warmup_steps=10)

    def build(self, model: nn.Module) -> Optimizer:
        return SGD(
            decay_groups(model, self.weight_decay),
            lr=self.lr,
            momentum=self.momentum,
            # On a GPU one kernel for all parameters saves launches; elsewhere the choice is torch's.
            fused=all(p.is_cuda for p in model.parameters()) or None,
        )
