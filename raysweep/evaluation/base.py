"""What is measured at a milestone: one contract for every evaluation.

An evaluation is a config that can measure a `Subject` in independent shards and combine them.  A shard is a
pure function of (config, subject, shard number), so shards run anywhere, in any order, and may be repeated;
`combine` sees them in order, so the result does not depend on the number of workers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from raysweep.languages.base import Language
from raysweep.registry import Config

Arrays = dict[str, np.ndarray]


class Metric(BaseModel):
    """One measured number: `standard_error` is None where there is none, `n` counts independent draws."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: float
    standard_error: float | None
    n: int
    unit: str


class Subject(Protocol):
    """What is evaluated: a trained model or the look-up table, with the language it models."""

    language: Language

    def log_probs(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return log f(x_t = word | x_-t) [B, V] in nats: `ids` [B, T] unmasked, `positions` [B] masked."""

    def features(self, ids: Tensor) -> Tensor:
        """Return the concatenated token representations [B, max_length * width], zero at padding."""


class Evaluation(Config):
    """Base of evaluation configurations."""

    kind: str
    #: False for evaluations that also make sense without parameters (the look-up table).
    needs_parameters: ClassVar[bool] = False
    #: True where `measure` wants the exact conditionals of the sentences of its shard.
    needs_reference: ClassVar[bool] = False

    def problems(self, language: Language) -> list[tuple[str, str]]:
        """Return (field, message) for every value that does not fit the language; [] when all fit."""
        return []

    @abstractmethod
    def shards(self) -> int:
        """Return the number of independent pieces of work."""

    def sentences(self, language: Language, shard: int) -> Tensor:
        """Return the sentences [n, T] whose exact conditionals `measure` wants for this shard."""
        raise TypeError(f"{self.kind} asks for no exact conditionals")

    @abstractmethod
    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Measure one shard.

        `reference` is float32 [n, T, V], `language.conditionals(self.sentences(language, shard))`, read
        only; it is given when `needs_reference` and computed here when None.
        """

    @abstractmethod
    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Combine all shards, in order, into metrics."""
