"""Attention within the sentences of a chunk, forward and backward, a sentence and a head at a time.

Queries, keys and values are columns of low-precision matrices without their biases, which are added here.
Sentence s has keys and values in rows `starts[s]` .. `starts[s + 1]` of `keys` and queries in rows
`asking[s]` .. `asking[s + 1]` of `queries`; `place` numbers the queries' words in the batch, for dropout.
What belongs to a sentence is copied into small matrices that stay in the first-level cache, with room up to
whole vectors; no result depends on what stands in that room.
Weights have a row for each key and a column for each query, so that the softmax is made of whole vectors.

`gather` takes a masked word at a time with all of its heads, which mix the words themselves in place of
values (raysweep.models.fused.sublayer).  Weights then have a column for each head.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED, HELPER, INLINE, draw, exponential, load, save
from raysweep.compiled.simd import fetch, inverse, larger, peek, plus, poke, put, splat, times, total, turn
from raysweep.compiled.tiles import tile
from raysweep.models.dropout import LEVELS
from raysweep.models.fused.rows import ask_for

_F0, _F1 = np.float32(0.0), np.float32(1.0)

#: Numbers in a vector.
LANES = 16

#: Blocks of a product, of so many rows, and of one that is added.
_eight, _four, _one = (tile(rows, 1, scalar=True) for rows in (8, 4, 1))
_add_four, _add_one = (tile(rows, 1, scalar=True, add=True) for rows in (4, 1))


@kernel(**INLINE)
def _wide(n):  # type: ignore[no-untyped-def]
    """Return n rounded up to whole vectors."""
    return (n + LANES - 1) // LANES * LANES


@kernel(**HELPER)
def _product(a, row, column, b, b_row, c, c_row, rows, inner, columns):  # type: ignore[no-untyped-def]
    """c = a b, all in flat arrays: a's entry (i, k) is at i·row + k·column, b's at k·b_row + j, c's alike.

    Rows of a and c are computed up to the next multiple of eight at most, columns up to whole vectors: both
    must be there.
    """
    for j in range(0, columns, LANES):
        i = 0
        while i + 4 < rows:
            _eight(c, i * c_row + j, c_row, LANES, a, i * row, column, row, b, j, b_row, LANES, inner)
            i += 8
        if i + 1 < rows:
            _four(c, i * c_row + j, c_row, LANES, a, i * row, column, row, b, j, b_row, LANES, inner)
        elif i < rows:
            _one(c, i * c_row + j, c_row, LANES, a, i * row, column, row, b, j, b_row, LANES, inner)


@kernel(**HELPER)
def _add_product(a, row, b, b_row, c, c_row, rows, inner, columns):  # type: ignore[no-untyped-def]
    """c += a b, as in `_product`, with columns of a beside each other; rows up to a multiple of four."""
    for j in range(0, columns, LANES):
        i = 0
        while i + 1 < rows:
            _add_four(c, i * c_row + j, c_row, LANES, a, i * row, 1, row, b, j, b_row, LANES, inner)
            i += 4
        if i < rows:
            _add_one(c, i * c_row + j, c_row, LANES, a, i * row, 1, row, b, j, b_row, LANES, inner)


@kernel(**HELPER)
def _scores(y, y_row, x, x_row, words, rows, columns, out, row):  # type: ignore[no-untyped-def]
    """out = y xᵀ [words, rows], all flat, of few rows; words are computed up to the next multiple of four."""
    for i in range(rows):
        for j in range(0, words, 4):
            a, b, c, d = splat(_F0), splat(_F0), splat(_F0), splat(_F0)
            for k in range(0, columns, LANES):
                one, p = fetch(x, i * x_row + k), j * y_row + k
                a, b = plus(one, fetch(y, p), a), plus(one, fetch(y, p + y_row), b)
                p += 2 * y_row
                c, d = plus(one, fetch(y, p), c), plus(one, fetch(y, p + y_row), d)
            p = j * row + i
            poke(out, p, total(a))
            poke(out, p + row, total(b))
            poke(out, p + 2 * row, total(c))
            poke(out, p + 3 * row, total(d))


@kernel(**HELPER)
def _take(matrix, shift, first, column, count, width, out, row):  # type: ignore[no-untyped-def]
    """Write rows of the columns from `column` on, biases added, into a flat array of rows `row` apart."""
    columns, whole = matrix.shape[1], width // LANES * LANES
    for c in range(0, whole, LANES):
        more, p = fetch(shift, column + c), first * columns + column + c
        for i in range(count):
            put(out, i * row + c, plus(splat(_F1), fetch(matrix, p + i * columns), more))
    if whole < width:
        for i in range(count):
            for c in range(whole, width):
                poke(out, i * row + c, load(matrix, first + i, column + c) + peek(shift, column + c))


@kernel(**HELPER)
def _hand(x, row, count, width, matrix, first, column):  # type: ignore[no-untyped-def]
    """Write a flat array's rows, `row` apart, to the places of `_take`."""
    columns, whole = matrix.shape[1], width // LANES * LANES
    for c in range(0, whole, LANES):
        p = first * columns + column + c
        for i in range(count):
            put(matrix, p + i * columns, fetch(x, i * row + c))
    if whole < width:
        for i in range(count):
            for c in range(whole, width):
                save(matrix, first + i, column + c, peek(x, i * row + c))


@kernel(**HELPER)
def _add_up(x, row, count, width, shift, column):  # type: ignore[no-untyped-def]
    """Add the sum of a flat array's rows, `row` apart, to the biases."""
    for c in range(0, width, LANES):
        sums = splat(_F0)
        for i in range(count):
            sums = plus(splat(_F1), fetch(x, i * row + c), sums)
        if c + LANES <= width:
            put(shift, column + c, plus(splat(_F1), fetch(shift, column + c), sums))
        else:
            for j in range(c, width):
                own = _F0
                for i in range(count):
                    own += peek(x, i * row + j)
                poke(shift, column + j, peek(shift, column + j) + own)


@kernel(**INLINE)
def _turn(x, x_row, rows, columns, out, row):  # type: ignore[no-untyped-def]
    """out = the transpose of x, in whole vectors."""
    for i in range(0, rows, LANES):
        for c in range(0, columns, LANES):
            turn(x, i * x_row + c, x_row, out, c * row + i, row)


@kernel(**INLINE)
def _softmax(x, keys, queries, row, scale):  # type: ignore[no-untyped-def]
    """Replace the columns of x [keys, queries] by the softmax of `scale` times them.

    x is flat, and its rows are `row` apart: as few whole vectors as hold the queries.
    """
    for i in range(0, queries, LANES):
        top = fetch(x, i)
        for j in range(1, keys):
            top = larger(fetch(x, j * row + i), top)
        top = times(splat(-_F1), top)
        for j in range(keys):
            # The difference first: what goes into the exponential is never above zero.
            apart = plus(splat(_F1), fetch(x, j * row + i), top)
            put(x, j * row + i, times(splat(scale), apart))
    for m in range(keys * row):
        poke(x, m, exponential(peek(x, m)))
    for i in range(0, queries, LANES):
        share = fetch(x, i)
        for j in range(1, keys):
            share = plus(splat(_F1), fetch(x, j * row + i), share)
        share = inverse(share)
        for j in range(keys):
            put(x, j * row + i, times(share, fetch(x, j * row + i)))


@kernel(**INLINE)
def _softmax_backward(weights, kept, keys, queries, row, scale, slopes):  # type: ignore[no-untyped-def]
    """Turn slopes, the gradient of `kept`, into that of what entered `_softmax`.

    With weights p, factors m of dropout and kept = m p, (slope m) p is slope times kept.
    """
    for i in range(0, queries, LANES):
        sums = splat(_F0)
        for j in range(i, i + keys * row, row):
            x = times(fetch(slopes, j), fetch(kept, j))
            put(slopes, j, x)
            sums = plus(splat(_F1), x, sums)
        sums = times(splat(-scale), sums)
        for j in range(i, i + keys * row, row):
            x = times(sums, fetch(weights, j))
            put(slopes, j, plus(splat(scale), fetch(slopes, j), x))


@kernel(**INLINE)
def _drop(  # type: ignore[no-untyped-def]
    key, places, heads, head, stride, cut, words, x, keys, queries, row, factors, out
):
    """out = x [keys, queries] of `_softmax` with the factors of dropout of a head's queries."""
    scale = np.float32(LEVELS / (LEVELS - cut))
    levels, width = words.view(np.uint16), _wide(keys)
    for i in range(queries):
        draw(key, (places[i] * heads + head) * stride, words[: (keys + 3) // 4])
        for j in range(keys):
            poke(factors, i * width + j, scale if levels[j] >= cut else _F0)
    _turn(factors, width, queries, keys, out, row)
    for i in range(0, queries, LANES):
        for j in range(keys):
            put(out, j * row + i, times(fetch(x, j * row + i), fetch(out, j * row + i)))


@kernel(**INLINE)
def _space(rows, columns):  # type: ignore[no-untyped-def]
    """Return a flat array of zeros for a matrix with rows and columns filled up."""
    return np.zeros((rows + LANES) * _wide(columns), dtype=np.float32)


@kernel(**COMPILED)
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
    W = _wide(width)
    q, k, v = _space(longest, width), _space(longest, width), _space(longest, width)
    turned, mixed = _space(width, longest), _space(longest, width)
    weights = _space(longest, longest)
    kept, factors = (_space(longest, longest), _space(longest, longest)) if cut > 0 else (weights, weights)
    words = np.empty((longest + 3) // 4, dtype=np.uint64)
    for s in range(len(starts) - 1):
        first, T = starts[s], starts[s + 1] - starts[s]
        asked, Q = asking[s], asking[s + 1] - asking[s]
        L = _wide(Q)
        if s + 2 < len(starts):
            ask_for(keys, starts[s + 1], starts[s + 2])
        for h in range(heads):
            column = h * width
            _take(queries, q_shift, asked, column, Q, width, q, W)
            _take(keys, k_shift, first, k_column + column, T, width, k, W)
            _take(keys, k_shift, first, k_column + D + column, T, width, v, W)
            _turn(q, W, Q, width, turned, L)
            _product(k, W, 1, turned, L, weights, L, T, width, Q)
            _softmax(weights, T, Q, L, scale)
            if cut > 0:
                _drop(key, place[asked:], heads, h, stride, cut, words, weights, T, Q, L, factors, kept)
            _product(kept, 1, L, v, W, mixed, W, Q, T, width)
            _hand(mixed, W, Q, width, out, asked, column)


@kernel(**COMPILED)
def attend_backward(  # type: ignore[no-untyped-def]
    queries, q_shift, keys, k_shift, k_column, starts, asking, longest, heads, place, key, cut, stride,
    d_out, nothing, d_queries, d_keys, d_q_shift, d_k_shift,
):  # fmt: skip
    """Write the gradients of queries and of keys and values, given that of `attend`'s `out`.

    They stand where the values themselves stand in `queries` and `keys`; `nothing` [D] are zeros.
    """
    D = d_out.shape[1]
    width = D // heads
    scale = np.float32(1.0 / np.sqrt(width))
    W = _wide(width)
    q, k, v = _space(longest, width), _space(longest, width), _space(longest, width)
    e, made = _space(longest, width), _space(longest, width)
    turned = _space(width, longest)
    weights, slopes = _space(longest, longest), _space(longest, longest)
    kept, factors = (_space(longest, longest), _space(longest, longest)) if cut > 0 else (weights, weights)
    words = np.empty((longest + 3) // 4, dtype=np.uint64)
    for s in range(len(starts) - 1):
        first, T = starts[s], starts[s + 1] - starts[s]
        asked, Q = asking[s], asking[s + 1] - asking[s]
        L = _wide(Q)
        if s + 2 < len(starts):
            ask_for(keys, starts[s + 1], starts[s + 2])
            ask_for(d_out, asking[s + 1], asking[s + 2])
        for h in range(heads):
            column = h * width
            _take(queries, q_shift, asked, column, Q, width, q, W)
            _take(d_out, nothing, asked, column, Q, width, e, W)
            _take(keys, k_shift, first, k_column + column, T, width, k, W)
            _take(keys, k_shift, first, k_column + D + column, T, width, v, W)
            _turn(q, W, Q, width, turned, L)
            _product(k, W, 1, turned, L, weights, L, T, width, Q)
            _turn(e, W, Q, width, turned, L)
            _product(v, W, 1, turned, L, slopes, L, T, width, Q)
            _softmax(weights, T, Q, L, scale)
            if cut > 0:
                _drop(key, place[asked:], heads, h, stride, cut, words, weights, T, Q, L, factors, kept)
            _softmax_backward(weights, kept, T, Q, L, scale, slopes)
            _product(slopes, 1, L, k, W, made, W, Q, T, width)
            _hand(made, W, Q, width, d_queries, asked, column)
            _add_up(made, W, Q, width, d_q_shift, column)
            _product(slopes, L, 1, q, W, made, W, T, Q, width)
            _hand(made, W, T, width, d_keys, first, k_column + column)
            _add_up(made, W, T, width, d_k_shift, k_column + column)
            _product(kept, L, 1, e, W, made, W, T, Q, width)
            _hand(made, W, T, width, d_keys, first, k_column + D + column)
            _add_up(made, W, T, width, d_k_shift, k_column + D + column)


@kernel(**COMPILED)
def gather(reach, nothing, y, starts, asking, longest, heads, place, key, cut, stride, mix, sums):  # type: ignore[no-untyped-def]
    """Write the mixtures of words y [N, D] by the softmax of their products with `reach`, to `mix`, low.

    Both are [M heads, D], a row for each head of a masked word; `sums` [M, heads] become the sums of its
    weights after dropout, and `nothing` [D] are zeros.
    """
    D = y.shape[1]
    scale = np.float32(1.0 / np.sqrt(D // heads))
    W, L = _wide(D), _wide(heads)
    words, asked, mixed = _space(longest, D), _space(heads, D), _space(heads, D)
    weights = _space(longest, heads)
    kept, factors = (_space(longest, heads), _space(heads, longest)) if cut > 0 else (weights, weights)
    draws, numbers = np.empty((longest + 3) // 4, dtype=np.uint64), np.empty(heads, dtype=np.int64)
    for s in range(len(starts) - 1):
        T = starts[s + 1] - starts[s]
        _take(y, nothing, starts[s], 0, T, D, words, W)
        for m in range(asking[s], asking[s + 1]):
            _take(reach, nothing, m * heads, 0, heads, D, asked, W)
            _scores(words, W, asked, W, T, heads, D, weights, L)
            _softmax(weights, T, heads, L, scale)
            if cut > 0:
                for h in range(heads):
                    numbers[h] = place[m] * heads + h
                _drop(key, numbers, 1, 0, stride, cut, draws, weights, T, heads, L, factors, kept)
            for h in range(heads):
                share = _F0
                for j in range(T):
                    share += peek(kept, j * L + h)
                sums[m, h] = share
            _product(kept, 1, L, words, W, mixed, W, heads, T, D)
            _hand(mixed, W, heads, D, mix, m * heads, 0)


@kernel(**COMPILED)
def gather_backward(  # type: ignore[no-untyped-def]
    reach, nothing, y, starts, asking, longest, heads, place, key, cut, stride, d_mix, d_sums, d_reach, d_y
):
    """Write the gradients of `reach` and y, given those of `gather`'s `mix` and `sums`."""
    D = y.shape[1]
    scale = np.float32(1.0 / np.sqrt(D // heads))
    W, L = _wide(D), _wide(heads)
    words, d_words = _space(longest, D), _space(longest, D)
    asked, given, made = _space(heads, D), _space(heads, D), _space(heads, D)
    weights, slopes = _space(longest, heads), _space(longest, heads)
    kept, factors = (_space(longest, heads), _space(heads, longest)) if cut > 0 else (weights, weights)
    draws, numbers = np.empty((longest + 3) // 4, dtype=np.uint64), np.empty(heads, dtype=np.int64)
    for s in range(len(starts) - 1):
        T = starts[s + 1] - starts[s]
        _take(y, nothing, starts[s], 0, T, D, words, W)
        d_words[: T * W] = _F0
        for m in range(asking[s], asking[s + 1]):
            _take(reach, nothing, m * heads, 0, heads, D, asked, W)
            _take(d_mix, nothing, m * heads, 0, heads, D, given, W)
            _scores(words, W, asked, W, T, heads, D, weights, L)
            _softmax(weights, T, heads, L, scale)
            _scores(words, W, given, W, T, heads, D, slopes, L)
            if cut > 0:
                for h in range(heads):
                    numbers[h] = place[m] * heads + h
                _drop(key, numbers, 1, 0, stride, cut, draws, weights, T, heads, L, factors, kept)
                # Without dropout sums are one, whatever the weights.
                for j in range(T):
                    for h in range(heads):
                        poke(slopes, j * L + h, peek(slopes, j * L + h) + d_sums[m, h])
            _softmax_backward(weights, kept, T, heads, L, scale, slopes)
            _product(slopes, 1, L, words, W, made, W, heads, T, D)
            _hand(made, W, heads, D, d_reach, m * heads, 0)
            _add_product(slopes, L, asked, W, d_words, W, T, heads, D)
            _add_product(kept, L, given, W, d_words, W, T, heads, D)
        _hand(d_words, W, T, D, d_y, starts[s], 0)
