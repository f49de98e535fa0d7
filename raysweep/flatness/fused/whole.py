"""The norms of an encoder's chunk in two calls of compiled code, with test vectors made between them.

It does what `raysweep.flatness.fused.encoder` does, by the same kernels in the same order, where all matrix
products are compiled ones (`raysweep.models.fused.whole`).  Each number is the same, unless torch computes a
product of few rows there.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numba import types
from torch import Tensor

from raysweep.compiled import kernel
from raysweep.compiled.addresses import freed, read, write
from raysweep.compiled.scalars import COMPILED
from raysweep.flatness.fused import kernels
from raysweep.models.encoder import Encoder
from raysweep.models.fused import calls, tables
from raysweep.models.fused.calls import add, table_norms
from raysweep.models.fused.encoder import dropped
from raysweep.models.fused.encoder_weights import EncoderWeights
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.parts import (
    F0,
    array_of,
    filled,
    learn,
    let_go,
    new,
    norms_at,
    through,
    through_norm,
)
from raysweep.models.fused.passes import (
    EACH,
    EMBEDDED,
    EMBEDDING_STATS,
    ENTERING_STATS,
    ENTERS_DECODER,
    PLACES,
    SHELF_TYPE,
    TABLES_TYPE,
    WORDS_TYPE,
    backward,
    entered_of,
    forward,
    head,
    head_backward,
    on,
)
from raysweep.models.fused.products import array
from raysweep.models.fused.step import Known, known
from raysweep.models.fused.tables import (
    EACH_MODULES,
    EMBEDDING,
    INPUTS,
    LAYER_MODULES,
    OF_EMBEDDING,
    OUTPUTS,
    POSITIONS,
    TOKENS,
    WORDS,
    forget,
)

_VECTOR, _MATRIX = types.int64[::1], types.float32[:, ::1]


#: Calls of training alone.
_SUMS = (
    calls.outer, calls.cross_entropy, calls.junction_backward, calls.norm_backward, calls.embed_backward,
    calls.sum_rows, calls.sum_low, calls.round_rows,
)  # fmt: skip


class ChunkPasses:
    """The passes of an encoder's chunks with certain weights, float32, without sums of gradients.

    `tables.serves(weights, apart=True)` must be true.  `rows` has by a parameter's name where its norms are:
    0 for a weight or 1 for a bias, and its module's number.
    """

    def __init__(self, weights: EncoderWeights) -> None:
        addresses = calls.CALLS.addresses(
            np.dtype(np.float32),
            {
                _forward: [TABLES_TYPE, WORDS_TYPE, SHELF_TYPE, _MATRIX, _MATRIX, types.none],
                _backward: [TABLES_TYPE, WORDS_TYPE, SHELF_TYPE, _MATRIX, _VECTOR, _VECTOR, types.none],
                _clear: [SHELF_TYPE, types.none],
            },
            {
                calls.matrix_norms: kernels.matrix,
                calls.norms_by_head: kernels.heads,
                calls.scale_norms: kernels.scale,
                calls.norm_norms: kernels.norm,
                calls.junction_norms: kernels.junction,
                calls.table_norms: kernels.tables,
                **dict.fromkeys(_SUMS),
            },
        )
        # The tables know parameters and sums by their addresses.
        self.weights = weights
        self.tables, self._layouts = tables.tables(weights, addresses)
        self.modules = int(LAYER_MODULES + EACH_MODULES * self.tables.layers) + len(self.tables.eps) + 1
        self.rows = {
            f"{module}.{name}": (part, number)
            for module, number in _modules(weights)
            for part, name in enumerate(("weight", "bias"))
        }
        # The decoder's weight is that of the tokens' table, whose norms hold its share.
        self.rows["token_embedding.weight"] = self.rows.pop("decoder.weight")
        self.rows["position_embedding.weight"] = 0, self.modules - 1
        self.keys = [number for name, (_, number) in self.rows.items() if name.endswith("key.bias")]

    def renew(self) -> None:
        """Take the weights as they are now."""
        forget(self.tables)
        self.weights.renew()


class WholeNorms:
    """The norms of the sentences of one chunk; see `raysweep.flatness.fused.taps.ChunkNorms`."""

    def __init__(self, model: Encoder, made: ChunkPasses, chunk: Chunk) -> None:
        self._shelf = np.zeros((EACH * made.tables.layers + PLACES, 3), dtype=np.int64)
        self._chunk, self._made = chunk, made
        self._words = tables.words(made.tables, chunk, *dropped(model, None), apart=True)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the logits [S, V] at the masked words, and the hidden states [S, D] that the head takes."""
        t, count = self._made.tables, len(self._chunk.masked)
        logits, hidden = (
            np.zeros((count, t.matrices[TOKENS, size]), dtype=np.float32) for size in (OUTPUTS, INPUTS)
        )
        _forward(t, self._words, self._shelf, logits, hidden)
        logits += self._made.weights.decoder_bias.value
        return torch.from_numpy(logits), torch.from_numpy(hidden)

    def norms(self, v: Tensor, names: Sequence[str], *, last: bool = True) -> Tensor:
        """Return ‖Jᵀv‖² [S, P], float64, of test vectors v [S, V], by the parameters of these names.

        There is no second backward pass unless `last` is False.
        """
        if v.shape != (len(self._chunk.masked), self._made.tables.matrices[TOKENS, OUTPUTS]):
            raise ValueError(f"vectors {list(v.shape)} at {len(self._chunk.masked)} masked words")
        if not self._shelf.any():
            raise RuntimeError("the last backward pass of these norms is done, or their forward pass is not")
        chunk, made, shelf = self._chunk, self._made, self._shelf
        given, found = array(v.float().contiguous()), np.zeros((2, made.modules, len(chunk.starts) - 1))
        words = self._words._replace(again=not last, norms=found)
        if last:
            # The call gives back what is on it.  Nothing may be given back twice: after an error, it is lost.
            self._shelf = np.zeros_like(shelf)
        _backward(made.tables, words, shelf, given, chunk.ids, chunk.at)
        # A softmax does not see what the biases of all keys have in common: anything else is rounding.
        found[1, made.keys] = 0
        places = np.array([made.rows[name] for name in names])
        return torch.from_numpy(np.ascontiguousarray(found[places[:, 0], places[:, 1]].T))

    def __del__(self) -> None:
        # It may be that no backward pass was the last one.
        _clear(self._shelf)


#: Passes of small models that no measurement uses at the moment, kept for the next one: making them takes
#: noticeable time.
_spare: WeakKeyDictionary[Encoder, tuple[Known, ChunkPasses]] = WeakKeyDictionary()


@contextmanager
def maker(model: Encoder) -> Iterator[Callable[[Chunk], WholeNorms] | None]:
    """Give a maker of the norms of a chunk.  The weights are as they are now, and must stay so meanwhile.

    None where torch computes products of many rows.
    """
    now, (before, made) = known(model), _spare.pop(model, (None, None))
    if made is not None and before is now and made.weights.serve(now.parameters, torch.float32):
        made.renew()
    else:
        weights = EncoderWeights(model, torch.float32)
        made = ChunkPasses(weights) if tables.serves(weights, apart=True) else None
    yield None if made is None else partial(WholeNorms, model, made)
    if made is not None and now.small and made.weights.rest():
        _spare[model] = now, made


def _modules(weights: EncoderWeights) -> Iterator[tuple[str, int]]:
    """Yield the names of modules, each with its number."""
    layers = len(weights.layers)
    last = f"layers.{layers - 1}"
    yield from ((name, number) for number, name in enumerate(("decoder", "head_dense")))
    yield from ((f"{last}.{name}", number) for number, name in enumerate(("query", "key", "value"), 2))
    for k in range(layers):
        first = int(LAYER_MODULES + EACH_MODULES * k)
        for number, name in enumerate(("query", "key", "value", "output", "up", "down"), first):
            if number >= first + 3 or k + 1 < layers:
                yield f"layers.{k}.{name}", number
    first = int(LAYER_MODULES + EACH_MODULES * layers)
    yield from (("embedding_norm", first), ("head_norm", first + 1))
    norms = [f"layers.{k}.{name}_norm" for k in range(layers) for name in ("attention", "mlp")]
    if weights.final_norm is None:
        first += 3
    else:
        first, norms = first + 2, [*norms, "final_norm"]
    yield from ((name, number) for number, name in enumerate(norms, first))


@kernel(**COMPILED)
def _forward(t, w, shelf, logits, hidden):  # type: ignore[no-untyped-def]
    """Do the forward pass; add the logits without the decoder's bias, and the hidden states, to zeros."""
    M, D = np.int64(len(hidden)), np.int64(hidden.shape[1])
    states = forward(t, w, shelf, False)
    found = head(t, shelf, states)
    add(t.calls, (states, (np.int64(hidden.ctypes.data), M, D)))
    add(t.calls, (found, (np.int64(logits.ctypes.data), M, np.int64(logits.shape[1]))))
    freed(found[0])


@kernel(**COMPILED)
def _backward(t, w, shelf, v, ids, at):  # type: ignore[no-untyped-def]
    """Do the backward pass from v [M, V], which takes all norms; `ids` and `at` [N] are the chunk's."""
    D, N, base = t.matrices[TOKENS, INPUTS], np.int64(len(w.place)), EACH * t.layers
    given = np.int64(v.ctypes.data), np.int64(len(v)), np.int64(v.shape[1])
    inputs, vectors = on(shelf, base + ENTERS_DECODER), t.vectors
    learn(t, w, TOKENS, given, inputs)
    d = backward(t, w, shelf, head_backward(t, w, shelf, through(t, TOKENS, given)))
    # The embedding's own norms: words and places are added anew.
    x, d_x = new(N, D), filled(N, D, F0)
    tokens, positions = vectors[WORDS, 0], vectors[POSITIONS, 0]
    for n in range(N):
        for j in range(D):
            write(x[0], n * D + j, read(tokens, ids[n] * D + j) + read(positions, at[n] * D + j))
    stats = entered_of(t, w, shelf, EMBEDDING_STATS)
    through_norm(t, w, OF_EMBEDDING, EMBEDDING, x, stats, d, d_x)
    of_tokens, of_places = norms_at(w, TOKENS)[0], norms_at(w, np.int64(w.norms.shape[1]) - 1)[0]
    table_norms(
        t.calls,
        (array_of(ids), d_x, array_of(w.starts), inputs, given, array_of(w.asking), of_tokens, of_places),
    )
    for y in (d, x, d_x):
        freed(y[0])
    if len(w.which) > 0:
        freed(stats[0])
    let_go(w, inputs)
    for i in (EMBEDDED, EMBEDDING_STATS, ENTERING_STATS):
        let_go(w, on(shelf, base + i))


@kernel(**COMPILED)
def _clear(shelf):  # type: ignore[no-untyped-def]
    """Give back the memory of what is on a shelf."""
    for i in range(len(shelf)):
        if shelf[i, 0] != 0:
            freed(shelf[i, 0])
            shelf[i] = 0
