"""Sums over the words of packed sentences: squared norms of their gradients, one pass over memory each.

Sentence s has rows `starts[s]` .. `starts[s + 1]` of arrays [N, ...]; results are float64, one a sentence.

A weight's norm is ‖Σ_i d_i a_iᵀ‖² = Σ_i b_i·(Σ_j g_ij b_j) with g the Gram matrix of either a or d and b the
other: of these two, the narrower has its inner products taken (`_gram`), and the wider stays in whole vectors
up to the last sum (`_folded`).  Every pair of words is taken once, and counted twice in g.

A chunk's arrays are larger than the caches that are fast, and the words of a sentence are far apart.  So
while a sentence is computed, the next one is asked for, row by row.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED, HELPER, INLINE
from raysweep.compiled.simd import ahead, fetch, peek, plus, poke, splat, total
from raysweep.compiled.tiles import WHOLE
from raysweep.models.fused.kernels import junction_row, norm_row

_F0, _F1, _F2 = np.float32(0.0), np.float32(1.0), np.float32(2.0)

#: Numbers in a vector.
_LANES = 16


@kernel(**INLINE)
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = _F0
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


@kernel(**HELPER)
def _gram(x, at, first, words, width, g, row, behind):  # type: ignore[no-untyped-def]
    """Write inner products of rows of x into g, in rows `row` apart; row i of x begins at `at[i] + first`.

    On the diagonal once, above it twice and below it 0; up to a multiple of four rows and columns, more 0.
    Rows that are read next are `behind` these.
    """
    whole = width // _LANES * _LANES
    last = words - 1
    for i in range(0, words, 4):
        r0, r1 = at[i], at[min(i + 1, last)]
        r2, r3 = at[min(i + 2, last)], at[min(i + 3, last)]
        for k in range(first + behind, first + behind + whole, _LANES):
            ahead(x, r0 + k)
            ahead(x, r1 + k)
            ahead(x, r2 + k)
            ahead(x, r3 + k)
        # On the diagonal, each pair once.
        a0 = a1 = a2 = a3 = b1 = b2 = b3 = c2 = c3 = d3 = splat(_F0)
        for k in range(first, first + whole, _LANES):
            u0, u1, u2, u3 = fetch(x, r0 + k), fetch(x, r1 + k), fetch(x, r2 + k), fetch(x, r3 + k)
            a0, a1, a2, a3 = plus(u0, u0, a0), plus(u0, u1, a1), plus(u0, u2, a2), plus(u0, u3, a3)
            b1, b2, b3 = plus(u1, u1, b1), plus(u1, u2, b2), plus(u1, u3, b3)
            c2, c3, d3 = plus(u2, u2, c2), plus(u2, u3, c3), plus(u3, u3, d3)
        p = i * row + i
        poke(g, p, total(a0))
        poke(g, p + 1, total(a1))
        poke(g, p + 2, total(a2))
        poke(g, p + 3, total(a3))
        p += row
        poke(g, p + 1, total(b1))
        poke(g, p + 2, total(b2))
        poke(g, p + 3, total(b3))
        p += row
        poke(g, p + 2, total(c2))
        poke(g, p + 3, total(c3))
        poke(g, p + row + 3, total(d3))
        for j in range(i + 4, words, 4):
            s0, s1 = at[j], at[min(j + 1, last)]
            s2, s3 = at[min(j + 2, last)], at[min(j + 3, last)]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = splat(_F0)
            c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = splat(_F0)
            for k in range(first, first + whole, _LANES):
                u0, u1, u2, u3 = fetch(x, s0 + k), fetch(x, s1 + k), fetch(x, s2 + k), fetch(x, s3 + k)
                v = fetch(x, r0 + k)
                a0, a1, a2, a3 = plus(v, u0, a0), plus(v, u1, a1), plus(v, u2, a2), plus(v, u3, a3)
                v = fetch(x, r1 + k)
                b0, b1, b2, b3 = plus(v, u0, b0), plus(v, u1, b1), plus(v, u2, b2), plus(v, u3, b3)
                v = fetch(x, r2 + k)
                c0, c1, c2, c3 = plus(v, u0, c0), plus(v, u1, c1), plus(v, u2, c2), plus(v, u3, c3)
                v = fetch(x, r3 + k)
                d0, d1, d2, d3 = plus(v, u0, d0), plus(v, u1, d1), plus(v, u2, d2), plus(v, u3, d3)
            p = i * row + j
            poke(g, p, total(a0))
            poke(g, p + 1, total(a1))
            poke(g, p + 2, total(a2))
            poke(g, p + 3, total(a3))
            p += row
            poke(g, p, total(b0))
            poke(g, p + 1, total(b1))
            poke(g, p + 2, total(b2))
            poke(g, p + 3, total(b3))
            p += row
            poke(g, p, total(c0))
            poke(g, p + 1, total(c1))
            poke(g, p + 2, total(c2))
            poke(g, p + 3, total(c3))
            p += row
            poke(g, p, total(d0))
            poke(g, p + 1, total(d1))
            poke(g, p + 2, total(d2))
            poke(g, p + 3, total(d3))
    upto = (words + 3) // 4 * 4
    for i in range(upto):
        if whole < width and i < words:
            for j in range(i, words):
                more = _F0
                for k in range(first + whole, first + width):
                    more += peek(x, at[i] + k) * peek(x, at[j] + k)
                poke(g, i * row + j, peek(g, i * row + j) + more)
        for j in range(i // 4 * 4, upto):
            if j < i or j > last:
                poke(g, i * row + j, _F0)
            elif i < j:
                poke(g, i * row + j, _F2 * peek(g, i * row + j))


@kernel(**INLINE)
def _four(x, q):  # type: ignore[no-untyped-def]
    """Return four vectors from place q on."""
    return fetch(x, q), fetch(x, q + _LANES), fetch(x, q + 2 * _LANES), fetch(x, q + 3 * _LANES)


@kernel(**INLINE)
def _times(u, v, sums):  # type: ignore[no-untyped-def]
    """Return four sums with the products of u and v added."""
    return (
        plus(u[0], v[0], sums[0]), plus(u[1], v[1], sums[1]),
        plus(u[2], v[2], sums[2]), plus(u[3], v[3], sums[3]),
    )  # fmt: skip


@kernel(**INLINE)
def _with(g, p, u, sums):  # type: ignore[no-untyped-def]
    """Return four sums with u, times the number at place p, added."""
    v = splat(peek(g, p))
    return _times((v, v, v, v), u, sums)


@kernel(**HELPER)
def _folded(x, at, first, words, width, g, row, behind):  # type: ignore[no-untyped-def]
    """Return Σ g_ij x_i·x_j over rows of x, which are as in `_gram`; g is by `_gram`."""
    t = (splat(_F0), splat(_F0), splat(_F0), splat(_F0))
    last = words - 1
    k = first
    end = first + width
    # Four vectors of sums for each row need 16 registers that hold a vector.
    while WHOLE and k + 4 * _LANES <= end:
        for i in range(0, words, 4):
            for j in range(i, min(i + 4, words)):
                q = at[j] + k + behind
                ahead(x, q)
                ahead(x, q + _LANES)
                ahead(x, q + 2 * _LANES)
                ahead(x, q + 3 * _LANES)
            second, third = at[min(i + 1, last)] + k, at[min(i + 2, last)] + k
            none = splat(_F0)
            # Above the diagonal, the first three words are taken with some of the four rows alone.
            p, u = i * row + i, _four(x, at[i] + k)
            a = _with(g, p, u, (none, none, none, none))
            u = _four(x, second)
            a, b = _with(g, p + 1, u, a), _with(g, p + 1 + row, u, (none, none, none, none))
            u = _four(x, third)
            a, b = _with(g, p + 2, u, a), _with(g, p + 2 + row, u, b)
            c, d = _with(g, p + 2 + 2 * row, u, (none, none, none, none)), (none, none, none, none)
            for j in range(i + 3, words):
                p, u = i * row + j, _four(x, at[j] + k)
                a, b = _with(g, p, u, a), _with(g, p + row, u, b)
                c, d = _with(g, p + 2 * row, u, c), _with(g, p + 3 * row, u, d)
            t = _times(a, _four(x, at[i] + k), t)
            t = _times(b, _four(x, second), t)
            t = _times(c, _four(x, third), t)
            t = _times(d, _four(x, at[min(i + 3, last)] + k), t)
        k += 4 * _LANES
    t0, t1, t2, t3 = t
    while k + _LANES <= end:
        for i in range(0, words, 4):
            for j in range(i, min(i + 4, words)):
                ahead(x, at[j] + k + behind)
            a0 = b0 = c0 = d0 = splat(_F0)
            for j in range(i, words):
                p = i * row + j
                u0 = fetch(x, at[j] + k)
                a0 = plus(splat(peek(g, p)), u0, a0)
                b0 = plus(splat(peek(g, p + row)), u0, b0)
                c0 = plus(splat(peek(g, p + 2 * row)), u0, c0)
                d0 = plus(splat(peek(g, p + 3 * row)), u0, d0)
            t0 = plus(a0, fetch(x, at[i] + k), t0)
            t1 = plus(b0, fetch(x, at[min(i + 1, last)] + k), t1)
            t2 = plus(c0, fetch(x, at[min(i + 2, last)] + k), t2)
            t3 = plus(d0, fetch(x, at[min(i + 3, last)] + k), t3)
        k += _LANES
    found = total(t0) + total(t1) + total(t2) + total(t3)
    while k < end:
        for i in range(words):
            own = _F0
            for j in range(i, words):
                own += peek(g, i * row + j) * peek(x, at[j] + k)
            found += own * peek(x, at[i] + k)
        k += 1
    return found


@kernel(**HELPER)
def _summed(x, at, first, words, width):  # type: ignore[no-untyped-def]
    """Return ‖Σ x_i‖² over rows of x, which begin as in `_gram`."""
    t = splat(_F0)
    k, end = first, first + width
    while k + _LANES <= end:
        s = splat(_F0)
        for i in range(words):
            s = plus(splat(_F1), fetch(x, at[i] + k), s)
        t = plus(s, s, t)
        k += _LANES
    found = total(t)
    while k < end:
        own = _F0
        for i in range(words):
            own += peek(x, at[i] + k)
        found += own * own
        k += 1
    return found


@kernel(**COMPILED)
def _spread(starts):  # type: ignore[no-untyped-def]
    """Return the length of the longest sentence up to a multiple of four."""
    longest = 1
    for s in range(len(starts) - 1):
        longest = max(longest, starts[s + 1] - starts[s])
    return (longest + 3) // 4 * 4


@kernel(**COMPILED)
def matrix(a, d, starts, weight, bias):  # type: ignore[no-untyped-def]
    """weight[c, s] = ‖Σ d aᵀ‖², bias[c, s] = ‖Σ d‖², of a [N, I] and part c of the columns of d [N, O]."""
    parts, inputs = len(weight), a.shape[1]
    width = d.shape[1] // parts
    row = _spread(starts)
    g = np.empty(row * row, dtype=np.float32)
    narrow_at, wide_at = np.empty(row, dtype=np.int64), np.empty(row, dtype=np.int64)
    # Parts share the Gram matrix of a.
    inner = inputs <= d.shape[1]
    narrow, wide = (a, d) if inner else (d, a)
    size, step = (inputs, width) if inner else (width, 0)
    length = width if inner else inputs
    for s in range(len(starts) - 1):
        words = starts[s + 1] - starts[s]
        for i in range(words):
            narrow_at[i] = (starts[s] + i) * narrow.shape[1]
            wide_at[i] = (starts[s] + i) * wide.shape[1]
        d_at = wide_at if inner else narrow_at
        # Row by row, the next sentence's are so many behind this one's, where there are as many.
        next_words = words if starts[s] + 2 * words <= len(a) else 0
        for c in range(parts):
            bias[c, s] = _summed(d, d_at, c * width, words, width)
            if words == 1:
                if c == 0:
                    alone = _summed(a, narrow_at if inner else wide_at, 0, 1, inputs)
                weight[c, s] = alone * bias[c, s]
                continue
            if c == 0 or not inner:
                first = 0 if inner else c * width
                _gram(narrow, narrow_at, first, words, size, g, row, next_words * narrow.shape[1])
            weight[c, s] = _folded(wide, wide_at, c * step, words, length, g, row, next_words * wide.shape[1])


@kernel(**COMPILED)
def heads(a, d, count, weight, bias):  # type: ignore[no-untyped-def]
    """weight[s] = Σ over heads ‖d_h a_hᵀ‖², bias[s] = ‖d‖², of rows s of a [S, count I] and d [S, O].

    There are `count` heads, and head h has part h of the columns of either.
    """
    inputs, width = a.shape[1] // count, d.shape[1] // count
    row = np.zeros(1, dtype=np.int64)
    for s in range(len(d)):
        for h in range(count):
            own = _summed(d, row, s * d.shape[1] + h * width, 1, width)
            bias[s] += own
            weight[s] += own * _summed(a, row, s * a.shape[1] + h * inputs, 1, inputs)


@kernel(**COMPILED)
def recurrence(z, d, rows, starts, inputs, norms):  # type: ignore[no-untyped-def]
    """norms[:, s] = ‖Σ d xᵀ‖², ‖Σ d hᵀ‖², ‖Σ d‖², of rows [x; h] of z and d [R, 4H].

    `rows` [N] are those of the words, negative for words that are not read; x is `inputs` wide.
    """
    whole, width = z.shape[1], d.shape[1]
    row = _spread(starts)
    g = np.empty(row * row, dtype=np.float32)
    z_at, d_at = np.empty(row, dtype=np.int64), np.empty(row, dtype=np.int64)
    for s in range(len(starts) - 1):
        words, furthest = 0, -1
        for n in range(starts[s], starts[s + 1]):
            if rows[n] >= 0:
                z_at[words], d_at[words] = rows[n] * whole, rows[n] * width
                furthest = max(furthest, rows[n])
                words += 1
        if words > 0:
            # The words of the next sentence have the next rows, mostly.
            more = 1 if furthest + 1 < len(d) else 0
            _gram(d, d_at, 0, words, width, g, row, more * width)
            for part in range(2):
                first, size = (0, inputs) if part == 0 else (inputs, whole - inputs)
                norms[part, s] = _folded(z, z_at, first, words, size, g, row, more * whole)
            norms[2, s] = _summed(d, d_at, 0, words, width)


@kernel(**COMPILED)
def scale(d_y, x, stats, starts, weight, bias):  # type: ignore[no-untyped-def]
    """weight[s] = ‖Σ z ⊙ d_y‖², bias[s] = ‖Σ d_y‖², of a LayerNorm with inputs x, z being x normalised."""
    width = d_y.shape[1]
    one, two = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for sentence in range(len(starts) - 1):
        one[:] = _F0
        two[:] = _F0
        for i in range(starts[sentence], starts[sentence + 1]):
            mean, turn = stats[i, 0], stats[i, 1]
            for k in range(width):
                one[k] += (x[i, k] - mean) * turn * d_y[i, k]
                two[k] += d_y[i, k]
        weight[sentence], bias[sentence] = _dot(one, one), _dot(two, two)


@kernel(**COMPILED)
def norm(x, weight, stats, d_y, d, starts, of_weight, of_bias):  # type: ignore[no-untyped-def]
    """Add the gradient of x to d, given d_y [N, D], that of LN(x); take the norms that `scale` takes."""
    width = d.shape[1]
    one, two = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for sentence in range(len(starts) - 1):
        one[:] = _F0
        two[:] = _F0
        for n in range(starts[sentence], starts[sentence + 1]):
            norm_row(n, x, weight, stats, d_y, d, one, two)
        of_weight[sentence], of_bias[sentence] = _dot(one, one), _dot(two, two)


@kernel(**COMPILED)
def junction(post, d, d_y, weight, s, stats, d_o, starts, of_weight, of_bias):  # type: ignore[no-untyped-def]
    """Do what `raysweep.models.fused.kernels.junction_backward` does; take the norms that `scale` takes.

    There is no dropout.
    """
    width = d.shape[1]
    one, two = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    keep, unused = np.ones(width, dtype=np.float32), np.zeros(width, dtype=np.float32)
    for sentence in range(len(starts) - 1):
        one[:] = _F0
        two[:] = _F0
        for n in range(starts[sentence], starts[sentence + 1]):
            junction_row(n, post, d, d_y, keep, weight, s, stats, d_o, unused, one, two)
        of_weight[sentence], of_bias[sentence] = _dot(one, one), _dot(two, two)


@kernel(**COMPILED)
def tables(ids, d, starts, t, v, asking, tokens, positions):  # type: ignore[no-untyped-def]
    """Add squared norms of both embeddings to `tokens` and `positions` [S], beside the tied decoder's own.

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
