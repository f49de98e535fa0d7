"""Compiled kernels that turn outside weights of leaves into conditionals and entropies, and blank the rest.

The joint weights of a position over words are a mixture of the emissions of its symbols.  Their sum is known
before the words are: it is that of the weights times the sums of the emissions.  So a mixture is computed as
probabilities at once.  Sentences of one length have the same symbols at a position, and four of them are
mixed together, in vectors of words.  The answer at a position depends on its weights alone: the order of its
sums does not depend on the other sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import logarithm, logarithms
from raysweep.compiled.simd import BYTES, fetch, itemsize, peek, plus, poke, put, splat, stream
from raysweep.compiled.tiles import WHOLE
from raysweep.languages.pcfg.instructions import runs_joined

#: Sentences among which those that want a position are sought, to be computed four at a time; their results
#: stay in a core's cache.
_GROUP = 16


class Mixture(NamedTuple):
    """The map from weights of leaves, in this order, to weights of words at each of n positions.

    Position t's leaves of symbols of many words are `of[t] : of[t + 1]`.  Leaf k's emissions begin at place
    `rows[k]` of `emission` [N, W], and their sum is `mass[k]`, float64.  Behind the V words of a row stand
    zeros, to an even number of vectors.  Leaves of symbols of few words follow as terms: the weight at
    `source[k]` times `value[k]` goes to `word[k]`, for k in `terms_of[t] : terms_of[t + 1]`.  A position has
    at most N leaves of either kind, for its symbols differ.  All arrays are in C order.

    Those of P programs may lie one behind another (`joined`): `programs` int64 [P+1, 2] tells where the
    positions of each begin, and its leaves of symbols of many words, with the ends.  `source` then counts the
    latter of earlier programs, too; the weights of a program's leaves begin with its own.
    """

    emission: np.ndarray
    mass: np.ndarray
    of: np.ndarray
    rows: np.ndarray
    terms_of: np.ndarray
    source: np.ndarray
    word: np.ndarray
    value: np.ndarray
    programs: np.ndarray


def joined(mixtures: Sequence[Mixture]) -> Mixture:
    """Return the mixtures of some programs of one grammar, one behind another."""
    fields = {name: [getattr(mixture, name) for mixture in mixtures] for name in Mixture._fields}
    programs = runs_joined(fields["programs"])
    fields["source"] = [
        source + first for source, (_, first) in zip(fields["source"], programs, strict=False)
    ]
    out = {name: np.concatenate(fields[name]) for name in ("mass", "rows", "source", "word", "value")}
    out |= {name: runs_joined(fields[name]) for name in ("of", "terms_of")}
    return Mixture(emission=mixtures[0].emission, programs=programs, **out)


@kernel(error_model="numpy")
def _space(emission):  # type: ignore[no-untyped-def]
    """Return room for probabilities of four sentences [4, W], for the weights of their leaves [4, N], and for
    the numbers of a group's sentences.

    The first begins at a multiple of a vector's size, so that no vector lies in two lines of the cache.
    """
    size = 4 * emission.shape[1]
    space = np.empty(size + BYTES // emission.itemsize, dtype=emission.dtype)
    first = (BYTES - space.ctypes.data % BYTES) % BYTES // emission.itemsize
    weights = np.empty((4, len(emission)), dtype=emission.dtype)
    return space[first : first + size].reshape(4, -1), weights, np.empty(_GROUP + 3, dtype=np.int64)


@kernel(error_model="numpy")
def _wanted(place, first, t, some):  # type: ignore[no-untyped-def]
    """Write the sentences of the group from `first` on that have a place at t into `some`; return how many.

    The last one is written three times more, so that there are always four to compute.
    """
    B, n = place.shape
    count = last = 0
    for b in range(first, min(first + _GROUP, B)):
        if peek(place, b * n + t) >= 0:
            poke(some, count, b)
            last = b
            count += 1
    for k in range(count, count + 3):
        poke(some, k, last)
    return count


@kernel(error_model="numpy")
def _judge(total, place, floor, sound):  # type: ignore[no-untyped-def]
    """Fill `sound` boolean [B]: Pr(words) `total` [B] is in [floor, 1 / floor], or every word is wanted.

    A sentence that shows a word shows it in every context, so the words shown must be possible.
    """
    B, n = place.shape
    for b in range(B):
        z = peek(total, b)
        good = z >= floor and z * floor <= 1.0
        if not good:
            good = True
            for t in range(n):
                good &= peek(place, b * n + t) >= 0
        sound[b] = good


# Elements are read by their place over all axes.  A row taken out of an array is a reference to it, and numba
# counts references by atomic operations, which take longer than the work on the row.
@kernel(fastmath={"contract"}, error_model="numpy", forceinline=True)
def _mix(outside, mixture, p, t, some, k, floor, sound, weights, mixed):  # type: ignore[no-untyped-def]
    """Fill `mixed` [4, W] with Pr(x_t = . | visible words but x_t) of the sentences `some[k : k + 4]`.

    They have as many words as program `p`.

    Clears `sound` boolean [B] where a normaliser is outside [floor, 1 / floor].  `weights` [4, N] is working
    space.
    """
    emission, mass, of, rows, terms_of, source, word, value, programs = mixture
    N, width, leaves, step = weights.shape[1], mixed.shape[1], outside.shape[1], BYTES // itemsize(mixed)
    b0, b1, b2, b3 = peek(some, k), peek(some, k + 1), peek(some, k + 2), peek(some, k + 3)
    at, base = programs[p, 0] + t, programs[p, 1]
    g0, g1, g2, g3 = b0 * leaves - base, b1 * leaves - base, b2 * leaves - base, b3 * leaves - base
    first, last, begin, end = peek(of, at), peek(of, at + 1), peek(terms_of, at), peek(terms_of, at + 1)
    t0 = t1 = t2 = t3 = 0.0
    for j in range(first, last):
        m = peek(mass, j)
        t0 += peek(outside, g0 + j) * m
        t1 += peek(outside, g1 + j) * m
        t2 += peek(outside, g2 + j) * m
        t3 += peek(outside, g3 + j) * m
    for j in range(begin, end):
        at, m = peek(source, j), np.float64(peek(value, j))
        t0 += peek(outside, g0 + at) * m
        t1 += peek(outside, g1 + at) * m
        t2 += peek(outside, g2 + at) * m
        t3 += peek(outside, g3 + at) * m
    sound[b0] &= t0 >= floor and t0 * floor <= 1.0
    sound[b1] &= t1 >= floor and t1 * floor <= 1.0
    sound[b2] &= t2 >= floor and t2 * floor <= 1.0
    sound[b3] &= t3 >= floor and t3 * floor <= 1.0
    kind = mixed.dtype.type
    s0, s1, s2, s3 = kind(1 / t0), kind(1 / t1), kind(1 / t2), kind(1 / t3)
    for j in range(last - first):
        poke(weights, j, peek(outside, g0 + first + j) * s0)
        poke(weights, N + j, peek(outside, g1 + first + j) * s1)
        poke(weights, 2 * N + j, peek(outside, g2 + first + j) * s2)
        poke(weights, 3 * N + j, peek(outside, g3 + first + j) * s3)
    if WHOLE:
        for c in range(0, width, 2 * step):
            p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = splat(kind(0))
            for j in range(last - first):
                at = peek(rows, first + j) + c
                x, y = fetch(emission, at), fetch(emission, at + step)
                w = splat(peek(weights, j))
                p0, q0 = plus(w, x, p0), plus(w, y, q0)
                w = splat(peek(weights, N + j))
                p1, q1 = plus(w, x, p1), plus(w, y, q1)
                w = splat(peek(weights, 2 * N + j))
                p2, q2 = plus(w, x, p2), plus(w, y, q2)
                w = splat(peek(weights, 3 * N + j))
                p3, q3 = plus(w, x, p3), plus(w, y, q3)
            put(mixed, c, p0)
            put(mixed, c + step, q0)
            put(mixed, width + c, p1)
            put(mixed, width + c + step, q1)
            put(mixed, 2 * width + c, p2)
            put(mixed, 2 * width + c + step, q2)
            put(mixed, 3 * width + c, p3)
            put(mixed, 3 * width + c + step, q3)
    else:
        # Two vectors of sums for each sentence would need more registers.
        for c in range(0, width, step):
            p0 = p1 = p2 = p3 = splat(kind(0))
            for j in range(last - first):
                x = fetch(emission, peek(rows, first + j) + c)
                p0 = plus(splat(peek(weights, j)), x, p0)
                p1 = plus(splat(peek(weights, N + j)), x, p1)
                p2 = plus(splat(peek(weights, 2 * N + j)), x, p2)
                p3 = plus(splat(peek(weights, 3 * N + j)), x, p3)
            put(mixed, c, p0)
            put(mixed, width + c, p1)
            put(mixed, 2 * width + c, p2)
            put(mixed, 3 * width + c, p3)
    for j in range(begin, end):
        at, to, v = peek(source, j), peek(word, j), peek(value, j)
        poke(mixed, to, peek(mixed, to) + peek(outside, g0 + at) * s0 * v)
        poke(mixed, width + to, peek(mixed, width + to) + peek(outside, g1 + at) * s1 * v)
        poke(mixed, 2 * width + to, peek(mixed, 2 * width + to) + peek(outside, g2 + at) * s2 * v)
        poke(mixed, 3 * width + to, peek(mixed, 3 * width + to) + peek(outside, g3 + at) * s3 * v)


@kernel(error_model="numpy")
def normalised(
    outside: np.ndarray,
    mixture: Mixture,
    p: int,
    total: np.ndarray,
    place: np.ndarray,
    floor: float,
    out: np.ndarray,
    sound: np.ndarray,
) -> None:
    """Write Pr(x_t = . | visible words but x_t) of sentence b into row `place[b, t]` of `out` [rows, V].

    `p` is the number of the program for the sentences' length, and `place` int64 [B, n] is -1 where nothing
    is wanted.  Fills `sound` boolean [B]: all normalisers are in [floor, 1 / floor], and so is Pr(words)
    `total` [B], unless all words are wanted.
    """
    V = out.shape[1]
    _judge(total, place, floor, sound)
    mixed, weights, some = _space(mixture.emission)
    for first in range(0, len(place), _GROUP):
        for t in range(place.shape[1]):
            count = _wanted(place, first, t, some)
            for k in range(0, count, 4):
                _mix(outside, mixture, p, t, some, k, floor, sound, weights, mixed)
                for r in range(min(4, count - k)):
                    row, at = place[some[k + r], t] * V, r * mixed.shape[1]
                    for c in range(V):
                        poke(out, row + c, peek(mixed, at + c))


@kernel(fastmath={"contract"}, error_model="numpy")
def log_normalised(
    outside: np.ndarray,
    mixture: Mixture,
    p: int,
    total: np.ndarray,
    place: np.ndarray,
    floor: float,
    out: np.ndarray,
    sound: np.ndarray,
) -> None:
    """Write the logarithms of the result of `normalised`; float32."""
    V = out.shape[1]
    _judge(total, place, floor, sound)
    mixed, weights, some = _space(mixture.emission)
    width = mixed.shape[1]
    for first in range(0, len(place), _GROUP):
        for t in range(place.shape[1]):
            count = _wanted(place, first, t, some)
            for k in range(0, count, 4):
                _mix(outside, mixture, p, t, some, k, floor, sound, weights, mixed)
                for r in range(min(4, count - k)):
                    logarithms(mixed, r * width, V, out, place[some[k + r], t] * V)


@kernel(fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
def entropies(
    outside: np.ndarray,
    mixture: Mixture,
    floor: float,
    out: np.ndarray,
    sound: np.ndarray,
) -> None:
    """Write (1/n) sum_t H(x_t | all other words) into `out` float64 [B]; the rest in float32.

    Clears `sound` boolean [B] where a normaliser is outside [floor, 1 / floor].
    """
    mixed, weights, some = _space(mixture.emission)
    n, B = len(mixture.of) - 1, len(out)
    out[:] = 0
    for first in range(0, B, 4):
        for r in range(4):
            some[r] = min(first + r, B - 1)
        for t in range(n):
            _mix(outside, mixture, 0, t, some, 0, floor, sound, weights, mixed)
            for r in range(min(4, B - first)):
                entropy = np.float32(0)
                for c in range(mixed.shape[1]):
                    p = mixed[r, c]
                    entropy -= p * logarithm(p)
                out[first + r] += np.float64(entropy)
        for r in range(min(4, B - first)):
            out[first + r] /= n


@kernel(error_model="numpy")
def blank(out: np.ndarray, unknown: np.ndarray) -> None:
    """Write NaN into the rows of `out` [M, V] that `unknown` boolean [M] names.

    The numbers go past the cache: it need not hold what nobody reads, nor fetch what is overwritten.  Another
    thread sees them once it has taken a lock, as Python's threads do.
    """
    V, step, none = out.shape[1], BYTES // itemsize(out), out.dtype.type(np.nan)
    # Elements from address 0 to the first, which tell where lines of the cache begin.
    before = out.ctypes.data // out.itemsize
    k = 0
    while k < len(unknown):
        if not unknown[k]:
            k += 1
            continue
        begin = k * V
        while k < len(unknown) and unknown[k]:
            k += 1
        end = k * V
        line = min(end, begin + -(before + begin) % step)
        rest = end - (end - line) % step
        for p in range(begin, line):
            poke(out, p, none)
        for p in range(line, rest, step):
            stream(out, p, splat(none))
        for p in range(rest, end):
            poke(out, p, none)
