"""Compiled kernels: sampling of paths, and the forward-backward pass within a block.

The pass takes LANES sentences side by side, the innermost axis of its arrays.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel, scalars, tiles
from raysweep.compiled.philox import TILE, fill
from raysweep.compiled.simd import (
    BYTES,
    LANES,
    fetch,
    load,
    peek,
    plus,
    poke,
    put,
    store,
    stream,
    times,
    turn,
)
from raysweep.languages.guide import pick

#: Most states of a small block.  Its products add four terms at a time; larger ones keep sums in registers.
NARROW = 32
#: Words of a part of the vocabulary, whose numbers stay in the nearest cache up to their logarithms.
WORDS = 32
#: Words whose logarithms are handed to the result together: each sentence gets some lines of the cache.
_HANDED = 8 * WORDS
#: Fewest words of a single block that are written in whole lines of the cache.
_LONG = 64

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_TINY, _LOWEST = np.float32(np.finfo(np.float32).tiny), np.float32(np.finfo(np.float32).min)
_NONE = np.float32(-np.inf)

_four_rows, _row = tiles.tile(4, 4, scalar=True), tiles.tile(1, 4, scalar=True)


@kernel(error_model="numpy")
def paths(first, step, word, vocabulary, key, numbers, ids, states):  # type: ignore[no-untyped-def]
    """Write sentences `numbers` [n] into `ids` int64 [n, T] and their states into `states`, [n, T] or [0, T].

    `first`, `step` and `word` are guides of the rows of [1, S], [S, S] and [S, vocabulary].
    """
    n, T = ids.shape
    S, V = len(step.start), vocabulary
    blocks = (2 * T + 3) // 4
    drawn = np.empty((4, TILE * blocks), dtype=np.uint32)
    state = np.empty(TILE, dtype=np.int64)
    for tile in range(0, n, TILE):
        fill(key, numbers, tile, blocks, drawn)
        size = min(TILE, n - tile)
        # Position by position, because the draws of different sentences do not wait for each other.
        for t in range(T):
            u, v = t, T + t
            for i in range(size):
                w = drawn[u & 3, i * blocks + (u >> 2)]
                if t == 0:
                    state[i] = first.entry[pick(first, 0, w)]
                else:
                    state[i] = step.entry[pick(step, state[i], w)] - state[i] * S
            for i in range(size):
                w = drawn[v & 3, i * blocks + (v >> 2)]
                ids[tile + i, t] = word.entry[pick(word, state[i], w)] - state[i] * V
            if len(states) > 0:
                for i in range(size):
                    states[tile + i, t] = state[i]


@kernel(error_model="numpy")
def logarithms(p, out):  # type: ignore[no-untyped-def]
    """Write ln p of float32 [n] into `out`, -inf for 0; an element's does not depend on its place."""
    scalars.logarithms(p, 0, len(p), out, 0)


@kernel(error_model="numpy", fastmath={"contract"})
def product(a, x, out):  # type: ignore[no-untyped-def]
    """Write sum_i a[j, i] x[i, lane] into out[j, lane]; `a` is in C order and has out's rows at least."""
    n = a.shape[1]
    if n > NARROW:
        _wide_product(a, x, out)
        return
    fours = n - n % 4
    for j in range(len(out)):
        for lane in range(LANES):
            out[j, lane] = _ZERO
        # Four terms at a time, so that sums are stored a quarter as often.
        for i in range(0, fours, 4):
            a0, a1, a2, a3 = a[j, i], a[j, i + 1], a[j, i + 2], a[j, i + 3]
            for lane in range(LANES):
                out[j, lane] += (a0 * x[i, lane] + a1 * x[i + 1, lane]) + (
                    a2 * x[i + 2, lane] + a3 * x[i + 3, lane]
                )
        for i in range(fours, n):
            for lane in range(LANES):
                out[j, lane] += a[j, i] * x[i, lane]


@kernel(error_model="numpy")
def _wide_product(a, x, out):  # type: ignore[no-untyped-def]
    n, fours = a.shape[1], len(out) - len(out) % 4
    for j in range(0, fours, 4):
        _four_rows(out, j * LANES, LANES, 16, a, j * n, 1, n, x, 0, LANES, 16, n)
    for j in range(fours, len(out)):
        _row(out, j * LANES, LANES, 16, a, j * n, 1, n, x, 0, LANES, 16, n)


@kernel(error_model="numpy")
def _rows(count):  # type: ignore[no-untyped-def]
    """Return an empty array [count, LANES] that lies as vectors need it."""
    space = np.empty(count * LANES + BYTES // 4, dtype=np.float32)
    first = (BYTES - space.ctypes.data % BYTES) % BYTES // 4
    return space[first : first + count * LANES].reshape(count, LANES)


@kernel(error_model="numpy")
def multiply(a, b, out, total):  # type: ignore[no-untyped-def]
    """Write a * b [s, LANES] into `out` and its sums over s into `total` [LANES], all made by `_rows`."""
    total[:] = _ZERO
    # Sums of sums have fewer rounding errors.
    for first in range(0, len(a), NARROW):
        sums = times(load(a, first, 0, 4), load(b, first, 0, 4))
        store(out, first, 0, sums)
        for i in range(first + 1, min(first + NARROW, len(a))):
            x, y = load(a, i, 0, 4), load(b, i, 0, 4)
            store(out, i, 0, times(x, y))
            sums = plus(x, y, sums)
        store(total, 0, 0, plus(_ONE, load(total, 0, 0, 4), sums))


@kernel(error_model="numpy", fastmath={"contract"})
def add(x, total):  # type: ignore[no-untyped-def]
    """Write the sums over s of x [s, LANES] into `total` [LANES]."""
    for lane in range(LANES):
        total[lane] = _ZERO
    for i in range(len(x)):
        for lane in range(LANES):
            total[lane] += x[i, lane]


@kernel(error_model="numpy", fastmath={"contract"})
def normalise(x, total, least):  # type: ignore[no-untyped-def]
    """Divide x [s, LANES] by its `total` and keep the `least` total met; both [LANES]."""
    inverse = np.empty(LANES, dtype=np.float32)
    for lane in range(LANES):
        least[lane] = min(least[lane], total[lane])
        inverse[lane] = _ONE / max(total[lane], _TINY)
    for i in range(len(x)):
        for lane in range(LANES):
            x[i, lane] *= inverse[lane]


@kernel(error_model="numpy")
def _hand(logs, words, rows, t, out):  # type: ignore[no-untyped-def]
    """Write `logs` [c, LANES] of some words at position t of the sentences `rows` [LANES] of `out` [B, T, V].

    `words` [c] ascend; a lane whose row is -1 is left out.  Words beside each other, which are all those of a
    single block, take whole vectors.
    """
    T, V, c = out.shape[1], out.shape[2], len(words)
    whole = c - c % 16 if words[c - 1] - words[0] == c - 1 else 0
    block = np.empty((16, 16), dtype=np.float32)
    for lane in range(0, LANES, 16):
        some = rows[lane : lane + 16]
        if some.max() < 0:
            continue
        for j in range(0, whole, 16):
            turn(logs, j * LANES + lane, LANES, block, 0, 16)
            for k in range(16):
                if some[k] >= 0:
                    put(out, (some[k] * T + t) * V + words[j], fetch(block, 16 * k))
        for k in range(16):
            if some[k] >= 0:
                at = (some[k] * T + t) * V
                for j in range(whole, c):
                    poke(out, at + words[j], peek(logs, j * LANES + lane + k))


@kernel(error_model="numpy")
def _hand_lines(logs, word, rows, t, out):  # type: ignore[no-untyped-def]
    """Do what `_hand` does with 16 words of a single block or more, from `word` on, past the cache.

    A line that is written whole at once need not be read first, so a sentence gets its numbers one behind the
    other.  The first and the last few may share a line with others.  Another thread sees the lines once it
    has taken a lock, as Python's threads do.
    """
    T, V, c = out.shape[1], out.shape[2], len(logs)
    whole, gap = c - c % 16, c + 16
    block = np.empty(16 * gap, dtype=np.float32)
    for lane in range(0, LANES, 16):
        some = rows[lane : lane + 16]
        if some.max() < 0:
            continue
        for j in range(0, whole, 16):
            turn(logs, j * LANES + lane, LANES, block, j, gap)
        for j in range(whole, c):
            for k in range(16):
                poke(block, k * gap + j, peek(logs, j * LANES + lane + k))
        for k in range(16):
            if some[k] < 0:
                continue
            at, place = (some[k] * T + t) * V + word, k * gap
            first = -(np.int64(out.ctypes.data) // 4 + at) % 16
            end = first + (c - first) // 16 * 16
            for j in range(first):
                poke(out, at + j, peek(block, place + j))
            for j in range(first, end, 16):
                stream(out, at + j, fetch(block, place + j))
            for j in range(end, c):
                poke(out, at + j, peek(block, place + j))


@kernel(error_model="numpy", fastmath={"contract"})
def conditionals(  # type: ignore[no-untyped-def]
    ids, hidden, rows, initial, transition, leaves, words, place, out, entropy, least_total, sound
):
    """Answer the sentences `rows` of one block; see `blocks.Blocks.answer`.

    `ids` [B, T]; `hidden` [B, T], or [0, T] for each position in turn; tables of s states and w words;
    `words` [w] are their ids, and `place` [V] maps ids back to words.  Writes to `out` [B, >= T, V] and
    `entropy` [B] unless they are empty, and `sound` [B]: whether all normalisers are at least `least_total`.
    """
    T = ids.shape[1]
    w, s = len(leaves) - 1, leaves.shape[1]
    whole = s - s % 16
    masked, write, measure = len(hidden) > 0, len(out) > 0, len(entropy) > 0
    # The terms of an entropy are added in float32, and part by part in a large block.  A small one keeps the
    # order that its results were made with.
    wide = s > NARROW
    V, back = out.shape[2], np.ascontiguousarray(transition.T)
    leaf, ahead = _rows(T * s).reshape(T, s, LANES), _rows(T * s).reshape(T, s, LANES)
    joint, behind, p = _rows(s), _rows(s), _rows(WORDS)
    logs = np.empty((min(_HANDED, w + WORDS), LANES), dtype=np.float32)
    total, least = _rows(1)[0], np.empty(LANES, dtype=np.float32)
    surprise, mean = np.empty(LANES, dtype=np.float32), np.empty(LANES, dtype=np.float64)
    block = np.empty((16, 16), dtype=np.float32)
    at, asking = np.empty(LANES, dtype=np.int64), np.full(LANES, -1)
    for tile in range(0, len(rows), LANES):
        size = min(LANES, len(rows) - tile)
        asking[size:] = -1
        for t in range(T):
            for lane in range(LANES):
                # Lanes without a sentence repeat the tile's first.
                row = rows[tile + lane] if lane < size else rows[tile]
                at[lane] = s * (w if masked and hidden[row, t] else place[ids[row, t]])
            for lane in range(0, LANES, 16):
                for i in range(0, whole, 16):
                    for k in range(16):
                        put(block, 16 * k, fetch(leaves, at[lane + k] + i))
                    turn(block, 0, 16, leaf, (t * s + i) * LANES + lane, LANES)
            for i in range(whole, s):
                for lane in range(LANES):
                    poke(leaf, (t * s + i) * LANES + lane, peek(leaves, at[lane] + i))
        least[:], mean[:] = _ONE, 0.0
        for i in range(s):
            ahead[0, i, :] = initial[i]
        # Without a mask no context holds all words, and the last one may be impossible.
        for t in range(T if masked else T - 1):
            multiply(ahead[t], leaf[t], joint, total)
            normalise(joint, total, least)
            if t < T - 1:
                product(back, joint, ahead[t + 1])
        behind[:] = _ONE / np.float32(s)
        for t in range(T - 1, -1, -1):
            multiply(ahead[t], behind, joint, total)
            normalise(joint, total, least)
            asked = False
            for lane in range(size):
                row = rows[tile + lane]
                asking[lane] = row if not masked or hidden[row, t] else -1
                asked |= asking[lane] >= 0
            if asked:
                if write and w < V:
                    for row in asking[:size]:
                        if row >= 0:
                            out[row, t] = _NONE
                surprise[:] = _ZERO
                for first in range(0, w, WORDS):
                    some = min(WORDS, w - first)
                    product(leaves[first:], joint, p[:some])
                    done = first % _HANDED
                    own = logs[done : done + some]
                    logarithms(p[:some].reshape(-1), own.reshape(-1))
                    if measure:
                        for c in range(some):
                            for lane in range(LANES):
                                surprise[lane] -= p[c, lane] * max(own[c, lane], _LOWEST)
                        if wide:
                            for lane in range(LANES):
                                mean[lane] += surprise[lane]
                            surprise[:] = _ZERO
                    done += some
                    if write and (done == _HANDED or first + some == w):
                        begin = first + some - done
                        # With other blocks, the lines are in the cache: they have just been filled with -inf.
                        if tiles.WHOLE and w == V and done >= _LONG:
                            _hand_lines(logs[:done], begin, asking, t, out)
                        else:
                            _hand(logs[:done], words[begin : first + some], asking, t, out)
                if measure and not wide:
                    for lane in range(LANES):
                        mean[lane] += surprise[lane]
            if t > 0:
                multiply(behind, leaf[t], joint, total)
                product(transition, joint, behind)
                add(behind, total)
                normalise(behind, total, least)
        for lane in range(size):
            sound[rows[tile + lane]] = least[lane] >= least_total
            if measure:
                entropy[rows[tile + lane]] = mean[lane] / T
