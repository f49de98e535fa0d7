"""The contract of every evaluation: a measurement at a milestone.

An evaluation is a config that can measure a `Subject` in independent shards and combine them.  A shard is a
pure function of (config, subject, shard number), so shards run anywhere, in any order, and may be repeated.
`combine` sees them in order, so the result does not depend on the number of workers.

The number of shards may depend on the values of the first ones (`next_shards`).  The rule always looks at all
shards that it has asked for so far, so the same shards count in whatever order they are measured and however
often the work is interrupted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations
from raysweep.languages.base import Language
from raysweep.languages.training_set import TrainingSet
from raysweep.models.base import ModelConfig
from raysweep.models.subject import Subject
from raysweep.registry import KindConfig

Arrays = dict[str, np.ndarray]


class Evaluation(KindConfig):
    """Base of evaluation configurations.

    `name` is that of a further evaluation of one kind in a sweep: its key in the sweep file, which begins the
    names of its metrics.  It is no part of the identity of the measurement.
    """

    #: True where only a subject with parameters can be measured, so not the look-up table.
    needs_parameters: ClassVar[bool] = False
    #: False where nothing that is measured depends on a draw; otherwise the field `seed` decides all draws.
    stochastic: ClassVar[bool] = True
    #: True where `measure` wants the exact conditionals of the sentences of its shard.
    needs_reference: ClassVar[bool] = False
    #: True where a shard is a measurement of its own, such as one seed of one task, and no cut of a sample.
    cells: ClassVar[bool] = False
    #: Part of the identity.  Raise it when the measurement under the same settings, or the arrays of a shard,
    #: change, so that older measurements are made again instead of mixed.
    version: ClassVar[int] = 1

    #: The name of a further evaluation of one kind: its key in the sweep file.
    name: str | None = None

    @property
    def key(self) -> str:
        """The key of the evaluation in its sweep: its name, or its kind where it has none."""
        return self.name or self.kind

    def unnamed(self) -> Self:
        """Return the same measurement without a name."""
        return self.model_copy(update={"name": None})

    def encode(self) -> dict[str, Any]:
        """Return the normalised plain data: every field, defaults included, and the name where it has one."""
        data = super().encode()
        return data if self.name is not None else {k: v for k, v in data.items() if k != "name"}

    def problems(self, language: Language) -> list[tuple[str, str]]:
        """Return (field, message) for every value that does not fit the language; [] when all fit.

        The field "" is the evaluation itself.
        """
        if self.needs_reference and not language.exact:
            return [
                ("", f"nobody knows the exact conditionals of a {type(language).__name__}; use held_out_loss")
            ]
        return []

    def content(self) -> dict[str, Any]:
        """Return the plain data that identify the measurement: settings and version."""
        return {**self.unnamed().encode(), "version": self.version}

    def arrays_content(self) -> dict[str, Any]:
        """Return the plain data that identify the arrays of shards: `content`, unless a kind says otherwise.

        A kind leaves out settings that `combine` alone uses, so that a change of them measures nothing again.
        """
        return self.content()

    def among(self, models: Sequence[ModelConfig]) -> tuple[Self, str | None]:
        """Return the evaluation with all that identifies what it takes from the models that it compares.

        `models` are those of all runs of a sweep that it measures.  Beside it stands a remark for the reader,
        None where there is nothing to say.
        """
        return self, None

    def fitted(self, language: Language) -> Self:
        """Return the evaluation with all that identifies what it takes from the language beside sentences."""
        return self

    def applies_to(self, algorithm: AlgorithmConfig) -> bool:
        """Return whether this evaluation can measure what an algorithm gives."""
        return algorithm.gives_masked_lm and (algorithm.gives_parameters or not self.needs_parameters)

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        """Return (field, message) for every obstacle to measuring a model; [] where there is none.

        The field "" is the evaluation itself.
        """
        return []

    def training_problems(self, training: TrainingSet | None) -> list[tuple[str, str]]:
        """Return (field, message) for every value that does not fit what a model was trained on.

        `training` is None where nobody knows it.  [] when all fit, as far as that is known.
        """
        return []

    def untrained_problems(self, algorithm: AlgorithmConfig, language: Language) -> list[tuple[str, str]]:
        """Return (field, message) for every obstacle to measuring what an untrained algorithm gives.

        The algorithm is one that the evaluation applies to.  The field "" is the evaluation itself.
        """
        return []

    def quantities(self) -> Sequence[Quantity]:
        """Return what claims and searches may name: losses, flatness, and the accuracies of the report.

        Coordinates that are known later, such as the task, are left open in their names.
        """
        return ()

    def operations(self, parameters: int, language: Language) -> Operations | None:
        """Return the floating-point operations of the whole measurement, roughly; None where nobody says.

        `parameters` are those of the model, 0 for what has none.  Nothing is prepared or drawn for it.
        A plan estimates the time of the measurement by it.
        """
        return None

    @abstractmethod
    def shards(self) -> int:
        """Return the number of independent pieces of work, or their limit where `next_shards` decides."""

    def next_shards(self, done: Sequence[Mapping[str, np.ndarray]]) -> int:
        """Return the number of shards that are wanted in all.

        `done` are all shards that were asked for before, in order; [] at first.  The answer is `len(done)`
        where these are enough, else more, up to `shards()`.  It is a pure function of the shards' arrays.
        """
        return self.shards()

    def reference(self, language: Language, shard: int, *, device: str = "cpu") -> np.ndarray:
        """Return the exact conditionals that `measure` wants for this shard, float32, the sentence first.

        They are the same for every subject of a language, and computed on `device`.
        """
        raise TypeError(f"{self.kind} asks for no exact conditionals")

    def reference_bytes(self, language: Language) -> int:
        """Return the size in bytes of the exact conditionals of all shards."""
        raise TypeError(f"{self.kind} asks for no exact conditionals")

    @abstractmethod
    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Measure one shard.

        `reference` is `self.reference(language, shard)`, read only; where `needs_reference` it may be given,
        and is computed here when None.
        """

    @abstractmethod
    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Combine all shards that are wanted, in order, into metrics."""

    def claimable(self) -> list[Quantity]:
        """Return `quantities` under the evaluation's name, where it has one."""
        begin = "" if self.name is None else f"{self.name}/"
        return [q.model_copy(update={"name": f"{begin}{q.name}"}) for q in self.quantities()]

    def metrics(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return the metrics of `combine` under the evaluation's name, where it has one."""
        found = self.combine(shards)
        return found if self.name is None else [metric.under(self.name) for metric in found]

    def notes(self, shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
        """Return text for the record on the way of measuring, where there are several ways.

        A note `reason` says why the way taken, its `method`, was slower or less exact than the usual one.
        Every other note is a sentence that begins with the evaluation's kind.
        """
        return {}
