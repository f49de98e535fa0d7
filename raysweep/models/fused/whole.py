"""Both passes of an encoder's chunk in one call of compiled code.

It does what `raysweep.models.fused.encoder.Pass` does, by the same kernels in the same order.
Each number is the same, unless torch computes a product of few rows for `Pass`: here all are compiled ones.
`Pass` calls kernels from Python, some twenty for each layer.  Each such call looks at its arguments anew,
which for small models takes about as long as the arithmetic.  `Pass` serves where something else is wanted
between two kernels, and where torch computes a product of many rows.

Cost: the operations of `Pass`.  A chunk's arrays are given back as soon as nothing needs them.  After an
error, such as a lack of memory, they are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numba import types

from raysweep.compiled import kernel
from raysweep.compiled.addresses import Low, freed, read, write
from raysweep.compiled.scalars import COMPILED
from raysweep.models.fused import tables
from raysweep.models.fused.asking import ask, ask_backward
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.parts import (
    CALLS,
    F0,
    STATISTICS,
    UNIT,
    add,
    apply,
    array_of,
    attend,
    attend_backward,
    back,
    before_attention,
    behind_attention,
    cross_entropy,
    embed,
    embed_backward,
    filled,
    give_back,
    low,
    low_rows_of,
    low_summed,
    new,
    norm,
    norm_backward,
    rows_of,
    summed,
    transform,
    transform_backward,
)
from raysweep.models.fused.products import array
from raysweep.models.fused.tables import (
    DECODER_BIAS,
    DENSE,
    DENSE_BIAS,
    EACH_MATRICES,
    EACH_VECTORS,
    EMBEDDING,
    ENTERING,
    HAS_APPLIED,
    HEAD,
    INPUTS,
    MATRICES,
    OUTPUTS,
    POSITIONS,
    PROJECTION,
    PROJECTION_BIAS,
    TOKENS,
    UP,
    VECTORS,
    WORDS,
)

if TYPE_CHECKING:
    from raysweep.models.fused.encoder import EncoderWeights


#: Held by the thread that may compile `_run`.
_compiling = Lock()


class Whole:
    """The passes of an encoder's chunks with certain weights, for which `tables.serves` is true.

    Matrices are laid out at their first products after `forget`, as by `Matrix`.
    """

    def __init__(self, weights: EncoderWeights) -> None:
        with _compiling:
            _run.disable_compile(False)
            try:
                calls = CALLS.addresses(array(weights.tokens.low).dtype)
            finally:
                # Arrays of other types would be read as what they are not.
                _run.disable_compile(len(_run.signatures) > 0)
        self._tables, self._layouts = tables.tables(weights, calls)

    def forget(self) -> None:
        """Lay matrices out anew at their next products."""
        self._tables.matrices[:, HAS_APPLIED:] = 0

    def learn(
        self, chunk: Chunk, factor: np.float32, cut: int, stride: int, sites: Sequence[np.uint64]
    ) -> float:
        """Return the sum of a chunk's losses, and add their gradients, times `factor`, to the weights' sums.

        Dropout is given as `raysweep.models.fused.encoder.dropped` returns it.
        """
        words, nothing = tables.words(self._tables, chunk, cut, stride, sites), np.empty((0, 0), np.float32)
        loss: float = _run(self._tables, words, factor, False, nothing)
        return loss

    def encode(self, chunk: Chunk, cut: int, stride: int, sites: Sequence[np.uint64]) -> np.ndarray:
        """Return the encoder's output [M, D] at masked words, float32; dropout is given as to `learn`."""
        words = tables.words(self._tables, chunk, cut, stride, sites)
        out = np.zeros((len(chunk.masked), self._tables.matrices[TOKENS, INPUTS]), dtype=np.float32)
        _run(self._tables, words, np.float32(0), True, out)
        return out


@kernel(**COMPILED)
def _run(t, w, factor, reading, states):  # type: ignore[no-untyped-def]
    """Do what `Whole.learn` does; or with `reading` add what `Whole.encode` returns to `states` [M, D]."""
    v, V, D = t.vectors, t.matrices[TOKENS, OUTPUTS], t.matrices[TOKENS, INPUTS]
    # Entering words, words of the chunk, and words that ask.
    n, N, M, last = np.int64(len(w.ids)), np.int64(len(w.place)), np.int64(len(w.masked)), t.layers - 1
    few, alone = len(w.which) > 0, len(w.which) > 0 and last == 0
    ids, at, place, asked = array_of(w.ids), array_of(w.at), array_of(w.place), array_of(w.asked)
    starts = array_of(w.starts)
    cut, longest, heads, stride = w.cut, w.longest, t.heads, w.stride

    # Forward.
    tokens, positions = (v[WORDS, 0], V, D), (v[POSITIONS, 0], t.places, D)
    embedded, embedding_stats, y, entering_stats = (
        new(n, D), new(n, STATISTICS), low(t, n, D), new(n, STATISTICS)
    )  # fmt: skip
    embed(
        t.calls,
        (
            ids, at, place, tokens, positions, (v[EMBEDDING, 0], D), (v[EMBEDDING + 1, 0], D), t.eps[0],
            w.sites[0], cut, embedding_stats, embedded, y,
        ),
    )  # fmt: skip
    if not t.post:
        weight, bias = (v[ENTERING, 0], D), (v[ENTERING + 1, 0], D)
        norm(t.calls, (embedded, weight, bias, t.eps[2], entering_stats, y))
    r, mine = embedded, False
    # Addresses of what layers keep for the backward pass, in the order in which it takes them up again.
    kept = np.empty((t.layers, 10), dtype=np.int64)
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
                own, shift, own, shift, D, starts, starts, longest, heads, place,
                w.sites[3 * k + 1], cut, stride, mixed,
            ),
        )  # fmt: skip
        r, y, more = behind_attention(t, w, r, mixed, place, k, mine)
        mine = t.post or reading
        if reading:
            freed(entered[0])
            freed(own[0])
            give_back(t, more)
        else:
            kept[k, 0], kept[k, 1] = entered[0], own[0]
            for j in range(8):
                kept[k, 2 + j] = more[j][0]

    # The last layer: masked words ask.
    before = r
    r = rows_of(t, r, w.rows)
    if mine:
        freed(before[0])
    if alone:
        before = y
        y = low_rows_of(t, y, w.which)
        freed(before[0])
    mixed, asking = ask(t, w, y)
    r, hidden, more = behind_attention(t, w, r, mixed, asked, last, True)
    if t.post or reading:
        freed(r[0])
    if reading:
        give_back(t, more)
        add(t.calls, (hidden, (np.int64(states.ctypes.data), M, D)))
        for x in (embedded, embedding_stats, entering_stats, y, hidden, *asking):
            freed(x[0])
        return 0.0

    # The head.
    z, inputs, head_stats = apply(t, DENSE, hidden), low(t, M, D), new(M, STATISTICS)
    shift, weight = (v[DENSE_BIAS, 0], D), (v[HEAD, 0], D)
    transform(t.calls, (z, shift, weight, (v[HEAD + 1, 0], D), t.eps[1], head_stats, inputs))
    logits = apply(t, TOKENS, inputs)
    slope = v[DECODER_BIAS, 1], V
    loss = cross_entropy(t.calls, (logits, (v[DECODER_BIAS, 0], V), array_of(w.targets), factor, slope))

    # Backward.
    d_y = back(t, TOKENS, logits, inputs)
    slopes = (v[DENSE_BIAS, 1], D), (v[HEAD, 1], D), (v[HEAD + 1, 1], D)
    transform_backward(t.calls, (z, shift, weight, head_stats, d_y, slopes[0], slopes[1], slopes[2]))
    freed(z[0])
    freed(head_stats[0])
    d_y = back(t, DENSE, d_y, hidden)
    d = filled(M, D, F0)
    d_mixed = before_attention(t, w, more, d, d_y, asked, last)
    d_y = ask_backward(t, w, d_mixed, y, asking)
    if not alone:
        some, d = d, filled(N, D, F0)
        for m in range(M):
            to = w.masked[m] * D
            for j in range(D):
                write(d[0], to + j, read(some[0], m * D + j))
        freed(some[0])
    nothing = filled(UNIT, D, F0)
    for k in range(last - 1, -1, -1):
        F = t.matrices[MATRICES + k * EACH_MATRICES + UP, OUTPUTS]
        held = kept[k]
        entered, own = (held[0], n if k == 0 else N, D), (held[1], N, 3 * D)
        d_mixed = before_attention(
            t, w,
            (
                (held[2], N, D), (held[3], N, D), (held[4], N, STATISTICS), (held[5], N, D),
                (held[6], N, F), (held[7], N, F), (held[8], N, D), (held[9], N, STATISTICS),
            ),
            d, d_y, place, k,
        )  # fmt: skip
        row, d_own = v[VECTORS + k * EACH_VECTORS + PROJECTION_BIAS], low(t, N, 3 * D)
        shift, slope = (row[0], 3 * D), (row[1], 3 * D)
        attend_backward(
            t.calls,
            (
                own, shift, own, shift, D, starts, starts, longest, heads, place,
                w.sites[3 * k + 1], cut, stride, d_mixed, (nothing[0], D), d_own, d_own, slope, slope,
            ),
        )  # fmt: skip
        freed(d_mixed[0])
        freed(own[0])
        if k == 0 and few:
            d_own = low_summed(t, d_own, w.which, n)
        d_y = back(t, MATRICES + k * EACH_MATRICES + PROJECTION, d_own, entered)
    if few:
        d = summed(t, d, w.rows if alone else w.which, n)
        if alone:
            d_y = low_summed(t, d_y, w.which, n)
    if t.post:
        add(t.calls, (d_y, d))
    else:
        slopes = (v[ENTERING, 1], D), (v[ENTERING + 1, 1], D), (v[ENTERING, 0], D)
        norm_backward(t.calls, (embedded, slopes[2], entering_stats, d_y, d, slopes[0], slopes[1]))
    embed_backward(
        t.calls,
        (
            ids, at, place, tokens, positions, (v[EMBEDDING, 0], D), w.sites[0], cut, embedding_stats, d,
            (v[WORDS, 1], V, D), (v[POSITIONS, 1], t.places, D),
            (v[EMBEDDING, 1], D), (v[EMBEDDING + 1, 1], D),
        ),
    )  # fmt: skip
    for x in (d, d_y, embedded, embedding_stats, entering_stats, nothing):
        freed(x[0])
    return loss


_VECTOR, _TABLE, _NUMBERS = types.int64[::1], types.int64[:, ::1], types.float32[::1]
_COUNT = types.int64
#: No kernel calls this one.  It is here to be compiled in turn with those that it calls.
CALLS.of(
    _run,
    types.NamedTuple(
        [types.Tuple([_VECTOR, Low(1)]), _TABLE, _TABLE, _NUMBERS, *[_COUNT] * 5, types.boolean],
        tables.Tables,
    ),
    types.NamedTuple(
        [*[_VECTOR] * 10, _COUNT, types.boolean, types.uint64[::1], _COUNT, _COUNT], tables.Words
    ),
    types.float32,
    types.boolean,
    types.float32[:, ::1],
    result=types.float64,
)
