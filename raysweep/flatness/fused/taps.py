"""What compiled passes share: weights that hand on what gradients are made of, and the norms of these.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from raysweep.flatness.fused import kernels as norm_kernels
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.products import Product
from raysweep.models.fused.weights import Matrix, Vector, array

#: Takes names of linear modules side by side, cotangents d [N, O] of their outputs, and their inputs [N, I].
Sink = Callable[[Sequence[str], Tensor, Tensor], None]


@dataclass(frozen=True)
class Tapped(Matrix):
    """A weight whose backward products go to the last of `sinks`; `names` are its parts', of as many rows."""

    names: Sequence[str]
    sinks: list[Sink]
    applied: Product
    returned: Product
    parts: dict[tuple[int, int], Tapped] = field(default_factory=dict)

    @classmethod
    def of(cls, matrix: Matrix, names: Sequence[str], sinks: list[Sink]) -> Self:
        """Return a weight that is tapped."""
        return cls(matrix.low, matrix.gradient, names, sinks, Product(matrix.low.T), Product(matrix.low))

    def apply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self.applied(x, out)

    def learn(self, d: Tensor, x: Tensor) -> None:
        self.sinks[-1](self.names, d, x)

    def through(self, d: Tensor, out: Tensor | None = None) -> Tensor:
        return self.returned(d, out)

    def part(self, rows: slice) -> Tapped:
        size = len(self.low) // len(self.names)
        first, last, _ = rows.indices(len(self.low))
        if (first, last) not in self.parts:
            names = self.names[first // size : last // size]
            self.parts[first, last] = Tapped.of(super().part(rows), names, self.sinks)
        return self.parts[first, last]


class TappedWeights(Protocol):
    """The parameters of a model as its pass takes them, tapped."""

    sinks: list[Sink]
    tokens: Matrix
    decoder_bias: Vector


class Norms(ABC):
    """The norms of one chunk's sentences, each with one masked word; kinds of models add their pass.

    First `forward`, then `norms` once or more.
    """

    chunk: Chunk
    weights: TappedWeights

    def __init__(self) -> None:
        self._found: dict[str, np.ndarray] = {}

    @abstractmethod
    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the logits [S, V] at the masked words, and the hidden states [S, D] that the head takes."""

    def norms(self, v: Tensor, *, last: bool = True) -> dict[str, Tensor]:
        """Return ‖Jᵀv‖² [S], float64, of test vectors v [S, V] by the parameters' names.

        The pass cannot be gone back once more unless `last` is False.
        """
        self._found = {}
        self.weights.sinks.append(self._linear)
        try:
            self._back(v.contiguous(), last)
        finally:
            self.weights.sinks.pop()
        return {name: torch.from_numpy(value) for name, value in self._found.items()}

    @abstractmethod
    def _back(self, v: Tensor, last: bool) -> None:
        """Do the backward pass."""

    def _bounds(self, rows: int) -> np.ndarray:
        """Return where sentences begin among so many words: all of the chunk, or the masked ones."""
        return self.chunk.starts if rows == len(self.chunk.ids) else self.chunk.asking

    def _linear(self, names: Sequence[str], d: Tensor, x: Tensor) -> None:
        """Take the norms of linear modules that share their inputs x [N, I], d [N, O] being all outputs'."""
        bounds = self._bounds(len(d))
        weight = np.zeros((len(names), len(bounds) - 1))
        bias = np.zeros_like(weight)
        norm_kernels.matrix(array(x), array(d), bounds, weight, bias)
        for c, name in enumerate(names):
            self._found[f"{name}.weight"] = weight[c]
            self._found[f"{name}.bias"] = bias[c]

    def _logits(self, t: Tensor) -> Tensor:
        """Return the logits [S, V] of the decoder's inputs t [S, D]."""
        w = self.weights
        return w.tokens.apply(t).add_(torch.from_numpy(w.decoder_bias.value))

    def _tied(self, d: np.ndarray, t: Tensor, v: Tensor) -> np.ndarray:
        """Take the norms of the table that the decoder is tied to; return those of positions' [S].

        d [N, D] are cotangents of the words' embeddings.
        """
        chunk = self.chunk
        # The decoder's share has been put under its own name.
        tokens = self._found.pop("decoder.weight")
        positions = np.zeros_like(tokens)
        norm_kernels.tables(chunk.ids, d, chunk.starts, array(t), array(v), chunk.asking, tokens, positions)
        self._found["token_embedding.weight"] = tokens
        return positions
