"""Attention within the sentences of a chunk: one kernel for short ones, matrix products for long ones.

Queries, keys and values are columns of low-precision matrices without their biases, which are added here.
Sentence s has keys and values in rows `starts[s]` .. `starts[s + 1]` of `keys` and queries in rows
`asking[s]` .. `asking[s + 1]` of `queries`; `place` numbers the queries' words in the batch, for dropout.
"""

from __future__ import annotations

import numba
import numpy as np

from raysweep.models.fused.scalars import COMPILED, LEVELS, draw, exponential, load, save

_F0, _F1 = np.float32(0.0), np.float32(1.0)


@numba.njit(**{**COMPILED, "inline": "always"})
def _fetch(matrix, shift, first, column, out, count):  # type: ignore[no-untyped-def]
    """out[:count] = rows from `first` on of the columns from `column` on, biases added."""
    width = out.shape[1]
    for i in range(count):
        for c in range(width):
            out[i, c] = load(matrix, first + i, column + c) + shift[column + c]


@numba.njit(**{**COMPILED, "inline": "always"})
def _softmax(row, count):  # type: ignore[no-untyped-def]
    top = np.float32(-np.inf)
    for j in range(count):
        top = max(top, row[j])
    total = _F0
    for j in range(count):
        e = exponential(row[j] - top)
        row[j] = e
        total += e
    share = _F1 / total
    for j in range(count):
        row[j] *= share


@numba.njit(**{**COMPILED, "inline": "always"})
def _keep(key, number, stride, cut, words, keep, count):  # type: ignore[no-untyped-def]
    """Write dropout's factors of one query's weights into `keep[:count]`."""
    draw(key, number * stride, words[: (count + 3) // 4])
    levels = words.view(np.uint16)
    scale = np.float32(LEVELS / (LEVELS - cut))
    for j in range(count):
        keep[j] = scale if levels[j] >= cut else _F0


@numba.njit(**{**COMPILED, "inline": "always"})
def _scores(q, k, scale, row, count):  # type: ignore[no-untyped-def]
    width = len(q)
    for j in range(count):
        dot = _F0
        for c in range(width):
            dot += q[c] * k[j, c]
        row[j] = dot * scale


@numba.njit(**COMPILED)
def attend(  # type: ignore[no-untyped-def]
    queries, q_shift, keys, k_shift, k_column, starts, asking, longest, heads, place, key, cut, stride, out
):
    """out = the mixture of values of every query [Q, D], low.

    `keys` holds keys from column `k_column` on and values D columns behind; no sentence has more than
    `longest` words.  `stride` is the number of words of the random stream that a query of a head may use.
    """
    D = out.shape[1]
    width = D // heads
    scale = np.float32(1.0 / np.sqrt(width))
    k = np.empty((longest, width), dtype=np.float32)
    v = np.empty((longest, width), dtype=np.float32)
    q = np.empty((1, width), dtype=np.float32)
    row, keep = np.empty(longest, dtype=np.float32), np.ones(longest, dtype=np.float32)
    words = np.empty((longest + 3) // 4, dtype=np.uint64)
    mixed = np.empty(width, dtype=np.float32)
    for s in range(len(starts) - 1):
        first, T = starts[s], starts[s + 1] - starts[s]
        for h in range(heads):
            column = h * width
            _fetch(keys, k_shift, first, k_column + column, k, T)
            _fetch(keys, k_shift, first, k_column + D + column, v, T)
            for n in range(asking[s], asking[s + 1]):
                _fetch(queries, q_shift, n, column, q, 1)
                _scores(q[0], k, scale, row, T)
                _softmax(row, T)
                if cut > 0:
                    _keep(key, place[n] * heads + h, stride, cut, words, keep, T)
                for c in range(width):
                    mixed[c] = _F0
                for j in range(T):
                    p = row[j] * keep[j]
                    for c in range(width):
                        mixed[c] += p * v[j, c]
                for c in range(width):
                    save(out, n, column + c, mixed[c])


@numba.njit(**COMPILED)
def attend_backward(  # type: ignore[no-untyped-def]
    queries, q_shift, keys, k_shift, k_column, starts, asking, longest, heads, place, key, cut, stride,
    d_out, d_queries, d_keys, d_q_shift, d_k_shift,
):  # fmt: skip
    """Write the gradients of queries and of keys and values, given that of `attend`'s `out`.

    They stand where the values themselves stand in `queries` and `keys`.
    """
    D = d_out.shape[1]
    width = D // heads
    scale = np.float32(1.0 / np.sqrt(width))
    k, v = np.empty((longest, width), dtype=np.float32), np.empty((longest, width), dtype=np.float32)
    d_k, d_v = np.empty((longest, width), dtype=np.float32), np.empty((longest, width), dtype=np.float32)
    q, e = np.empty((1, width), dtype=np.float32), np.empty(width, dtype=np.float32)
    row, keep = np.empty(longest, dtype=np.float32), np.ones(longest, dtype=np.float32)
    slope = np.empty(longest, dtype=np.float32)
    words = np.empty((longest + 3) // 4, dtype=np.uint64)
    d_q = np.empty(width, dtype=np.float32)
    for s in range(len(starts) - 1):
        first, T = starts[s], starts[s + 1] - starts[s]
        for h in range(heads):
            column = h * width
            _fetch(keys, k_shift, first, k_column + column, k, T)
            _fetch(keys, k_shift, first, k_column + D + column, v, T)
            for j in range(T):
                for c in range(width):
                    d_k[j, c] = _F0
                    d_v[j, c] = _F0
            for n in range(asking[s], asking[s + 1]):
                _fetch(queries, q_shift, n, column, q, 1)
                _scores(q[0], k, scale, row, T)
                _softmax(row, T)
                if cut > 0:
                    _keep(key, place[n] * heads + h, stride, cut, words, keep, T)
                for c in range(width):
                    e[c] = load(d_out, n, column + c)
                _scores(e, v, _F1, slope, T)
                total = _F0
                for j in range(T):
                    slope[j] *= keep[j]
                    total += slope[j] * row[j]
                for c in range(width):
                    d_q[c] = _F0
                for j in range(T):
                    p = row[j] * keep[j]
                    w = row[j] * (slope[j] - total) * scale
                    for c in range(width):
                        d_v[j, c] += p * e[c]
                        d_k[j, c] += w * q[0, c]
                        d_q[c] += w * k[j, c]
                for c in range(width):
                    d_q_shift[column + c] += d_q[c]
                    save(d_queries, n, column + c, d_q[c])
            for j in range(T):
                for c in range(width):
                    d_k_shift[k_column + column + c] += d_k[j, c]
                    d_k_shift[k_column + D + column + c] += d_v[j, c]
                    save(d_keys, first + j, k_column + column + c, d_k[j, c])
                    save(d_keys, first + j, k_column + D + column + c, d_v[j, c])
