"""Tapped weights, and the norms that are taken from them in a compiled pass.

A tapped weight takes the place of a weight of `raysweep.models.fused`.  Where that adds to a sum of
gradients, it passes the factors of the gradient to a `Sink`: the `ChunkNorms` that is in its backward pass.
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

from raysweep.flatness.fused import kernels
from raysweep.models.fused.encoder_weights import Norm
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.products import array, tensor
from raysweep.models.fused.weights import Matrix, Vector


class Sink(Protocol):
    """A receiver of the factors of gradients, which also does the backward passes of LayerNorms."""

    def linear(
        self, names: Sequence[str], d: np.ndarray, x: np.ndarray, row: np.ndarray | None, heads: int
    ) -> None:
        """Take inputs x [N, I] of linear modules side by side, and the gradient d [N, O] of their outputs.

        `row` is that of `Matrix.learn`, and `heads` that of `Matrix`.
        """

    def scale(self, name: str, d_y: np.ndarray, x: np.ndarray, stats: np.ndarray) -> None:
        """Take the arguments of `Norm.observe` of the LayerNorm `name`."""

    def norm(
        self, name: str, x: np.ndarray, weight: np.ndarray, stats: np.ndarray, d_y: np.ndarray, d: np.ndarray
    ) -> None:
        """Do what `Norm.backward` does; weights are given."""

    def junction(
        self, name: str, post: bool, d: np.ndarray, d_y: np.ndarray, weight: np.ndarray, s: np.ndarray,
        stats: np.ndarray, d_o: np.ndarray,
    ) -> None:  # fmt: skip
        """Do what `Norm.junction_backward` does without dropout; weights are given."""


@dataclass(frozen=True)
class TappedMatrix(Matrix):
    """A weight with taps: the last of `sinks` gets its factors.

    The modules `names` have equal shares of its rows.
    """

    names: Sequence[str] = field(kw_only=True)
    sinks: list[Sink] = field(kw_only=True)

    @classmethod
    def of(cls, matrix: Matrix, sinks: list[Sink], *names: str) -> Self:
        """Return a matrix that is tapped."""
        return cls(matrix.low, matrix.gradient, matrix.heads, names=names, sinks=sinks)

    def learn(self, d: np.ndarray, x: np.ndarray, row: np.ndarray | None = None) -> None:
        self.sinks[-1].linear(self.names, d, x, row, self.heads)

    def _part(self, rows: slice, heads: int) -> TappedMatrix:
        size = len(self.low) // len(self.names)
        names = self.names[rows.start // size : rows.stop // size]
        return TappedMatrix.of(super()._part(rows, heads), self.sinks, *names)


@dataclass(frozen=True)
class TappedNorm(Norm):
    """A LayerNorm whose norms, and backward pass outside of the head, are left to the last of `sinks`."""

    name: str
    sinks: list[Sink]

    @classmethod
    def of(cls, norm: Norm, sinks: list[Sink], name: str) -> Self:
        """Return a LayerNorm that is tapped."""
        return cls(norm.weight, norm.bias, norm.eps, name, sinks)

    def observe(self, d_y: np.ndarray, x: Callable[[], np.ndarray], stats: np.ndarray) -> None:
        self.sinks[-1].scale(self.name, d_y, x(), stats)

    def backward(self, x: np.ndarray, stats: np.ndarray, d_y: np.ndarray, d: np.ndarray) -> None:
        self.sinks[-1].norm(self.name, x, self.weight.value, stats, d_y, d)

    def junction_backward(
        self, post: bool, d: np.ndarray, d_y: np.ndarray, place: np.ndarray, key: np.uint64, cut: int,
        s: np.ndarray, stats: np.ndarray, d_o: np.ndarray, d_shift: np.ndarray,
    ) -> None:  # fmt: skip
        self.sinks[-1].junction(self.name, post, d, d_y, self.weight.value, s, stats, d_o)


class TappedWeights(Protocol):
    """The tapped parameters of a model."""

    sinks: list[Sink]
    decoder_bias: Vector


class ChunkNorms(ABC):
    """The norms of the sentences of one chunk, each with one masked word; kinds of models add their pass.

    Call `forward` first, then `norms` once or more.
    """

    def __init__(self, weights: TappedWeights, chunk: Chunk) -> None:
        self.chunk = chunk
        self._weights = weights
        self._found: dict[str, np.ndarray] = {}

    @abstractmethod
    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the logits [S, V] at the masked words, and the hidden states [S, D] that the head takes."""

    def norms(self, v: Tensor, names: Sequence[str], *, last: bool = True) -> Tensor:
        """Return ‖Jᵀv‖² [S, P], float64, of test vectors v [S, V], by the parameters of these names.

        There is no second backward pass unless `last` is False.
        """
        self._found, given = {}, array(v.contiguous())
        self._weights.sinks.append(self)
        try:
            inputs, d = self._backward(given, again=not last)
        finally:
            self._weights.sinks.pop()
        self._tables(d, inputs, given)
        return torch.stack([torch.from_numpy(self._found[name]) for name in names], dim=1)

    def linear(
        self, names: Sequence[str], d: np.ndarray, x: np.ndarray, row: np.ndarray | None, heads: int
    ) -> None:
        """Take the norms of linear modules that share their inputs; see `Sink`."""
        bounds = self._bounds(len(d))
        weight = np.zeros((len(names), len(bounds) - 1))
        bias = np.zeros_like(weight)
        if heads > 1:
            # One module, and one word of each sentence.
            kernels.heads(x, d, heads, weight[0], bias[0])
        else:
            kernels.matrix(x, d, bounds, weight, bias)
        for c, name in enumerate(names):
            self._found[f"{name}.weight"] = weight[c]
            self._found[f"{name}.bias"] = bias[c]

    def scale(self, name: str, d_y: np.ndarray, x: np.ndarray, stats: np.ndarray) -> None:
        """Take the norms of a LayerNorm; see `Sink`."""
        kernels.scale(d_y, x, stats, self._bounds(len(x)), *self._vectors(name, len(x)))

    def norm(
        self, name: str, x: np.ndarray, weight: np.ndarray, stats: np.ndarray, d_y: np.ndarray, d: np.ndarray
    ) -> None:
        """Take the norms of a LayerNorm and its backward pass; see `Sink`."""
        kernels.norm(x, weight, stats, d_y, d, self._bounds(len(x)), *self._vectors(name, len(x)))

    def junction(
        self, name: str, post: bool, d: np.ndarray, d_y: np.ndarray, weight: np.ndarray, s: np.ndarray,
        stats: np.ndarray, d_o: np.ndarray,
    ) -> None:  # fmt: skip
        """Take the norms of a junction's LayerNorm and its backward pass; see `Sink`."""
        bounds = self._bounds(len(s))
        kernels.junction(post, d, d_y, weight, s, stats, d_o, bounds, *self._vectors(name, len(s)))

    def _vectors(self, name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where the norms of a module's weight and bias are put; its inputs have so many rows."""
        count = len(self._bounds(rows)) - 1
        weight, bias = self._found[f"{name}.weight"], self._found[f"{name}.bias"] = np.zeros((2, count))
        return weight, bias

    @abstractmethod
    def _backward(self, v: np.ndarray, *, again: bool) -> tuple[np.ndarray, np.ndarray]:
        """Do the backward pass from v.

        Returns the decoder's inputs [S, D], and the gradients [N, D] of the words' embeddings.
        """

    def _logits(self, product: np.ndarray) -> Tensor:
        """Return the logits [S, V]: `product`, those without the decoder's bias, with it added."""
        return tensor(product).add_(torch.from_numpy(self._weights.decoder_bias.value))

    def _bounds(self, rows: int) -> np.ndarray:
        """Return where sentences begin among so many words: all of the chunk, or the masked ones."""
        return self.chunk.starts if rows == len(self.chunk.ids) else self.chunk.asking

    def _tables(self, d: np.ndarray, inputs: np.ndarray, v: np.ndarray) -> None:
        """Take the norms of both embeddings, given those of the decoder that is tied to the tokens'."""
        chunk = self.chunk
        # The decoder's share of the norms stands under the decoder's own name.
        tokens = self._found.pop("decoder.weight")
        positions = np.zeros_like(tokens)
        kernels.tables(chunk.ids, d, chunk.starts, inputs, v, chunk.asking, tokens, positions)
        self._found["token_embedding.weight"] = tokens
        self._found["position_embedding.weight"] = positions
