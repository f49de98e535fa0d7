"""Sums over the words of packed sentences: squared norms of their gradients, one pass over memory each.

Sentence s has rows `starts[s]` .. `starts[s + 1]` of arrays [N, ...]; results are float64, one a sentence.
"""

from __future__ import annotations

import numba
import numpy as np

from raysweep.models.fused.scalars import COMPILED

_F0 = np.float32(0.0)


@numba.njit(**{**COMPILED, "inline": "always"})
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = _F0
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


@numba.njit(**{**COMPILED, "inline": "always"})
def _four(x, a, b, c, d, out, first):  # type: ignore[no-untyped-def]
    """out[first : first + 4] = inner products of x with four rows, x being read once."""
    one = two = three = four = _F0
    for k in range(len(x)):
        one += x[k] * a[k]
        two += x[k] * b[k]
        three += x[k] * c[k]
        four += x[k] * d[k]
    out[first], out[first + 1], out[first + 2], out[first + 3] = one, two, three, four


@numba.njit(**COMPILED)
def matrix(a, d, starts, weight, bias):  # type: ignore[no-untyped-def]
    """weight[s, c] = ‖Σ d aᵀ‖², bias[s, c] = ‖Σ d‖², of a [N, I] and each part c of d [N, parts, O]."""
    parts, width = d.shape[1], d.shape[2]
    row = np.empty(width, dtype=np.float32)
    longest = 0
    for s in range(len(starts) - 1):
        longest = max(longest, starts[s + 1] - starts[s])
    alike, apart = np.empty(longest, np.float32), np.empty(longest, np.float32)
    for s in range(len(starts) - 1):
        first, last = starts[s], starts[s + 1]
        for i in range(first, last):
            # Every pair once, and twice where it is of two words.
            j = i
            while j + 4 <= last:
                _four(a[i], a[j], a[j + 1], a[j + 2], a[j + 3], alike, j - i)
                j += 4
            while j < last:
                alike[j - i] = _dot(a[i], a[j])
                j += 1
            for c in range(parts):
                x = d[i, c]
                j = i
                while j + 4 <= last:
                    _four(x, d[j, c], d[j + 1, c], d[j + 2, c], d[j + 3, c], apart, j - i)
                    j += 4
                while j < last:
                    apart[j - i] = _dot(x, d[j, c])
                    j += 1
                total = -alike[0] * apart[0]
                for n in range(last - i):
                    total += np.float32(2.0) * alike[n] * apart[n]
                weight[s, c] += total
        for c in range(parts):
            row[:] = _F0
            for i in range(first, last):
                x = d[i, c]
                for k in range(width):
                    row[k] += x[k]
            bias[s, c] += _dot(row, row)


@numba.njit(**COMPILED)
def scale(d, d_y, s, stats, through, starts, weight, bias):  # type: ignore[no-untyped-def]
    """weight[i] = ‖Σ x ⊙ e‖², bias[i] = ‖Σ e‖², of a LayerNorm of s that x is normalised of.

    Cotangents of its outputs are e = d_y, and d more where `through`.
    """
    width = d_y.shape[1]
    one, two = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    more = np.float32(1.0) if through else _F0
    for sentence in range(len(starts) - 1):
        one[:] = _F0
        two[:] = _F0
        for i in range(starts[sentence], starts[sentence + 1]):
            mean, turn = stats[i, 0], stats[i, 1]
            for k in range(width):
                e = d_y[i, k] + more * d[i, k]
                one[k] += (s[i, k] - mean) * turn * e
                two[k] += e
        first = second = _F0
        for k in range(width):
            first += one[k] * one[k]
            second += two[k] * two[k]
        weight[sentence] = first
        bias[sentence] = second


@numba.njit(**COMPILED)
def tables(ids, d, starts, t, v, asking, tokens, positions):  # type: ignore[no-untyped-def]
    """Norms of both embeddings, the token embedding's without what the tied decoder has alone.

    d [N, D] are cotangents of the words' embeddings; t [M, D] and v [M, V] the decoder's inputs and
    cotangents at the masked words `asking[s]` .. `asking[s + 1]`.
    """
    for s in range(len(starts) - 1):
        for i in range(starts[s], starts[s + 1]):
            own = _dot(d[i], d[i])
            positions[s] += own
            tokens[s] += own
            for j in range(i + 1, starts[s + 1]):
                if ids[i] == ids[j]:
                    tokens[s] += np.float32(2.0) * _dot(d[i], d[j])
            for m in range(asking[s], asking[s + 1]):
                tokens[s] += np.float32(2.0) * v[m, ids[i]] * _dot(t[m], d[i])
