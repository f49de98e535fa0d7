"""AdamW with a linear warm-up to a constant rate.

    rate(s) = lr · min(1, s / warmup_steps)
    m = β1 m + (1-β1) g;   v = β2 v + (1-β2) g²
    θ = θ - rate(s) · (m̂ / (√v̂ + eps) + weight_decay · θ)

with m̂, v̂ corrected for their start at zero (Loshchilov and Hutter, "Decoupled weight decay regularization",
ICLR 2019).  Biases and LayerNorm parameters do not decay.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, field_validator
from torch import nn
from torch.optim import Optimizer

from raysweep.algorithms.base import AlgorithmConfig, decay_groups


class AdamWConfig(AlgorithmConfig):
    """AdamW; `clip_norm` bounds the global gradient norm, None leaves it."""

    kind: Literal["adamw"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 1e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 1000
    betas: tuple[float, float] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-6
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    clip_norm: Annotated[float, Field(gt=0)] | None = None

    @field_validator("betas")
    @classmethod
    def _betas_are_rates(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{list(betas)}: both must be at least 0 and below 1, e.g. [0.9, 0.98]")
        return betas

    @property
    def label(self) -> str:
        """The name, then what differs from the defaults.

        >>> AdamWConfig().label, AdamWConfig(lr=3e-4, weight_decay=0.0).label
        ('adamw', 'adamw-lr0.0003-wd0')
        """
        short = {
            "lr": "lr",
            "warmup_steps": "warmup",
            "betas": "betas",
            "eps": "eps",
            "weight_decay": "wd",
            "clip_norm": "clip",
        }
        parts: list[str] = [self.kind]
        for name, text in short.items():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                parts.append(text + ("-".join(f"{v:g}" for v in (value if name == "betas" else (value,)))))
        return "-".join(parts)

    def build(self, model: nn.Module) -> Optimizer:
        return torch.optim.AdamW(
            decay_groups(model, self.weight_decay),
            lr=self.learning_rate(1),
            betas=self.betas,
            eps=self.eps,
            fused=True,
        )

    def learning_rate(self, step: int) -> float:
        """Return the rate of step `step`, counted from 1.

        >>> [AdamWConfig(lr=1.0, warmup_steps=4).learning_rate(s) for s in (1, 2, 4, 9)]
        [0.25, 0.5, 1.0, 1.0]
        """
        return self.lr * min(1.0, step / max(self.warmup_steps, 1))

    def before_update(self, model: nn.Module) -> None:
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip_norm)
