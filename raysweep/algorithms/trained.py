"""The base of all algorithms that train: learning rate, schedule, clipping and averaged weights.

The rate of step s of n, after a warm-up of w steps, is

    rate(s) = lr · min(1, s / w) · decay(p),    p = max(0, s - 1 - w) / (n - w)
    constant: decay = 1      linear: decay = 1 - p      cosine: decay = (1 + cos πp) / 2

Linear and cosine rates reach zero at the step after the last.  The warm-up is a number of steps or a
proportion of n.  Only a constant rate after a warm-up in steps is independent of n: such a run can be
extended, and contains every shorter one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import nn

from raysweep.algorithms.base import AlgorithmConfig

Schedule = Literal["constant", "linear", "cosine"]


class TrainedConfig(AlgorithmConfig):
    """Base of configurations of algorithms that train.

    The linear warm-up has `warmup_steps` steps, or the proportion `warmup` of all steps; giving one replaces
    a default of the other.  `clip_norm` bounds the global gradient norm.  With `ema`, the exponential moving
    average of the weights with this decay is kept, and milestones evaluate it (see
    `raysweep.algorithms.average`).
    """

    #: Learning rate after the warm-up.
    lr: Annotated[float, Field(gt=0)] = 1e-3
    #: Steps of the linear warm-up.
    warmup_steps: Annotated[int, Field(ge=0)] = 1000
    #: Length of the warm-up as a share of all steps; it replaces `warmup_steps`.
    warmup: Annotated[float, Field(gt=0, le=1)] | None = None
    #: The rate after the warm-up; linear and cosine ones reach zero at the step after the last.
    schedule: Schedule = "constant"
    #: The largest norm of the whole gradient; None for no limit.
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    #: Decay of a moving average of the weights, which milestones then evaluate; None for none.
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None

    #: The abbreviations of fields in a label, in order.
    short: ClassVar[dict[str, str]] = {"lr": "lr"}
    #: The abbreviations of the fields of every kind, which follow.
    _shared: ClassVar[dict[str, str]] = {"clip_norm": "clip", "schedule": "", "ema": "ema"}

    @classmethod
    def example(cls, folder: Path) -> Self:
        """Return the defaults at a rate and a warm-up that suit a short run of a tiny model."""
        return cls.decode({"lr": 1e-2, "warmup_steps": 10})

    @model_validator(mode="before")
    @classmethod
    def _one_warm_up_replaces_the_other(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if data.get("warmup") is not None:
                return {"warmup_steps": 0, **data}
            if "warmup_steps" in data:
                return {"warmup": None, **data}
        return data

    @model_validator(mode="after")
    def _there_is_one_warm_up(self) -> TrainedConfig:
        if self.warmup is not None and self.warmup_steps:
            raise ValueError(
                f"warmup: {self.warmup:g} of all steps and warmup_steps {self.warmup_steps} are both given; "
                "give one of them"
            )
        return self

    @property
    def label(self) -> str:
        """The kind, then each field that differs from its default."""
        fields = type(self).model_fields
        parts: list[str] = [self.kind]
        for name, text in {**self.short, **self._shared}.items():
            value = getattr(self, name)
            if value != fields[name].default:
                parts.append(text + _text(value))
            if name == "lr":
                warm_up = (self.warmup, self.warmup_steps)
                if warm_up != (fields["warmup"].default, fields["warmup_steps"].default):
                    parts.append(f"warmup{self.warmup_steps if self.warmup is None else self.warmup:g}")
        return "-".join(parts)

    @property
    def depends_on_steps(self) -> bool:
        return self.warmup is not None or self.schedule != "constant"

    @property
    def average_decay(self) -> float | None:
        return self.ema

    def learning_rate(self, step: int, steps: int) -> float:
        warm_up = self.warmup_steps if self.warmup is None else round(self.warmup * steps)
        rate = self.lr * min(1.0, step / max(warm_up, 1))
        if self.schedule == "constant":
            return rate
        done = max(0, step - 1 - warm_up) / max(steps - warm_up, 1)
        return rate * (1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)

    @property
    def keeps_gradient(self) -> bool:
        own = type(self)
        as_here = own.gradient is TrainedConfig.gradient and own.before_update is TrainedConfig.before_update
        return as_here and self.clip_norm is None

    def before_update(self, model: nn.Module) -> None:
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip_norm)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(_text(v) for v in value)
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
