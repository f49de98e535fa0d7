"""Muon: steps of the same length in every direction of a matrix.

    b = momentum · b + (1-momentum) g;   u = (1-momentum) g + momentum · b
    θ = θ - rate(s) · (0.2 √max(rows, columns) · NS(u) + weight_decay · θ)

NS replaces the singular values of u by values near 1, through five Newton–Schulz iterations in bfloat16
(Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024).  The factor makes AdamW's
rates suitable (Liu et al., "Muon is scalable for LLM training", 2025).  Muon moves all matrices but the
embeddings; AdamW moves embeddings (with a tied decoder), biases and LayerNorm parameters, at the same rate.
Liu, Xie, Li and Ma (ICML 2023) do not use Muon.

NS works in bfloat16, so gradients that differ only by rounding, as with another number of workers, lead to
updates that may differ by some 0.4 %.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from raysweep.algorithms.adamw import AdamWBase
from raysweep.algorithms.eager import AdamW, EagerOptimizer, Muon


class MuonConfig(AdamWBase):
    """Muon for matrices, AdamW with `betas` and `eps` for the rest.

    >>> MuonConfig().label, MuonConfig(momentum=0.9).label
    ('muon', 'muon-momentum0.9')
    """

    kind: Literal["muon"] = "muon"
    #: Share of the last direction that goes into the next one.
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.95

    short: ClassVar[dict[str, str]] = {**AdamWBase.short, "momentum": "momentum"}

    def build(self, model: nn.Module) -> Optimizer:
        embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
        trained = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in trained if p.ndim == 2 and id(p) not in embeddings]
        chosen = {id(p) for p in matrices}
        others = [p for p in trained if id(p) not in chosen]
        muon = Muon(
            [{"params": matrices}],
            lr=self.lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        adamw = AdamW(
            [
                {"params": [p for p in others if p.ndim >= 2], "weight_decay": self.weight_decay},
                {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=True,
        )
        return Joined(muon, adamw)


class Joined(EagerOptimizer):
    """Two optimizers of different parameters as one: their groups side by side, one state."""

    def __init__(self, *parts: Optimizer) -> None:
        groups = [group for part in parts for group in part.param_groups]
        super().__init__([{"params": [p for group in groups for p in group["params"]]}], {})
        self.parts = parts
        # These are the objects of the parts, so that a rate or a state set here is set there.
        self.param_groups = groups
        for part in parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Let every part take its step; there is no `closure`."""
        for part in self.parts:
            part.step()
        return None
