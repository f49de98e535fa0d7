"""Compiled kernels that turn outside weights of leaves into conditionals and entropies.

The joint weights of a position over words are a mixture of the emissions of its symbols: [V] numbers that
stay in the cache while they are summed, scaled and turned into logarithms.  The answer at a position depends
on its weights alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import logarithm


class Mixture(NamedTuple):
    """The map from weights of leaves, in this order, to weights of words at each of n positions.

    Position t's symbols of many words are `symbols[of[t] : of[t + 1]]`, rows of `emission` [N, V].  Its
    symbols of few words follow as terms: the weight at `source[k]` times `value[k]` goes to `word[k]`, for k
    in `terms_of[t] : terms_of[t + 1]`.
    """

    emission: np.ndarray
    of: np.ndarray
    symbols: np.ndarray
    terms_of: np.ndarray
    source: np.ndarray
    word: np.ndarray
    value: np.ndarray


@kernel(fastmath={"reassoc", "nsz"})
def _sum(row):  # type: ignore[no-untyped-def]
    """Return the sum of `row` in float64.

    numba must not inline this: inlined code has the flags of its caller, and without `reassoc` the sum is not
    vectorised.
    """
    total = 0.0
    for c in range(row.shape[0]):
        total += row[c]
    return total


@kernel(fastmath={"contract"}, error_model="numpy", inline="always")
def _mix(outside, mixture, t, row):  # type: ignore[no-untyped-def]
    """Fill `row` [V] with sum_A outside[A] emission[A, c] over position t's leaves and return its sum."""
    V, emission, symbols = row.shape[0], mixture.emission, mixture.symbols
    k, last = mixture.of[t], mixture.of[t + 1]
    # Five symbols at a time, so that the row is read and written less often.
    if k + 5 <= last:
        f0, f1, f2, f3, f4 = outside[k], outside[k + 1], outside[k + 2], outside[k + 3], outside[k + 4]
        e0, e1, e2 = emission[symbols[k]], emission[symbols[k + 1]], emission[symbols[k + 2]]
        e3, e4 = emission[symbols[k + 3]], emission[symbols[k + 4]]
        for c in range(V):
            row[c] = f0 * e0[c] + f1 * e1[c] + f2 * e2[c] + f3 * e3[c] + f4 * e4[c]
        k += 5
    else:
        for c in range(V):
            row[c] = 0
    while k + 5 <= last:
        f0, f1, f2, f3, f4 = outside[k], outside[k + 1], outside[k + 2], outside[k + 3], outside[k + 4]
        e0, e1, e2 = emission[symbols[k]], emission[symbols[k + 1]], emission[symbols[k + 2]]
        e3, e4 = emission[symbols[k + 3]], emission[symbols[k + 4]]
        for c in range(V):
            row[c] += f0 * e0[c] + f1 * e1[c] + f2 * e2[c] + f3 * e3[c] + f4 * e4[c]
        k += 5
    while k < last:
        f0, e0 = outside[k], emission[symbols[k]]
        for c in range(V):
            row[c] += f0 * e0[c]
        k += 1
    for k in range(mixture.terms_of[t], mixture.terms_of[t + 1]):
        row[mixture.word[k]] += outside[mixture.source[k]] * mixture.value[k]
    return _sum(row)


@kernel(fastmath={"contract"}, error_model="numpy")
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
    for b in range(place.shape[0]):
        for t in range(place.shape[1]):
            if place[b, t] >= 0:
                row = out[place[b, t]]
                total = _mix(outside[b], mixture, t, row)
                if not (total >= floor and total * floor <= 1.0):
                    sound[b] = False
                scale = 1 / total
                for c in range(row.shape[0]):
                    row[c] *= scale


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
    mixed = np.empty(out.shape[1], dtype=np.float32)
    for b in range(place.shape[0]):
        for t in range(place.shape[1]):
            if place[b, t] >= 0:
                row = out[place[b, t]]
                total = _mix(outside[b], mixture, t, mixed)
                if not (total >= floor and total * floor <= 1.0):
                    sound[b] = False
                scale = np.float32(1 / total)
                for c in range(row.shape[0]):
                    p = mixed[c] * scale
                    row[c] = logarithm(p) if p > 0 else np.float32(-np.inf)


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
    mixed = np.empty(mixture.emission.shape[1], dtype=np.float32)
    n = len(mixture.of) - 1
    for b in range(out.shape[0]):
        mean = 0.0
        for t in range(n):
            total = _mix(outside[b], mixture, t, mixed)
            if not (total >= floor and total * floor <= 1.0):
                sound[b] = False
            scale = np.float32(1 / total)
            entropy = np.float32(0)
            for c in range(mixed.shape[0]):
                p = mixed[c] * scale
                entropy -= p * logarithm(p)
            mean += np.float64(entropy)
        out[b] = mean / n
