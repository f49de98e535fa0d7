"""AdamW.

    m = β1 m + (1-β1) g;   v = β2 v + (1-β2) g²
    θ = θ - rate(s) · (m̂ / (√v̂ + eps) + weight_decay · θ)

with m̂, v̂ corrected for their start at zero (Loshchilov and Hutter, "Decoupled weight decay regularization",
ICLR 2019).  Biases and LayerNorm parameters do not decay.  The defaults are those of Liu, Xie, Li and Ma
(ICML 2023, appendix A.5) for synthetic languages: a constant rate of 1e-3 after 1,000 steps of warm-up.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from torch import nn
from torch.optim import Optimizer

from raysweep.algorithms.base import decay_groups
from raysweep.algorithms.eager import AdamW
from raysweep.algorithms.trained import TrainedConfig

#: Most weights of a model that is updated in one pass on a processor.  More are not in the cache, and torch's
#: threads share them.
ONE_PASS = 2**22


class AdamWBase(TrainedConfig):
    """Base of algorithms with AdamW's update and a gradient of their own."""

    #: Decay of the averages of the gradient and of its square.
    betas: tuple[float, float] = (0.9, 0.98)
    #: Added to the denominator of the update.
    eps: Annotated[float, Field(gt=0)] = 1e-6
    #: Decoupled weight decay of matrices and embeddings; biases and LayerNorm parameters do not decay.
    weight_decay: Annotated[float, Field(ge=0)] = 0.01

    short: ClassVar[dict[str, str]] = {"lr": "lr", "betas": "betas", "eps": "eps", "weight_decay": "wd"}

    @field_validator("betas", mode="before")
    @classmethod
    def _betas_may_be_a_list(cls, betas: object) -> object:
        # After a "before" validator, pydantic treats a list from JSON as a Python list.
        return tuple(betas) if isinstance(betas, list) else betas

    @field_validator("betas")
    @classmethod
    def _betas_are_rates(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{list(betas)}: both must be at least 0 and below 1, e.g. [0.9, 0.98]")
        return betas

    def build(self, model: nn.Module) -> Optimizer:
        kind = AdamW
        parameters = list(model.parameters())
        on_processor = all(p.device.type == "cpu" for p in parameters)
        if on_processor and sum(p.numel() for p in parameters) <= ONE_PASS:
            # Imported here because it imports numba.
            from raysweep.algorithms.onepass import OnePassAdamW as kind  # noqa: N813
        return kind(
            decay_groups(model, self.weight_decay), lr=self.lr, betas=self.betas, eps=self.eps, fused=True
        )


class AdamWConfig(AdamWBase):
    """AdamW.  The label names each field that differs from its default.

    >>> AdamWConfig().label, AdamWConfig(lr=3e-4, weight_decay=0.0).label
    ('adamw', 'adamw-lr0.0003-wd0')
    >>> AdamWConfig(warmup=0.06, schedule="cosine", ema=0.999).label
    'adamw-warmup0.06-cosine-ema0.999'
    >>> [AdamWConfig(lr=1.0, warmup_steps=4).learning_rate(s, 9) for s in (1, 2, 4, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """

    kind: Literal["adamw"] = "adamw"
    recordable: ClassVar[bool] = True
