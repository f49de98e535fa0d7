"""Operations of an evaluation, by which a plan estimates its time.

With P parameters and T words a sentence, a forward pass takes about 2·P·T floating-point operations, a
gradient three times as many, and a product with the Hessian as many as two gradients.  That is rough: it
leaves out attention, and counts embeddings.
"""

from __future__ import annotations

from typing import NamedTuple

from raysweep.languages.base import Language


class Operations(NamedTuple):
    """The least and the most floating-point operations of a measurement."""

    least: float
    most: float

    @property
    def middle(self) -> float:
        """Their geometric mean."""
        return (self.least * self.most) ** 0.5

    @classmethod
    def fixed(cls, operations: float) -> Operations:
        """Return a number of operations that is known."""
        return cls(operations, operations)


def forward(parameters: int, language: Language) -> float:
    """Return 2·P·T: the operations of a forward pass over one sentence.

    >>> from raysweep.languages import PCFG
    >>> forward(1000, PCFG.random(layers=3))
    16000.0
    """
    return 2.0 * parameters * language.max_length


def gradient(parameters: int, language: Language) -> float:
    """Return 6·P·T: the operations of a gradient of the loss of one sentence."""
    return 3 * forward(parameters, language)
