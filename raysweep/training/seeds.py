"""The seeds of a run: of its initial weights, its data and its dropout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field

from raysweep.registry import Config

_Seed = Annotated[int, Field(ge=0)]


class Seeds(Config):
    """The seeds that a run draws from.

    `init` decides the initial weights, `data` the sentences, their order and their masks (and the examples of
    an algorithm's extra loss), `dropout` the dropout.  In a sweep file, those that are left out are `seed`.
    """

    #: Decides the initial weights.
    init: _Seed
    #: Decides sentences, their order and their masks, and the examples of an algorithm's extra loss.
    data: _Seed
    #: Decides the dropout.
    dropout: _Seed

    @classmethod
    def of(cls, seed: int | Mapping[str, int] | Seeds) -> Self:
        """Return the seeds: those of a mapping, or one number for all three."""
        if isinstance(seed, int):
            return cls(init=seed, data=seed, dropout=seed)
        return cls.model_validate(dict(seed))

    @property
    def common(self) -> int | None:
        """The one seed of all three; None where they differ."""
        return self.init if self.init == self.data == self.dropout else None

    def content(self) -> int | dict[str, int]:
        """Return plain data that `of` reads: one number where that says it all."""
        return self.encode() if self.common is None else self.common

    @property
    def label(self) -> str:
        """A short name.

        >>> Seeds.of(3).label, Seeds(init=1, data=0, dropout=0).label
        ('s3', 'init1-data0-dropout0')
        """
        if self.common is not None:
            return f"s{self.common}"
        return "-".join(f"{name}{seed}" for name, seed in self.encode().items())
