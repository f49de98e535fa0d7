"""Compiled kernels that turn outside weights of leaves into conditionals and entropies.

A position's joint weights over words are a mixture of its symbols' emissions, [V] numbers that stay in the
cache while they are summed, scaled and turned into logarithms; a position's answer depends on its weights
alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types

from raysweep.compiled.simd import intrinsic


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


@intrinsic
def _as_int(context, value):  # type: ignore[no-untyped-def]
    """Return the bits of a float32."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def _as_float(context, value):  # type: ignore[no-untyped-def]
    """Return the float32 of 32 bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


_TINY, _UP, _LOGARITHM_UP = np.float32(2.0**-126), np.float32(2.0**24), np.int32(24)
_ROOT_HALF, _MANTISSA = np.int32(0x3F3504F3), np.int32(23)
#: ln 2 as a number of few bits, whose multiples are exact, and the rest.
_LN2, _LN2_REST = np.float32(0.693359375), np.float32(-2.12194440054690583e-4)
#: (log(1 + r) - r + r^2 / 2) / r^3 interpolated at Chebyshev points of [sqrt(1/2) - 1, sqrt(2) - 1].
_C0, _C1, _C2 = np.float32(0.33333331346), np.float32(-0.24999997020), np.float32(0.20000715554)
_C3, _C4, _C5 = np.float32(-0.16667802632), np.float32(0.14249058068), np.float32(-0.12425687164)
_C6, _C7, _C8 = np.float32(0.11685419828), np.float32(-0.11479733884), np.float32(0.06971611828)
_HALF, _UNIT = np.float32(0.5), np.float32(1.0)


@njit(cache=True, nogil=True, fastmath={"contract"}, inline="always")
def _log(x):  # type: ignore[no-untyped-def]
    """Return log x of a float32 >= 0 to its last place, without branches; a finite number for 0."""
    small = x < _TINY
    bits = _as_int(x * _UP if small else x)
    exponent = (bits - _ROOT_HALF) >> _MANTISSA
    r = _as_float(bits - (exponent << _MANTISSA)) - _UNIT
    e = np.float32(exponent - (_LOGARITHM_UP if small else np.int32(0)))
    p = (
        (((((((_C8 * r + _C7) * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
    ) * r
    return e * _LN2 + (r + (r * r * (p - _HALF) + e * _LN2_REST))


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _sum(row):  # type: ignore[no-untyped-def]
    """Return the sum of `row` in float64.

    Not inlined by numba: code that is has its caller's flags, and without `reassoc` a sum is no vector sum.
    """
    total = 0.0
    for c in range(row.shape[0]):
        total += row[c]
    return total


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy", inline="always")
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


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
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


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def log_normalised(
    outside: np.ndarray,
    mixture: Mixture,
    place: np.ndarray,
    floor: float,
    out: np.ndarray,
    sound: np.ndarray,
) -> None:
    """Do as `normalised` does and write logarithms; float32."""
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
                    row[c] = _log(p) if p > 0 else np.float32(-np.inf)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
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
                entropy -= p * _log(p)
            mean += np.float64(entropy)
        out[b] = mean / n
