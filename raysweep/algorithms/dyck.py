"""Solutions of the bracket task in closed form, which need no training (see `raysweep.models.dyck`).

The evaluation `dyck` measures them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.languages.dyck import Dyck
from raysweep.models.dyck import (
    DyckAttention,
    masked_sentences,
    random_features,
    random_features_problem,
    two_neurons,
)


class Solution:
    """A solution of the bracket task with its language, in the place of a model."""

    def __init__(self, language: Dyck, model: DyckAttention) -> None:
        self.language, self.model = language, model


class DyckSolution(AlgorithmConfig):
    """Base of configurations of solutions: they stand in the place of a model of the Dyck language."""

    trains: ClassVar[bool] = False
    gives_masked_lm: ClassVar[bool] = False

    def problems(self, language: Language) -> list[tuple[str, str]]:
        if isinstance(language, Dyck):
            return []
        return [("kind", f"'{self.kind}' solves the bracket task, and is no model of another language")]

    def subject(self, language: Language) -> Solution:
        if not isinstance(language, Dyck):
            raise ConfigError(f"'{self.kind}' is no model of a {type(language).__name__}")
        return Solution(language, self.solution(language))

    def solution(self, language: Dyck) -> DyckAttention:
        """Return the model with the solution's weights."""
        raise TypeError(f"{type(self).__name__} does not say its solution")


class DyckTwoNeuronsConfig(DyckSolution):
    """The two neurons that count brackets, in a model of `neurons`: the flattest solution there is."""

    kind: Literal["dyck_two_neurons"] = "dyck_two_neurons"
    #: Neurons of the model.
    neurons: Annotated[int, Field(ge=2)] = 2

    @property
    def label(self) -> str:
        default = type(self).model_fields["neurons"].default
        return self.kind if self.neurons == default else f"{self.kind}-{self.neurons}"

    def solution(self, language: Dyck) -> DyckAttention:
        return two_neurons(language.max_length, neurons=self.neurons)


class DyckRandomFeaturesConfig(DyckSolution):
    """Gaussian features, the draw of a seed, and the least output weights without pre-training loss.

    Without `neurons` there are as many as masked sentences, the fewest that suffice.
    """

    kind: Literal["dyck_random_features"] = "dyck_random_features"
    neurons: Annotated[int, Field(gt=0)] | None = None
    #: Decides the drawn features.
    draw: Annotated[int, Field(ge=0)] = 0

    @property
    def label(self) -> str:
        parts = [self.kind, *([f"{self.neurons}"] if self.neurons is not None else [])]
        return "-".join([*parts, *([f"draw{self.draw}"] if self.draw else [])])

    def _neurons(self, language: Language) -> int:
        return masked_sentences(language.max_length) if self.neurons is None else self.neurons

    def problems(self, language: Language) -> list[tuple[str, str]]:
        found = super().problems(language)
        problem = random_features_problem(language.max_length, self._neurons(language)) if not found else None
        return found if problem is None else [("neurons", problem)]

    def solution(self, language: Dyck) -> DyckAttention:
        return random_features(language.max_length, neurons=self._neurons(language), seed=self.draw)
