"""Compiled kernels: sampling of paths, and the forward-backward pass within a block."""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.philox import TILE, fill
from raysweep.compiled.scalars import logarithm
from raysweep.languages.guide import pick

#: Sentences side by side, the innermost axis of all arrays.  It is a large constant, so that the compiler
#: makes full vector loops over it.
LANES = 64

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_TINY, _LOWEST = np.float32(np.finfo(np.float32).tiny), np.float32(np.finfo(np.float32).min)
_NONE = np.float32(-np.inf)


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


# No contraction here: an element's logarithm is the same in a vector loop and in the rest behind it.
@kernel(error_model="numpy")
def logarithms(p, out):  # type: ignore[no-untyped-def]
    """Write ln p of float32 [n] into `out`, -inf for 0.  `out` must not be `p`: the loop is vectorised."""
    for k in range(len(p)):
        value = logarithm(p[k])
        out[k] = value if p[k] > _ZERO else _NONE


@kernel(error_model="numpy", fastmath={"contract"})
def product(a, x, out):  # type: ignore[no-untyped-def]
    """Write sum_i a[i, j] x[i, lane] into out[j, lane]."""
    n = len(a)
    fours = n - n % 4
    for j in range(a.shape[1]):
        for lane in range(LANES):
            out[j, lane] = _ZERO
        # Four terms at a time, so that sums are stored a quarter as often.
        for i in range(0, fours, 4):
            a0, a1, a2, a3 = a[i, j], a[i + 1, j], a[i + 2, j], a[i + 3, j]
            for lane in range(LANES):
                out[j, lane] += (a0 * x[i, lane] + a1 * x[i + 1, lane]) + (
                    a2 * x[i + 2, lane] + a3 * x[i + 3, lane]
                )
        for i in range(fours, n):
            for lane in range(LANES):
                out[j, lane] += a[i, j] * x[i, lane]


@kernel(error_model="numpy", fastmath={"contract"})
def multiply(a, b, out, total):  # type: ignore[no-untyped-def]
    """Write a * b [s, LANES] into `out` and its sums over s into `total` [LANES]."""
    for lane in range(LANES):
        total[lane] = _ZERO
    for i in range(len(a)):
        for lane in range(LANES):
            out[i, lane] = a[i, lane] * b[i, lane]
            total[lane] += out[i, lane]


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


@kernel(error_model="numpy", fastmath={"contract"})
def conditionals(  # type: ignore[no-untyped-def]
    ids, hidden, rows, initial, transition, emission, leaves, words, place, out, entropy, least_total, sound
):
    """Answer the sentences `rows` of one block; see `blocks.Blocks.answer`.

    `ids` [B, T]; `hidden` [B, T], or [0, T] for each position in turn; tables of s states and w words;
    `words` [w] are their ids, and `place` [V] maps ids back to words.  Writes to `out` [B, >= T, V] and
    `entropy` [B] unless they are empty, and `sound` [B]: whether all normalisers are at least `least_total`.
    """
    T = ids.shape[1]
    s, w = emission.shape
    masked, write, measure = len(hidden) > 0, len(out) > 0, len(entropy) > 0
    back = transition.T.copy()
    leaf = np.empty((T, s, LANES), dtype=np.float32)
    ahead = np.empty((T, s, LANES), dtype=np.float32)
    joint, behind = np.empty((s, LANES), dtype=np.float32), np.empty((s, LANES), dtype=np.float32)
    total, least = np.empty(LANES, dtype=np.float32), np.empty(LANES, dtype=np.float32)
    p, logs = np.empty((w, LANES), dtype=np.float32), np.empty((w, LANES), dtype=np.float32)
    surprise, mean = np.empty(LANES, dtype=np.float32), np.empty(LANES, dtype=np.float64)
    for tile in range(0, len(rows), LANES):
        size = min(LANES, len(rows) - tile)
        for lane in range(LANES):
            # Lanes without a sentence repeat the tile's first.
            row = rows[tile + lane] if lane < size else rows[tile]
            for t in range(T):
                c = w if masked and hidden[row, t] else place[ids[row, t]]
                for i in range(s):
                    leaf[t, i, lane] = leaves[c, i]
        least[:], mean[:] = _ONE, 0.0
        for i in range(s):
            ahead[0, i, :] = initial[i]
        # Without a mask no context holds all words, and the last one may be impossible.
        for t in range(T if masked else T - 1):
            multiply(ahead[t], leaf[t], joint, total)
            normalise(joint, total, least)
            if t < T - 1:
                product(transition, joint, ahead[t + 1])
        behind[:] = _ONE / np.float32(s)
        for t in range(T - 1, -1, -1):
            multiply(ahead[t], behind, joint, total)
            normalise(joint, total, least)
            asked = not masked
            for lane in range(size):
                asked |= masked and hidden[rows[tile + lane], t]
            if asked:
                product(emission, joint, p)
                logarithms(p.reshape(-1), logs.reshape(-1))
                if measure:
                    surprise[:] = _ZERO
                    for c in range(w):
                        for lane in range(LANES):
                            surprise[lane] -= p[c, lane] * max(logs[c, lane], _LOWEST)
                    for lane in range(LANES):
                        mean[lane] += surprise[lane]
                if write:
                    for lane in range(size):
                        row = rows[tile + lane]
                        if not masked or hidden[row, t]:
                            out[row, t] = _NONE
                            for c in range(w):
                                out[row, t, words[c]] = logs[c, lane]
            if t > 0:
                multiply(behind, leaf[t], joint, total)
                product(back, joint, behind)
                add(behind, total)
                normalise(behind, total, least)
        for lane in range(size):
            sound[rows[tile + lane]] = least[lane] >= least_total
            if measure:
                entropy[rows[tile + lane]] = mean[lane] / T
