"""Compiled kernels that turn outside weights of leaves into conditionals and entropies.

The joint weights of a position over words are a mixture of the emissions of its symbols.  Their sum is known
before the words are: it is that of the weights times the sums of the emissions.  So a mixture is computed as
probabilities, for four sentences at a time, whose symbols at a position are the same, in vectors of words.
The answer at a position depends on its weights alone: the order of its sums does not depend on the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import logarithm
from raysweep.compiled.simd import BYTES, fetch, peek, plus, poke, positive, put, splat

#: Sentences whose probabilities at a position are computed one after the other.
_GROUP = 16

_NONE = np.float32(-np.inf)


class Mixture(NamedTuple):
    """The map from weights of leaves, in this order, to weights of words at each of n positions.

    Position t's symbols of many words are `symbols[of[t] : of[t + 1]]`, rows of `emission` [N, W], whose
    sums are `mass` [N] in float64.  Behind the V words of a row stand zeros, to whole vectors.  Its symbols
    of few words follow as terms: the weight at `source[k]` times `value[k]` goes to `word[k]`, for k in
    `terms_of[t] : terms_of[t + 1]`.
    """

    emission: np.ndarray
    mass: np.ndarray
    of: np.ndarray
    symbols: np.ndarray
    terms_of: np.ndarray
    source: np.ndarray
    word: np.ndarray
    value: np.ndarray


@kernel(error_model="numpy")
def _space(mixture):  # type: ignore[no-untyped-def]
    """Return room for probabilities of four sentences [4, W], placed as vectors need it, for the weights of
    their leaves and a scale [4, N + 1], and for the numbers of a group's sentences."""
    emission = mixture.emission
    size = 4 * emission.shape[1]
    space = np.empty(size + BYTES // emission.itemsize, dtype=emission.dtype)
    first = (BYTES - space.ctypes.data % BYTES) % BYTES // emission.itemsize
    weights = np.empty((4, len(emission) + 1), dtype=emission.dtype)
    return space[first : first + size].reshape(4, -1), weights, np.empty(_GROUP + 3, dtype=np.int64)


@kernel(error_model="numpy")
def _wanted(place, first, t, some):  # type: ignore[no-untyped-def]
    """Write the sentences of the group from `first` on that have a place at t into `some`; return how many.

    The last one is repeated until there are four times as many as needed.
    """
    count = 0
    for b in range(first, min(first + _GROUP, len(place))):
        if place[b, t] >= 0:
            some[count] = b
            count += 1
    if count > 0:
        some[count : count + 3] = some[count - 1]
    return count


@kernel(fastmath={"contract"}, error_model="numpy")
def _mix(outside, mixture, t, some, floor, sound, weights, mixed):  # type: ignore[no-untyped-def]
    """Fill `mixed` [4, W] with Pr(x_t = . | visible words but x_t) of the sentences `some` [4].

    Clears `sound` boolean [B] where a normaliser is outside [floor, 1 / floor].
    """
    emission, symbols, N = mixture.emission, mixture.symbols, weights.shape[1]
    first, step, width = mixture.of[t], BYTES // mixed.itemsize, mixed.shape[1]
    count = mixture.of[t + 1] - first
    for r in range(4):
        given, total = outside[some[r]], 0.0
        for k in range(count):
            total += np.float64(given[first + k]) * mixture.mass[symbols[first + k]]
        for k in range(mixture.terms_of[t], mixture.terms_of[t + 1]):
            total += np.float64(given[mixture.source[k]]) * np.float64(mixture.value[k])
        if not (total >= floor and total * floor <= 1.0):
            sound[some[r]] = False
        scale = 1 / total
        for k in range(count):
            weights[r, k] = given[first + k] * scale
        weights[r, N - 1] = scale
    for c in range(0, width, step):
        p0 = p1 = p2 = p3 = splat(mixed.dtype.type(0))
        for k in range(count):
            e = fetch(emission, peek(symbols, first + k) * width + c)
            p0 = plus(splat(peek(weights, k)), e, p0)
            p1 = plus(splat(peek(weights, N + k)), e, p1)
            p2 = plus(splat(peek(weights, 2 * N + k)), e, p2)
            p3 = plus(splat(peek(weights, 3 * N + k)), e, p3)
        put(mixed, c, p0)
        put(mixed, width + c, p1)
        put(mixed, 2 * width + c, p2)
        put(mixed, 3 * width + c, p3)
    for r in range(4):
        given = outside[some[r]]
        for k in range(mixture.terms_of[t], mixture.terms_of[t + 1]):
            mixed[r, mixture.word[k]] += given[mixture.source[k]] * weights[r, N - 1] * mixture.value[k]


@kernel(error_model="numpy")
def normalised(
    outside: np.ndarray,
    mixture: Mixture,
    place: np.ndarray,
    floor: float,
    out: np.ndarray,
    sound: np.ndarray,
) -> None:
    """Write Pr(x_t = . | visible words but x_t) of sentence b into row `place[b, t]` of `out` [rows, V].

    `place` int64 [B, n] is -1 where nothing is wanted.  Clears `sound` boolean [B] where a normaliser is
    outside [floor, 1 / floor].
    """
    V = out.shape[1]
    mixed, weights, some = _space(mixture)
    for first in range(0, len(place), _GROUP):
        for t in range(place.shape[1]):
            count = _wanted(place, first, t, some)
            for k in range(0, count, 4):
                _mix(outside, mixture, t, some[k:], floor, sound, weights, mixed)
                for r in range(min(4, count - k)):
                    row = out[place[some[k + r], t]]
                    for c in range(V):
                        row[c] = mixed[r, c]


@kernel(fastmath={"contract"}, error_model="numpy")
def log_normalised(
    outside: np.ndarray,
    mixture: Mixture,
    place: np.ndarray,
    floor: float,
    out: np.ndarray,
    sound: np.ndarray,
) -> None:
    """Write the logarithms of the result of `normalised`; float32."""
    V, step = out.shape[1], BYTES // out.itemsize
    mixed, weights, some = _space(mixture)
    width = mixed.shape[1]
    for first in range(0, len(place), _GROUP):
        for t in range(place.shape[1]):
            count = _wanted(place, first, t, some)
            for k in range(0, count, 4):
                _mix(outside, mixture, t, some[k:], floor, sound, weights, mixed)
                for r in range(min(4, count - k)):
                    row = place[some[k + r], t] * V
                    for c in range(0, V - V % step, step):
                        p = fetch(mixed, r * width + c)
                        put(out, row + c, positive(p, logarithm(p), splat(_NONE)))
                    if V % step > 0:
                        p = fetch(mixed, r * width + V - V % step)
                        logs = positive(p, logarithm(p), splat(_NONE))
                        put(mixed, r * width + V - V % step, logs)
                        for c in range(V - V % step, V):
                            poke(out, row + c, peek(mixed, r * width + c))


@kernel(fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
def entropies(
    outside: np.ndarray,
    mixture: Mixture,
    floor: float,
    out: np.ndarray,
    sound: np.ndarray,
) -> None:
    """Write (1/n) sum_t H(x_t | all other words) into `out` float64 [B]; the rest in float32.

    Clears `sound` as `normalised` does.
    """
    mixed, weights, some = _space(mixture)
    n, B = len(mixture.of) - 1, len(out)
    out[:] = 0
    for first in range(0, B, 4):
        for r in range(4):
            some[r] = min(first + r, B - 1)
        for t in range(n):
            _mix(outside, mixture, t, some, floor, sound, weights, mixed)
            for r in range(min(4, B - first)):
                entropy = np.float32(0)
                for c in range(mixed.shape[1]):
                    p = mixed[r, c]
                    entropy -= p * logarithm(p)
                out[first + r] += np.float64(entropy)
        for r in range(min(4, B - first)):
            out[first + r] /= n
