"""The passes of an encoder's chunk, forward and backward, among its compiled ones (`.whole`).

`t` are `Tables`, and `w` are `Words`.  What the backward pass takes of the forward one lies on a shelf: an
array int64 [`EACH` layers + `PLACES`, 3] of the addresses and lengths of matrices.
"""

from __future__ import annotations

import numpy as np
from numba import types

from raysweep.compiled import kernel
from raysweep.compiled.addresses import Low, freed, read, write
from raysweep.models.fused import tables
from raysweep.models.fused.asking import ask, ask_backward
from raysweep.models.fused.calls import (
    add,
    attend,
    attend_backward,
    embed,
    gelu,
    norm,
    scale_norms,
    transform,
    transform_backward,
)
from raysweep.models.fused.parts import (
    F0,
    INNER,
    STATISTICS,
    UNIT,
    apply,
    array_of,
    back,
    before_attention,
    behind_attention,
    filled,
    give_back,
    learn,
    let_go,
    low,
    low_rows_of,
    low_summed,
    new,
    norms_of,
    rows_of,
    summed,
    through,
    through_norm,
)
from raysweep.models.fused.tables import (
    DENSE,
    DENSE_BIAS,
    EACH_MATRICES,
    EACH_VECTORS,
    EMBEDDING,
    ENTERING,
    HEAD,
    INPUTS,
    MATRICES,
    OF_EMBEDDING,
    OF_ENTERING,
    OF_HEAD,
    OUTPUTS,
    POSITIONS,
    PROJECTION,
    PROJECTION_BIAS,
    TOKENS,
    VECTORS,
    WORDS,
)

_VECTOR, _NUMBERS = types.int64[::1], types.float32[::1]
_COUNT, _FLAG = types.int64, types.boolean
#: The types of a shelf, of `Tables` and of `Words`.
SHELF_TYPE = types.int64[:, ::1]
TABLES_TYPE = types.NamedTuple(
    [types.Tuple([_VECTOR, Low(1)]), SHELF_TYPE, SHELF_TYPE, _NUMBERS, *[_COUNT] * 5, _FLAG], tables.Tables
)
WORDS_TYPE = types.NamedTuple(
    [
        *[_VECTOR] * 10, _COUNT, _FLAG, types.uint64[::1], _COUNT, _COUNT,
        _FLAG, _FLAG, types.float64[:, :, ::1],
    ],
    tables.Words,
)  # fmt: skip

#: Places on a shelf of what a layer keeps: the words that entered, queries, keys and values of all words side
#: by side, which the last layer has not, and what `behind_attention` returns.
ENTERED, OWN, MORE = np.arange(3)
EACH = np.int64(10)

#: Places behind those of the layers: what `ask` keeps, the words that entered the encoder, LayerNorms'
#: statistics there, and what the head keeps.
ASKING, EMBEDDED, EMBEDDING_STATS, ENTERING_STATS, HIDDEN, Z, ENTERS_DECODER, HEAD_STATS, PLACES = np.array(
    [0, 7, 8, 9, 10, 11, 12, 13, 14]
)


@kernel(**INNER)
def put(shelf, i, x):  # type: ignore[no-untyped-def]
    """Put a matrix on a shelf, where the backward pass takes it up."""
    shelf[i, 0], shelf[i, 1], shelf[i, 2] = x


@kernel(**INNER)
def on(shelf, i):  # type: ignore[no-untyped-def]
    """Return a matrix that is on the shelf."""
    return shelf[i, 0], shelf[i, 1], shelf[i, 2]


@kernel(**INNER)
def _more(shelf, k):  # type: ignore[no-untyped-def]
    """Return what `behind_attention` returned for layer k."""
    i = EACH * k + MORE
    return (
        on(shelf, i), on(shelf, i + 1), on(shelf, i + 2), on(shelf, i + 3),
        on(shelf, i + 4), on(shelf, i + 5), on(shelf, i + 6), on(shelf, i + 7),
    )  # fmt: skip


@kernel(**INNER)
def forward(t, w, shelf, reading):  # type: ignore[no-untyped-def]
    """Return the encoder's output [M, D] at masked words.

    What the backward pass takes is put on the shelf, int64 [EACH layers + PLACES, 3]; with `reading` nothing.
    """
    v, V, D = t.vectors, t.matrices[TOKENS, OUTPUTS], t.matrices[TOKENS, INPUTS]
    # Entering words, words of the chunk, and the last layer.
    n, N, last = np.int64(len(w.ids)), np.int64(len(w.place)), t.layers - 1
    few, base = len(w.which) > 0, EACH * t.layers
    place, starts = array_of(w.place), array_of(w.starts)
    embedded, embedding_stats, y, entering_stats = (
        new(n, D), new(n, STATISTICS), low(t, n, D), new(n, STATISTICS)
    )  # fmt: skip
    embed(
        t.calls,
        (
            array_of(w.ids), array_of(w.at), place, (v[WORDS, 0], V, D), (v[POSITIONS, 0], t.places, D),
            (v[EMBEDDING, 0], D), (v[EMBEDDING + 1, 0], D), t.eps[OF_EMBEDDING],
            w.sites[0], w.cut, embedding_stats, embedded, y,
        ),
    )  # fmt: skip
    if not t.post:
        weight, bias = (v[ENTERING, 0], D), (v[ENTERING + 1, 0], D)
        norm(t.calls, (embedded, weight, bias, t.eps[OF_ENTERING], entering_stats, y))
    r, mine = embedded, False
    for k in range(last):
        entered, own = y, apply(t, MATRICES + k * EACH_MATRICES + PROJECTION, y)
        if k == 0 and few:
            each = low_rows_of(t, own, w.which)
            freed(own[0])
            own, r, mine = each, rows_of(t, r, w.which), True
        shift, mixed = (v[VECTORS + k * EACH_VECTORS + PROJECTION_BIAS, 0], 3 * D), low(t, N, D)
        attend(
            t.calls,
            (
                own, shift, own, shift, D, starts, starts, w.longest, t.heads, place,
                w.sites[3 * k + 1], w.cut, w.stride, mixed,
            ),
        )  # fmt: skip
        r, y, more = behind_attention(t, w, r, mixed, place, k, mine)
        mine = t.post or reading
        if reading:
            freed(entered[0])
            freed(own[0])
            give_back(t, more)
        else:
            put(shelf, EACH * k + ENTERED, entered)
            put(shelf, EACH * k + OWN, own)
            for j in range(len(more)):
                put(shelf, EACH * k + MORE + j, more[j])

    # The last layer: masked words ask.
    before = r
    r = rows_of(t, r, w.rows)
    if mine:
        freed(before[0])
    if few and last == 0:
        before = y
        y = low_rows_of(t, y, w.which)
        freed(before[0])
    mixed, asking = ask(t, w, y)
    r, hidden, more = behind_attention(t, w, r, mixed, array_of(w.asked), last, True)
    if t.post or reading:
        freed(r[0])
    if reading:
        give_back(t, more)
        for x in (embedded, embedding_stats, entering_stats, y, *asking):
            freed(x[0])
        return hidden
    put(shelf, EACH * last + ENTERED, y)
    for j in range(len(more)):
        put(shelf, EACH * last + MORE + j, more[j])
    for j in range(len(asking)):
        put(shelf, base + ASKING + j, asking[j])
    put(shelf, base + EMBEDDED, embedded)
    put(shelf, base + EMBEDDING_STATS, embedding_stats)
    put(shelf, base + ENTERING_STATS, entering_stats)
    return hidden


@kernel(**INNER)
def head(t, shelf, hidden):  # type: ignore[no-untyped-def]
    """Return the logits [M, V] at masked words, without the decoder's bias, given the encoder's output."""
    v, M, D, base = t.vectors, hidden[1], hidden[2], EACH * t.layers
    z, inputs, stats = apply(t, DENSE, hidden), low(t, M, D), new(M, STATISTICS)
    shift, weight = (v[DENSE_BIAS, 0], D), (v[HEAD, 0], D)
    transform(t.calls, (z, shift, weight, (v[HEAD + 1, 0], D), t.eps[OF_HEAD], stats, inputs))
    put(shelf, base + HIDDEN, hidden)
    put(shelf, base + Z, z)
    put(shelf, base + ENTERS_DECODER, inputs)
    put(shelf, base + HEAD_STATS, stats)
    return apply(t, TOKENS, inputs)


@kernel(**INNER)
def head_backward(t, w, shelf, d):  # type: ignore[no-untyped-def]
    """Return the gradient of the encoder's output [M, D], given d, that of the decoder's inputs."""
    v, M, D, base = t.vectors, d[1], d[2], EACH * t.layers
    hidden, z, stats = on(shelf, base + HIDDEN), on(shelf, base + Z), on(shelf, base + HEAD_STATS)
    shift, weight = (v[DENSE_BIAS, 0], D), (v[HEAD, 0], D)
    if w.apart:
        # The slopes that come in place of z are of no use here.
        x, slope = low(t, M, D), low(t, M, D)
        for k in range(M * D):
            write(slope[0], k, read(z[0], k))
        gelu(t.calls, (slope, shift, x))
        of_weight, of_bias = norms_of(t, w, OF_HEAD)
        scale_norms(t.calls, (d, x, stats, array_of(w.asking), of_weight, of_bias))
        freed(x[0])
        freed(slope[0])
    slopes = (v[DENSE_BIAS, 1], D), (v[HEAD, 1], D), (v[HEAD + 1, 1], D)
    transform_backward(t.calls, (z, shift, weight, stats, d, slopes[0], slopes[1], slopes[2]))
    let_go(w, z)
    let_go(w, stats)
    return back(t, w, DENSE, d, hidden)


@kernel(**INNER)
def backward(t, w, shelf, d_y):  # type: ignore[no-untyped-def]
    """Return the gradient of the embedded words, given that of the encoder's output [M, D].

    It has a row for each word that enters, or for each word of the chunk where gradients are apart.  The
    memory of d_y is given back, and what layers and `ask` put on the shelf is let go.
    """
    v, D, base, last = t.vectors, d_y[2], EACH * t.layers, t.layers - 1
    n, N, M = np.int64(len(w.ids)), np.int64(len(w.place)), np.int64(len(w.masked))
    few, place, starts = len(w.which) > 0, array_of(w.place), array_of(w.starts)
    alone, summing = few and last == 0 and not w.apart, few and not w.apart
    d = filled(M, D, F0)
    d_mixed = before_attention(t, w, _more(shelf, last), d, d_y, array_of(w.asked), last)
    i = base + ASKING
    asking = (
        on(shelf, i), on(shelf, i + 1), on(shelf, i + 2), on(shelf, i + 3),
        on(shelf, i + 4), on(shelf, i + 5), on(shelf, i + 6),
    )  # fmt: skip
    d_y = ask_backward(t, w, d_mixed, on(shelf, EACH * last + ENTERED), asking)
    if not alone:
        some, d = d, filled(N, D, F0)
        for m in range(M):
            to = w.masked[m] * D
            for j in range(D):
                write(d[0], to + j, read(some[0], m * D + j))
        freed(some[0])
    nothing = filled(UNIT, D, F0)
    for k in range(last - 1, -1, -1):
        entered, own = on(shelf, EACH * k + ENTERED), on(shelf, EACH * k + OWN)
        d_mixed = before_attention(t, w, _more(shelf, k), d, d_y, place, k)
        row, d_own = v[VECTORS + k * EACH_VECTORS + PROJECTION_BIAS], low(t, N, 3 * D)
        shift, slope = (row[0], 3 * D), (row[1], 3 * D)
        attend_backward(
            t.calls,
            (
                own, shift, own, shift, D, starts, starts, w.longest, t.heads, place,
                w.sites[3 * k + 1], w.cut, w.stride, d_mixed, (nothing[0], D), d_own, d_own, slope, slope,
            ),
        )  # fmt: skip
        freed(d_mixed[0])
        let_go(w, own)
        matrix = MATRICES + k * EACH_MATRICES + PROJECTION
        if k == 0 and few and w.apart:
            each = low_rows_of(t, entered, w.which)
            learn(t, w, matrix, d_own, each)
            freed(each[0])
            let_go(w, entered)
            d_y = through(t, matrix, d_own)
            freed(d_own[0])
        else:
            if k == 0 and few:
                d_own = low_summed(t, d_own, w.which, n)
            d_y = back(t, w, matrix, d_own, entered)
    if summing:
        d = summed(t, d, w.rows if alone else w.which, n)
        if alone:
            d_y = low_summed(t, d_y, w.which, n)
    if t.post:
        add(t.calls, (d_y, d))
    else:
        x, stats = entered_of(t, w, shelf, EMBEDDED), entered_of(t, w, shelf, ENTERING_STATS)
        through_norm(t, w, OF_ENTERING, ENTERING, x, stats, d_y, d)
        if few and w.apart:
            freed(x[0])
            freed(stats[0])
    freed(d_y[0])
    freed(nothing[0])
    return d


@kernel(**INNER)
def entered_of(t, w, shelf, i):  # type: ignore[no-untyped-def]
    """Return what is on the shelf for words that enter, with the rows of what `backward` returns.

    These are rows of their own where equal words enter once and gradients are apart.
    """
    x = on(shelf, EACH * t.layers + i)
    return rows_of(t, x, w.which) if len(w.which) > 0 and w.apart else x
