"""The look-up table: nothing is trained; the language's exact conditionals stand in the place of a model.

The look-up table is the model without parameters that answers every masked sentence with its exact
conditional (Liu, Xie, Li and Ma, ICML 2023, appendix A.5).  Its loss is the entropy, the least possible loss.
Its representation of a sentence is the concatenation of its conditionals, as probabilities, and shows how far
a linear probe gets from the conditionals alone.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.models.representation import Layers, Representation
from raysweep.models.subject import normalise


class LookupTable:
    """The exact conditionals of a language, in the place of a model."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def log_probs(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return log Pr(x_t = word | x_-t) [B, V] in nats, float64."""
        # One pass gives all positions of a sentence, and callers ask for many of the same sentence.
        sentences, row = ids.unique(dim=0, return_inverse=True)
        return normalise(self.language.conditionals(sentences)[row, positions])

    def word_log_probs(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return log Pr(x_t = the word of `ids` | words that are not marked) [M] in nats, float64."""
        log_probs = normalise(self.language.conditionals(ids, mask)[mask])
        return log_probs.gather(1, ids[mask][:, None])[:, 0]

    def features(
        self, ids: Tensor, representation: Representation = "concatenated", layers: Layers = "last"
    ) -> Tensor:
        """Return the conditionals as probabilities [B, max_length * V], 0 at padding, or their mean [B, V].

        Raises `ConfigError` for the sentence-level token and for layers, which the table does not have.
        """
        if representation == "cls" or layers == "all":
            wrong = "representation: " if representation == "cls" else "layers: "
            raise ConfigError(f"{wrong}the look-up table has no sentence-level token and no layers")
        padding = (ids == self.language.pad_id)[:, :, None]
        exact = self.language.conditionals(ids).exp().masked_fill(padding, 0.0)
        return exact.sum(dim=1) / (~padding).sum(dim=1) if representation == "mean" else exact.flatten(1)


class LookupTableConfig(AlgorithmConfig):
    """The exact conditionals in place of a model; it has no parameters, seed or steps."""

    kind: Literal["lookup_table"] = "lookup_table"
    trains: ClassVar[bool] = False
    gives_parameters: ClassVar[bool] = False

    @property
    def label(self) -> str:
        return "lookup_table"

    def problems(self, language: Language) -> list[tuple[str, str]]:
        if language.exact:
            return []
        return [
            (
                "kind",
                f"'{self.kind}' answers with exact conditionals, which nobody knows of a "
                f"{type(language).__name__}; leave it out",
            )
        ]

    def subject(self, language: Language) -> LookupTable:
        return LookupTable(language)
