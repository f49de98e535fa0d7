"""Both passes of an encoder's chunk in one call of compiled code.

It does what `raysweep.models.fused.encoder.Pass` does, by the same kernels in the same order.  Traces make
two calls of the same passes (`.passes`, `raysweep.flatness.fused.whole`).  Each number is the same, unless
torch computes a product of few rows for `Pass`: here all are compiled ones.
`Pass` calls kernels from Python, some twenty for each layer.  Each such call looks at its arguments anew,
which for small models takes about as long as the arithmetic.  `Pass` serves where something else is wanted
between two kernels, and where torch computes a product of many rows.

Cost: the operations of `Pass`.  A chunk's arrays are given back as soon as nothing needs them.  After an
error, such as a lack of memory, they are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numba import types

from raysweep.compiled import kernel
from raysweep.compiled.addresses import freed
from raysweep.compiled.scalars import COMPILED
from raysweep.models.fused import tables
from raysweep.models.fused.calls import (
    CALLS,
    add,
    cross_entropy,
    embed_backward,
)
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.parts import (
    array_of,
    back,
)
from raysweep.models.fused.passes import (
    EACH,
    EMBEDDED,
    EMBEDDING_STATS,
    ENTERING_STATS,
    ENTERS_DECODER,
    PLACES,
    TABLES_TYPE,
    WORDS_TYPE,
    backward,
    forward,
    head,
    head_backward,
    on,
)
from raysweep.models.fused.products import array
from raysweep.models.fused.tables import (
    DECODER_BIAS,
    EMBEDDING,
    INPUTS,
    OUTPUTS,
    POSITIONS,
    TOKENS,
    WORDS,
)

if TYPE_CHECKING:
    from raysweep.models.fused.encoder_weights import EncoderWeights


class Whole:
    """The passes of an encoder's chunks with certain weights, for which `tables.serves` is true.

    Matrices are laid out at their first products after `forget`, as by `Matrix`.
    """

    def __init__(self, weights: EncoderWeights) -> None:
        calls = CALLS.addresses(array(weights.tokens.low).dtype, _CALLERS)
        self._tables, self._layouts = tables.tables(weights, calls)

    def forget(self) -> None:
        """Lay matrices out anew at their next products."""
        tables.forget(self._tables)

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
    v, V, D, base = t.vectors, t.matrices[TOKENS, OUTPUTS], t.matrices[TOKENS, INPUTS], EACH * t.layers
    shelf = np.empty((base + PLACES, 3), dtype=np.int64)
    hidden = forward(t, w, shelf, reading)
    if reading:
        add(t.calls, (hidden, (np.int64(states.ctypes.data), hidden[1], D)))
        freed(hidden[0])
        return 0.0
    logits = head(t, shelf, hidden)
    slope = v[DECODER_BIAS, 1], V
    loss = cross_entropy(t.calls, (logits, (v[DECODER_BIAS, 0], V), array_of(w.targets), factor, slope))
    d = back(t, w, TOKENS, logits, on(shelf, base + ENTERS_DECODER))
    d = backward(t, w, shelf, head_backward(t, w, shelf, d))
    stats = on(shelf, base + EMBEDDING_STATS)
    embed_backward(
        t.calls,
        (
            array_of(w.ids), array_of(w.at), array_of(w.place),
            (v[WORDS, 0], V, D), (v[POSITIONS, 0], t.places, D), (v[EMBEDDING, 0], D),
            w.sites[0], w.cut, stats, d, (v[WORDS, 1], V, D), (v[POSITIONS, 1], t.places, D),
            (v[EMBEDDING, 1], D), (v[EMBEDDING + 1, 1], D),
        ),
    )  # fmt: skip
    for x in (d, stats, on(shelf, base + EMBEDDED), on(shelf, base + ENTERING_STATS)):
        freed(x[0])
    return loss


#: What makes the calls, with the types of its arguments and of its result.
_CALLERS = {
    _run: [TABLES_TYPE, WORDS_TYPE, types.float32, types.boolean, types.float32[:, ::1], types.float64]
}
