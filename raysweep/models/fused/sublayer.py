"""The attention sublayer of an encoder for one chunk, forward and backward, up to the output's matrix.

`Attention` has queries, keys and values of all words, or of some words the queries alone.  `Gathering` needs
no keys and values, where few words ask.  With y_j the words of a sentence, q_h the query of head h of a
masked word, p_j its weights and m_j the factors of their dropout,

    q_h·(K_h y_j) = (K_hᵀ q_h)·y_j        Σ m_j p_j (V_h y_j + v_h) = V_h (Σ m_j p_j y_j) + v_h Σ m_j p_j

The keys' bias has the same share in the scores of all words, which a softmax does not see: its gradient is 0.

Cost of the forward pass, where M of N words ask, with P pairs of a word that asks and a word of its sentence,
D the width and H heads: 2 (M + 2 N) D² + 4 P D operations with keys and values, 6 M D² + 4 H P D without.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from raysweep.models.fused import attention, kernels
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.products import array, empty, tensor
from raysweep.models.fused.rows import add_rows, sum_rows
from raysweep.models.fused.weights import Matrix, Vector

#: How many times as long a multiplication between two words takes as one with a matrix, about, as found with
#: bfloat16 on Zen 4; with float32 it is less.
_PAIR = 12


def gathers(chunk: Chunk, width: int, heads: int) -> bool:
    """Return whether attention of a chunk's masked words takes less time without keys and values."""
    spared, added = (len(chunk.ids) - len(chunk.masked)) * width, chunk.pairs * (heads - 1)
    return spared > _PAIR * added


@dataclass(frozen=True)
class Site:
    """The place of a sublayer: its parameters, its chunk, and the stream of its dropout.

    `projection` are the matrices of queries, keys and values, one below the other.  `place` are the numbers
    of the words that ask: all of the chunk, or only the masked ones if `some`.  `which` says which row of the
    inputs each of the chunk's N words has, where equal ones enter once; with None each has its own.  With
    `apart` the inputs' gradient has a row for each word all the same.  `key`, `cut` and `stride` are those of
    `raysweep.models.fused.attention`.
    """

    projection: Matrix
    bias: Vector
    chunk: Chunk
    heads: int
    some: bool
    place: np.ndarray
    which: np.ndarray | None
    apart: bool
    key: np.uint64
    cut: int
    stride: int

    def rows(self, first: int, last: int, heads: int = 1) -> Matrix:
        """Return the matrices from number `first` up to `last`."""
        width = self.projection.low.shape[1]
        return self.projection.part(slice(first * width, last * width), heads)

    def of(self, vector: np.ndarray, first: int, last: int) -> np.ndarray:
        """Return the part of the bias, or of its gradient, that belongs to `rows`."""
        width = self.projection.low.shape[1]
        return vector[first * width : last * width]

    def attend(self, y: np.ndarray) -> Attended:
        """Return the sublayer of words y [N, D], in whichever way takes less time."""
        if not self.some:
            return Attention(self, y, y)
        y = self.each(y)
        asking = empty(len(self.chunk.masked), y.shape[1], y.dtype)
        y.take(self.chunk.masked, axis=0, out=asking, mode="clip")
        way = Gathering if gathers(self.chunk, y.shape[1], self.heads) else Attention
        return way(self, y, asking)

    def each(self, x: np.ndarray) -> np.ndarray:
        """Return the row of x for each word of the chunk."""
        if self.which is None:
            return x
        found = empty(len(self.which), x.shape[1], x.dtype)
        x.take(self.which, axis=0, out=found, mode="clip")
        return found

    def summed(self, d: np.ndarray, rows: int) -> np.ndarray:
        """Return the gradient of x with so many rows, given d, that of `each(x)`; d where rows are apart."""
        if self.which is None or self.apart:
            return d
        total = np.zeros((rows, d.shape[1]), dtype=np.float32)
        sum_rows(d, self.which, total)
        return array(tensor(total).to(tensor(d).dtype))


class Attended(Protocol):
    """An attention sublayer behind its forward pass."""

    #: Mixtures of values [M, D] of the words that ask, low.
    mixed: np.ndarray

    def backward(self, d_mixed: np.ndarray) -> np.ndarray:
        """Add the gradients of the parameters; return that of y, given that of `mixed`.

        It has a row for each word of the chunk where only some ask, and where rows are apart.
        """


@dataclass
class Attention:
    """Attention with keys and values of all words."""

    site: Site
    y: np.ndarray
    asking: np.ndarray
    mixed: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        site = self.site
        if site.some:
            self._query = site.rows(0, 1).apply(self.asking)
            self._key_value = site.rows(1, 3).apply(self.y)
        else:
            self._query = self._key_value = site.each(site.projection.apply(self.y))
        self.mixed = empty(len(site.place), self.y.shape[1], self.y.dtype)
        attention.attend(*self._arguments(), self.mixed)

    def _arguments(self) -> tuple[object, ...]:
        """Return the arguments that both kernels take."""
        site, bias = self.site, self.site.bias.value
        some, chunk = site.some, site.chunk
        return (
            self._query, site.of(bias, 0, 1) if some else bias,
            self._key_value, site.of(bias, 1, 3) if some else bias, 0 if some else self.y.shape[1],
            chunk.starts, chunk.asking if some else chunk.starts, chunk.longest, site.heads, site.place,
            site.key, site.cut, site.stride,
        )  # fmt: skip

    def backward(self, d_mixed: np.ndarray) -> np.ndarray:
        """See `Attended`."""
        site, bias = self.site, self.site.bias.gradient
        nothing = np.zeros(self.y.shape[1], dtype=np.float32)
        d_key_value = _like(self._key_value)
        if not site.some:
            attention.attend_backward(
                *self._arguments(), d_mixed, nothing, d_key_value, d_key_value, bias, bias
            )
            y = site.each(self.y) if site.apart else self.y
            return site.projection.back(site.summed(d_key_value, len(self.y)), y)
        d_query = _like(self._query)
        attention.attend_backward(
            *self._arguments(), d_mixed, nothing, d_query, d_key_value,
            site.of(bias, 0, 1), site.of(bias, 1, 3),
        )  # fmt: skip
        d_asking = site.rows(0, 1).back(d_query, self.asking)
        d_y = site.rows(1, 3).back(d_key_value, self.y)
        add_rows(d_y, site.chunk.masked, d_asking)
        return d_y


@dataclass
class Gathering:
    """Attention of masked words without keys and values."""

    site: Site
    y: np.ndarray
    asking: np.ndarray
    mixed: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        site, (M, D) = self.site, self.asking.shape
        self._nothing = np.zeros(D, dtype=np.float32)
        self._ones = np.ones((M, site.heads), dtype=np.float32)
        self._sums = np.empty_like(self._ones)
        self._query = site.rows(0, 1).apply(self.asking)
        kernels.shift_heads(self._query, site.of(site.bias.value, 0, 1), self._ones)
        self._reach = site.rows(1, 2, site.heads).through(self._query)
        self._mix = _like(self._reach)
        attention.gather(*self._arguments(), self._by_head(self._mix), self._sums)
        self.mixed = site.rows(2, 3, site.heads).apply(self._mix)
        kernels.shift_heads(self.mixed, site.of(site.bias.value, 2, 3), self._sums)

    def _arguments(self) -> tuple[object, ...]:
        """Return the arguments that both kernels take."""
        site, chunk = self.site, self.site.chunk
        return (
            self._by_head(self._reach), self._nothing, self.y, chunk.starts, chunk.asking, chunk.longest,
            site.heads, site.place, site.key, site.cut, site.stride,
        )  # fmt: skip

    def _by_head(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self.y.shape[1])

    def backward(self, d_mixed: np.ndarray) -> np.ndarray:
        """See `Attended`."""
        site, value, gradient = self.site, self.site.bias.value, self.site.bias.gradient
        d_sums = np.empty_like(self._sums)
        kernels.shift_factors_backward(d_mixed, site.of(value, 2, 3), d_sums)
        kernels.shift_heads_backward(d_mixed, self._sums, site.of(gradient, 2, 3))
        d_mix = site.rows(2, 3, site.heads).back(d_mixed, self._mix)
        d_reach, d_y = _like(self._reach), _like(self.y)
        attention.gather_backward(
            *self._arguments(), self._by_head(d_mix), d_sums, self._by_head(d_reach), d_y
        )
        keys = site.rows(1, 2, site.heads)
        # The product was that with the weight itself, so queries stand here where outputs do elsewhere.
        keys.learn(self._query, d_reach)
        d_query = keys.apply(d_reach)
        kernels.shift_heads_backward(d_query, self._ones, site.of(gradient, 0, 1))
        add_rows(d_y, site.chunk.masked, site.rows(0, 1).back(d_query, self.asking))
        return d_y


def _like(x: np.ndarray) -> np.ndarray:
    rows, columns = x.shape
    return empty(rows, columns, x.dtype)
