"""The kernels between the matrix products of an LSTM: one pass a step of time, forward and backward.

A direction reads the words of a chunk in steps: in step t the t-th word, in its order, of every sentence that
has one.  Row r of its arrays is one word: all words of the first step come first, then all of the second, and
sentences are in the same order in every step, those with the most steps first.  So the sentences that go on
have the first rows of a step.

A row of `z` is [x; h], D and H wide: a layer's input at the word, and the direction's hidden state at the
word before.  Low arrays and masks of dropout are as in `raysweep.models.fused.kernels`.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED, INLINE, exponential, load, save
from raysweep.compiled.simd import peek, poke
from raysweep.models.fused.kernels import masks

_F0, _F1, _F2 = np.float32(0.0), np.float32(1.0), np.float32(2.0)


@kernel(**INLINE)
def sigmoid(x):  # type: ignore[no-untyped-def]
    """Return 1 / (1 + e^-x) of a float32, within 4e-7 of itself, and 0 for any x below -50."""
    e = exponential(-abs(x))
    share = _F1 / (_F1 + e)
    return share if x >= _F0 else e * share


@kernel(**INLINE)
def tanh(x):  # type: ignore[no-untyped-def]
    """Return tanh x of a float32, within 2e-7."""
    e = exponential(-_F2 * abs(x))
    size = (_F1 - e) / (_F1 + e)
    return size if x >= _F0 else -size


@kernel(**COMPILED)
def enter(ids, place, tokens, key, cut, left_row, right_row, left, right):  # type: ignore[no-untyped-def]
    """Write dropout(tokens[ids]) to where either direction reads it: a row of its z, or none if negative."""
    D = tokens.shape[1]
    row = np.empty(D, dtype=np.float32)
    words = np.empty((D + 3) // 4, dtype=np.uint64)
    keep = np.ones(D, dtype=np.float32)
    for n in range(len(ids)):
        if cut > 0:
            masks(key, place[n], cut, words, keep)
        first = ids[n] * D
        for j in range(D):
            poke(row, j, peek(tokens, first + j) * peek(keep, j))
        _give(row, left, left_row[n], 0)
        _give(row, right, right_row[n], 0)


@kernel(**COMPILED)
def enter_backward(ids, place, key, cut, left_row, right_row, left, right, d_tokens):  # type: ignore[no-untyped-def]
    """Add to the gradient of the tokens, given those of both directions' z."""
    D = d_tokens.shape[1]
    row = np.empty(D, dtype=np.float32)
    words = np.empty((D + 3) // 4, dtype=np.uint64)
    keep = np.ones(D, dtype=np.float32)
    for n in range(len(ids)):
        if cut > 0:
            masks(key, place[n], cut, words, keep)
        row[:] = _F0
        _take(row, left, left_row[n], 0)
        _take(row, right, right_row[n], 0)
        first = ids[n] * D
        for j in range(D):
            poke(d_tokens, first + j, peek(d_tokens, first + j) + peek(row, j) * peek(keep, j))


@kernel(**INLINE)
def _give(row, matrix, at, column):  # type: ignore[no-untyped-def]
    """Store `row` in row `at` of a low matrix, from a column on."""
    if at >= 0:
        for j in range(len(row)):
            save(matrix, at, column + j, peek(row, j))


@kernel(**INLINE)
def _take(row, matrix, at, column):  # type: ignore[no-untyped-def]
    """Add the entries at which `_give` stores to `row`."""
    if at >= 0:
        for j in range(len(row)):
            poke(row, j, peek(row, j) + load(matrix, at, column + j))


@kernel(**COMPILED)
def advance(  # type: ignore[no-untyped-def]
    pre, bias, first, before, after, following, gates, cells, z, word, place, key, cut,
    left_row, right_row, left, right, column,
):  # fmt: skip
    """Do one step of a direction.

        i, f, o = sigmoid, g = tanh of `pre` [n, 4H] + bias, in the order i, f, g, o
        c = f c' + i g,    h = o tanh c

    Its rows begin at `first`, those of the step before at `before` (negative for none), and of the next
    one, which has `following` rows, at `after`.  Gates go to `gates` [R, 4H], c to `cells` float32 [R, H], h
    to the next step's z, and dropout(h) to the columns from `column` on of the row `left_row[word]` of `left`
    and `right_row[word]` of `right`, where these are not negative; `word` [R] says which of the chunk's.
    """
    n, H = pre.shape[0], cells.shape[1]
    D = z.shape[1] - H
    act = np.empty(4 * H, dtype=np.float32)
    past = np.zeros(H, dtype=np.float32)
    out = np.empty(H, dtype=np.float32)
    words = np.empty((H + 3) // 4, dtype=np.uint64)
    keep = np.ones(H, dtype=np.float32)
    for s in range(n):
        r = first + s
        for j in range(2 * H):
            poke(act, j, sigmoid(load(pre, s, j) + peek(bias, j)))
        for j in range(2 * H, 3 * H):
            poke(act, j, tanh(load(pre, s, j) + peek(bias, j)))
        for j in range(3 * H, 4 * H):
            poke(act, j, sigmoid(load(pre, s, j) + peek(bias, j)))
        for j in range(4 * H):
            save(gates, r, j, peek(act, j))
        if before >= 0:
            for j in range(H):
                poke(past, j, peek(cells, (before + s) * H + j))
        for j in range(H):
            c = peek(act, H + j) * peek(past, j) + peek(act, j) * peek(act, 2 * H + j)
            poke(cells, r * H + j, c)
        for j in range(H):
            poke(out, j, peek(act, 3 * H + j) * tanh(peek(cells, r * H + j)))
        if s < following:
            for j in range(H):
                save(z, after + s, D + j, peek(out, j))
        w = word[r]
        if cut > 0:
            masks(key, place[w], cut, words, keep)
            for j in range(H):
                poke(out, j, peek(out, j) * peek(keep, j))
        _give(out, left, left_row[w], column)
        _give(out, right, right_row[w], column)


@kernel(**COMPILED)
def retreat(  # type: ignore[no-untyped-def]
    n, first, before, after, following, gates, cells, d_z, d_cells, word, place, key, cut,
    left_row, right_row, left, right, column, d_bias,
):  # fmt: skip
    """Turn the gates of a step's n rows into the gradients of `pre`, later steps being done.

    `left` and `right` hold the gradients of what `advance` wrote there, `d_z` [R, D + H] those of z in the
    next step, and `d_cells` float32 [n, H] those of the cells: on entry by way of the next step, on return
    by way of this one, of the step before.
    """
    H = cells.shape[1]
    D = d_z.shape[1] - H
    d = np.empty(4 * H, dtype=np.float32)
    act = np.empty(4 * H, dtype=np.float32)
    past = np.zeros(H, dtype=np.float32)
    squashed = np.empty(H, dtype=np.float32)
    d_out = np.empty(H, dtype=np.float32)
    d_cell = np.empty(H, dtype=np.float32)
    words = np.empty((H + 3) // 4, dtype=np.uint64)
    keep = np.ones(H, dtype=np.float32)
    for s in range(n):
        r = first + s
        w = word[r]
        d_out[:] = _F0
        _take(d_out, left, left_row[w], column)
        _take(d_out, right, right_row[w], column)
        if cut > 0:
            masks(key, place[w], cut, words, keep)
            for j in range(H):
                poke(d_out, j, peek(d_out, j) * peek(keep, j))
        if s < following:
            for j in range(H):
                poke(d_out, j, peek(d_out, j) + load(d_z, after + s, D + j))
        for j in range(4 * H):
            poke(act, j, load(gates, r, j))
        if before >= 0:
            for j in range(H):
                poke(past, j, peek(cells, (before + s) * H + j))
        for j in range(H):
            poke(squashed, j, tanh(peek(cells, r * H + j)))
        for j in range(H):
            o, t = peek(act, 3 * H + j), peek(squashed, j)
            poke(d, 3 * H + j, peek(d_out, j) * t * o * (_F1 - o))
        for j in range(H):
            o, t = peek(act, 3 * H + j), peek(squashed, j)
            poke(d_cell, j, peek(d_cells, s * H + j) + peek(d_out, j) * o * (_F1 - t * t))
        for j in range(H):
            i, g = peek(act, j), peek(act, 2 * H + j)
            poke(d, j, peek(d_cell, j) * g * i * (_F1 - i))
        for j in range(H):
            i, g = peek(act, j), peek(act, 2 * H + j)
            poke(d, 2 * H + j, peek(d_cell, j) * i * (_F1 - g * g))
        for j in range(H):
            f = peek(act, H + j)
            poke(d, H + j, peek(d_cell, j) * peek(past, j) * f * (_F1 - f))
        for j in range(H):
            poke(d_cells, s * H + j, peek(d_cell, j) * peek(act, H + j))
        for j in range(4 * H):
            x = peek(d, j)
            poke(d_bias, j, peek(d_bias, j) + x)
            save(gates, r, j, x)
