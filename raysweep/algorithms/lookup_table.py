"""The look-up table: no training; what is evaluated is the language's exact conditionals themselves.

Its loss is the language's entropy and its representation of a sentence is the table's rows, so it marks the
least possible loss and how far a linear probe gets from the conditionals alone.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.languages.base import Language


class LookupTableConfig(AlgorithmConfig):
    """The exact conditionals in place of a model; it has no parameters, seed or steps."""

    kind: Literal["lookup_table"] = "lookup_table"
    trains: ClassVar[bool] = False

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
