"""Attention of an encoder's last layer, where masked words ask, among its compiled passes (`.whole`).

It does what `raysweep.models.fused.sublayer` does, in both ways.  `t` are `Tables`, and `w` are `Words`.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.addresses import freed
from raysweep.models.fused.calls import (
    add_rows,
    attend,
    attend_backward,
    gather,
    gather_backward,
    shift_factors_backward,
    shift_heads,
    shift_heads_backward,
)
from raysweep.models.fused.parts import (
    F0,
    F1,
    INNER,
    UNIT,
    ZERO,
    apply,
    array_of,
    back,
    filled,
    learn,
    let_go,
    low,
    low_rows_of,
    new,
    through,
)
from raysweep.models.fused.tables import EACH_VECTORS, KEY, KEY_VALUE, PROJECTION_BIAS, QUERY, VALUE, VECTORS


@kernel(**INNER)
def ask(t, w, y):  # type: ignore[no-untyped-def]
    """Return the mixtures of the last layer's attention of y [N, D], and what else its backward pass needs.

    Masked words ask, in either way of `raysweep.models.fused.sublayer`.
    """
    D, M, heads, last = y[2], np.int64(len(w.masked)), t.heads, t.layers - 1
    biases, key = t.vectors[VECTORS + last * EACH_VECTORS + PROJECTION_BIAS], w.sites[3 * last + 1]
    starts, asking, asked = array_of(w.starts), array_of(w.asking), array_of(w.asked)
    nothing = filled(UNIT, D, F0)
    those = low_rows_of(t, y, w.masked)
    query = apply(t, QUERY, those)
    # Without keys and values, the factors of biases.
    factors = M if w.gathering else ZERO
    ones, sums = filled(factors, heads, F1), new(factors, heads)
    if w.gathering:
        shift_heads(t.calls, (query, (biases[0], D), ones))
        # Those of every head side by side.
        keys, mix = through(t, KEY, query), low(t, M, heads * D)
        gather(
            t.calls,
            (
                (keys[0], M * heads, D), (nothing[0], D), y, starts, asking, w.longest, heads, asked,
                key, w.cut, w.stride, (mix[0], M * heads, D), sums,
            ),
        )  # fmt: skip
        mixed = apply(t, VALUE, mix)
        shift_heads(t.calls, (mixed, (biases[0] + 8 * D, D), sums))
    else:
        keys, mix, mixed = apply(t, KEY_VALUE, y), low(t, ZERO, ZERO), low(t, M, D)
        attend(
            t.calls,
            (
                query, (biases[0], D), keys, (biases[0] + 4 * D, 2 * D), ZERO, starts, asking,
                w.longest, heads, asked, key, w.cut, w.stride, mixed,
            ),
        )  # fmt: skip
    return mixed, (nothing, those, query, ones, sums, keys, mix)


@kernel(**INNER)
def ask_backward(t, w, d_mixed, y, kept):  # type: ignore[no-untyped-def]
    """Return the gradient of words y, given that of the mixtures.

    The memory of `d_mixed` is given back, and y and `kept` are let go.
    """
    nothing, those, query, ones, sums, keys, mix = kept
    D, M, N, heads, last = y[2], np.int64(len(w.masked)), y[1], t.heads, t.layers - 1
    biases, key = t.vectors[VECTORS + last * EACH_VECTORS + PROJECTION_BIAS], w.sites[3 * last + 1]
    starts, asking, asked = array_of(w.starts), array_of(w.asking), array_of(w.asked)
    if w.gathering:
        d_sums = new(M, heads)
        shift_factors_backward(t.calls, (d_mixed, (biases[0] + 8 * D, D), d_sums))
        shift_heads_backward(t.calls, (d_mixed, sums, (biases[1] + 8 * D, D)))
        d_mix = back(t, w, VALUE, d_mixed, mix)
        d_keys, d_y = low(t, M, heads * D), low(t, N, D)
        gather_backward(
            t.calls,
            (
                (keys[0], M * heads, D), (nothing[0], D), y, starts, asking, w.longest, heads, asked,
                key, w.cut, w.stride, (d_mix[0], M * heads, D), d_sums, (d_keys[0], M * heads, D), d_y,
            ),
        )  # fmt: skip
        for x in (d_mix, d_sums):
            freed(x[0])
        for x in (y, keys):
            let_go(w, x)
        # The product was that with the weight itself, so queries stand here where outputs do elsewhere.
        learn(t, w, KEY, query, d_keys)
        let_go(w, query)
        d_query = apply(t, KEY, d_keys)
        freed(d_keys[0])
        shift_heads_backward(t.calls, (d_query, ones, (biases[1], D)))
        d_those = back(t, w, QUERY, d_query, those)
    else:
        d_query, d_keys = low(t, M, D), low(t, N, 2 * D)
        attend_backward(
            t.calls,
            (
                query, (biases[0], D), keys, (biases[0] + 4 * D, 2 * D), ZERO, starts, asking,
                w.longest, heads, asked, key, w.cut, w.stride, d_mixed, (nothing[0], D), d_query, d_keys,
                (biases[1], D), (biases[1] + 4 * D, 2 * D),
            ),
        )  # fmt: skip
        freed(d_mixed[0])
        for x in (query, keys, mix):
            let_go(w, x)
        d_those = back(t, w, QUERY, d_query, those)
        d_y = back(t, w, KEY_VALUE, d_keys, y)
    add_rows(t.calls, (d_y, array_of(w.masked), d_those))
    freed(d_those[0])
    for x in (ones, sums, nothing):
        let_go(w, x)
    return d_y
