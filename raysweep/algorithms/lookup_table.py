"""The look-up table: no training; what is evaluated is the language's exact conditionals themselves.

Its loss is the language's entropy and its representation of a sentence is the table's rows, so it marks the
least possible loss and how far a linear probe gets from the conditionals alone.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from raysweep.algorithms.base import AlgorithmConfig


class LookupTableConfig(AlgorithmConfig):
    """The exact conditionals in place of a model; it has no parameters, seed or steps."""

    kind: Literal["lookup_table"] = "lookup_table"
    trains: ClassVar[bool] = False

    @property
    def label(self) -> str:
        return "lookup_table"
