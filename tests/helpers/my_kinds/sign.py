"""The sign of the gradient, smoothed over steps (Lion without its second average)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from raysweep.algorithms.trained import TrainedConfig


class SignConfig(TrainedConfig):
    """The update is the learning rate times the sign of an average of gradients with decay `beta`."""

    kind: Literal["sign"] = "sign"
    lr: Annotated[float, Field(gt=0)] = 1e-3
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9

    short: ClassVar[dict[str, str]] = {"lr": "lr", "beta": "beta"}

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(lr=5e-3, warmup_steps=10)

    def build(self, model: nn.Module) -> Optimizer:
        return Sign(model.parameters(), lr=self.lr, beta=self.beta)


class Sign(Optimizer):
    """The optimizer of `SignConfig`."""

    def __init__(self, parameters: Any, *, lr: float, beta: float) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["beta"])
                p.add_(average.sign(), alpha=-group["lr"])
