"""Both passes of an encoder's chunk in one call of compiled code.

It does what `raysweep.models.fused.encoder.Pass` does, in float32, by the same kernels in the same order, so
each number is the same.  `Pass` calls them from Python, some twenty for each layer.  Each such call looks at
its arguments anew, which takes 2 to 20 µs by what is in the cache: for small models about as long as the
arithmetic.  `Pass` serves where something else is wanted between two kernels, and where torch computes a
product.

Parameters, sums of gradients and layouts of matrices are known by their addresses, in tables that are valid
as long as the weights are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numba import carray, types

from raysweep.compiled import kernel
from raysweep.compiled.addresses import Calls, numbers
from raysweep.compiled.scalars import COMPILED
from raysweep.models.fused import attention, kernels, products
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.sublayer import gathers
from raysweep.models.fused.weights import Matrix, Vector

if TYPE_CHECKING:
    from raysweep.models.fused.encoder import EncoderWeights, Norm

_F0, _F1 = np.float32(0.0), np.float32(1.0)

#: Columns of the table of matrices: addresses of the matrix [O, I] and of its gradient's sum, O, I, heads, the
#: addresses of both layouts (`raysweep.models.fused.products.Product`), and whether each is made.
_VALUE, _SUM, _ROWS, _COLUMNS, _HEADS, _APPLIED, _RETURNED, _HAS_APPLIED, _HAS_RETURNED = np.arange(9)

#: Rows of the table of matrices.  Query, key, value, and key and value are parts of the last layer's
#: projection.  Each layer has rows of its own, from the last number of the first line on.
_TOKENS, _DENSE, _QUERY, _KEY, _OF_VALUE, _KEY_VALUE, _MATRICES = np.arange(7)
_PROJECTION, _OUTPUT, _UP, _DOWN, _EACH_MATRICES = np.arange(5)

#: Rows of the table of vectors, whose columns are the addresses of values and of the gradient's sum.  A
#: LayerNorm has a row for its weight and one for its bias; `_ENTERING` is that before the first layer of a
#: pre-norm encoder, and `_ONE` and `_TWO` are those behind a layer's sublayers.
_POSITIONS, _DECODER_BIAS, _DENSE_BIAS, _EMBEDDING, _HEAD, _ENTERING, _VECTORS = np.array([0, 1, 2, 3, 5, 7, 9])
_PROJECTION_BIAS, _OUTPUT_BIAS, _UP_BIAS, _DOWN_BIAS, _ONE, _TWO, _EACH_VECTORS = np.array([0, 1, 2, 3, 4, 6, 8])

#: Sites of dropout behind a layer's sublayers, and a constant.
_BEHIND_ATTENTION, _BEHIND_MLP, _0 = np.array([1, 2, 0])

_i, _u, _f, _b = types.int64, types.uint64, types.float32, types.boolean
_I, _V, _M = types.int64[::1], types.float32[::1], types.float32[:, ::1]
_MI = types.int64[:, ::1]
_M3, _M4 = types.float32[:, :, ::1], types.float32[:, :, :, ::1]

#: Options of a part that only kernels call: numba need not compile the ways in from elsewhere.
_INNER = {**COMPILED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

_CALLS = Calls()
_turned = _CALLS.of(products.turned, _M3, _M4)
_straight = _CALLS.of(products.straight, _M3, _M4)
_product = _CALLS.of(products.product, _M, _M4, _M)
_outer = _CALLS.of(products.outer, _M, _M, _M)
_embed = _CALLS.of(kernels.embed, _I, _I, _I, _M, _M, _V, _V, _f, _u, _i, _M, _M, _M)
_norm = _CALLS.of(kernels.norm, _M, _V, _V, _f, _M, _M)
_junction = _CALLS.of(kernels.junction, _M, _M, _V, _I, _u, _i, _V, _V, _f, _M, _M, _M, _M)
_gelu = _CALLS.of(kernels.gelu, _M, _V, _M)
_transform = _CALLS.of(kernels.transform, _M, _V, _V, _V, _f, _M, _M)
_cross_entropy = _CALLS.of(kernels.cross_entropy, _M, _V, _I, _f, _V, result=types.float64)
_add_rows = _CALLS.of(kernels.add_rows, _M, _I, _M)
_sum_rows = _CALLS.of(kernels.sum_rows, _M, _I, _M)
_shift_heads = _CALLS.of(kernels.shift_heads, _M, _V, _M)
_attend = _CALLS.of(attention.attend, _M, _V, _M, _V, _i, _I, _I, _i, _i, _I, _u, _i, _i, _M)
_gather = _CALLS.of(attention.gather, _M, _V, _M, _I, _I, _i, _i, _I, _u, _i, _i, _M, _M)
_embed_backward = _CALLS.of(
    kernels.embed_backward, _I, _I, _I, _M, _M, _V, _u, _i, _M, _M, _M, _M, _V, _V
)  # fmt: skip
_norm_backward = _CALLS.of(kernels.norm_backward, _M, _V, _M, _M, _M, _V, _V)
_junction_backward = _CALLS.of(
    kernels.junction_backward, _b, _M, _M, _I, _u, _i, _V, _M, _M, _M, _V, _V, _V
)  # fmt: skip
_gelu_backward = _CALLS.of(kernels.gelu_backward, _M, _M, _V)
_transform_backward = _CALLS.of(kernels.transform_backward, _M, _V, _V, _M, _M, _V, _V, _V)
_shift_heads_backward = _CALLS.of(kernels.shift_heads_backward, _M, _M, _V)
_shift_factors_backward = _CALLS.of(kernels.shift_factors_backward, _M, _V, _M)
_attend_backward = _CALLS.of(
    attention.attend_backward,
    _M, _V, _M, _V, _i, _I, _I, _i, _i, _I, _u, _i, _i, _M, _V, _M, _M, _V, _V,
)  # fmt: skip
_gather_backward = _CALLS.of(
    attention.gather_backward, _M, _V, _M, _I, _I, _i, _i, _I, _u, _i, _i, _M, _M, _M, _M
)


class _Tables(NamedTuple):
    """What is known of an encoder: `eps` are those of the LayerNorms, in the order of their vectors."""

    calls: np.ndarray
    matrices: np.ndarray
    vectors: np.ndarray
    eps: np.ndarray
    layers: int
    heads: int
    places: int
    post: bool


class _Words(NamedTuple):
    """The arrays of a `Chunk`, and its dropout (`raysweep.models.fused.encoder.dropped`).

    `longest` are the words of the longest sentence.  With `gathering`, masked words attend without keys and
    values.
    """

    ids: np.ndarray
    at: np.ndarray
    place: np.ndarray
    starts: np.ndarray
    masked: np.ndarray
    asking: np.ndarray
    targets: np.ndarray
    longest: int
    gathering: bool
    sites: np.ndarray
    cut: int
    stride: int


class Whole:
    """The passes of an encoder's chunks with certain weights.

    Matrices are laid out at their first products after `forget`, as by `Matrix`.
    """

    def __init__(self, weights: EncoderWeights, heads: int, *, post: bool) -> None:
        norms = [weights.embedding_norm, weights.head_norm, weights.layers[0].attention_norm]
        vectors = [weights.positions, weights.decoder_bias, weights.dense_bias, *_vectors(norms)]
        for k, layer in enumerate(weights.layers):
            behind = weights.behind(k)
            norms += behind
            vectors += layer.projection_bias, layer.output_bias, layer.up_bias, layer.down_bias
            vectors += _vectors(behind)
        matrices = list(_matrices(weights, heads))
        self._width = weights.tokens.low.shape[1]
        ends = np.cumsum([size for matrix in matrices for size in _sizes(matrix)])
        # Zeros stay behind the last columns.
        self._layouts = torch.zeros(int(ends[-1]), dtype=torch.float32).numpy()
        places = self._layouts.ctypes.data + 4 * np.concatenate([[0], ends[:-1]])
        rows = zip(matrices, places[::2], places[1::2], strict=True)
        self._tables = _Tables(
            calls=_CALLS.addresses(),
            matrices=np.array(
                [
                    [m.low.data_ptr(), m.gradient.ctypes.data, *m.low.shape, m.heads, one, two, 0, 0]
                    for m, one, two in rows
                ]
            ),
            vectors=np.array([[v.value.ctypes.data, v.gradient.ctypes.data] for v in vectors]),
            eps=np.array([norm.eps for norm in norms]),
            layers=len(weights.layers),
            heads=heads,
            places=len(weights.positions.value),
            post=post,
        )

    @staticmethod
    def serves(weights: EncoderWeights, heads: int) -> bool:
        """Return whether all products and sums over rows are compiled ones."""
        # The residual stream is float32, and here it is what products take.
        return weights.dtype == torch.float32 and all(
            products.serves(matrix.low)
            and products.serves_sum(*matrix.low.shape, matrix.heads, matrix.gradient.dtype)
            for matrix in _matrices(weights, heads)
        )

    def forget(self) -> None:
        """Lay matrices out anew at their next products."""
        self._tables.matrices[:, _HAS_APPLIED:] = 0

    def learn(
        self, chunk: Chunk, factor: np.float32, cut: int, stride: int, sites: Sequence[np.uint64]
    ) -> float:
        """Return the sum of a chunk's losses, and add their gradients, times `factor`, to the weights' sums.

        Dropout is given as `raysweep.models.fused.encoder.dropped` returns it.
        """
        nothing = np.empty((0, 0), dtype=np.float32)
        loss: float = _run(self._tables, self._words(chunk, cut, stride, sites), factor, False, nothing)
        return loss

    def encode(self, chunk: Chunk, cut: int, stride: int, sites: Sequence[np.uint64]) -> np.ndarray:
        """Return the encoder's output [M, D] at masked words; dropout is given as to `learn`."""
        out = np.empty((len(chunk.masked), self._width), dtype=np.float32)
        _run(self._tables, self._words(chunk, cut, stride, sites), np.float32(0), True, out)
        return out

    def _words(self, chunk: Chunk, cut: int, stride: int, sites: Sequence[np.uint64]) -> _Words:
        return _Words(
            ids=chunk.ids,
            at=chunk.at,
            place=chunk.place,
            starts=chunk.starts,
            masked=chunk.masked,
            asking=chunk.asking,
            targets=chunk.targets,
            longest=chunk.longest,
            gathering=gathers(chunk, self._width, self._tables.heads),
            sites=np.array(sites, dtype=np.uint64),
            cut=cut,
            stride=stride,
        )


def _matrices(weights: EncoderWeights, heads: int) -> Iterator[Matrix]:
    """Yield what is in the rows of the table of matrices."""
    last = weights.layers[-1].projection
    width = last.low.shape[1]
    yield from (weights.tokens, weights.dense, last.part(slice(width)))
    yield last.part(slice(width, 2 * width), heads)
    yield last.part(slice(2 * width, 3 * width), heads)
    yield last.part(slice(width, 3 * width))
    for layer in weights.layers:
        yield from (layer.projection, layer.output, layer.up, layer.down)


def _vectors(norms: Sequence[Norm]) -> Iterator[Vector]:
    for norm in norms:
        yield from (norm.weight, norm.bias)


def _sizes(matrix: Matrix) -> tuple[int, int]:
    """Return the numbers of both layouts of a matrix."""
    rows, columns = matrix.low.shape
    wide = products.COLUMNS
    own = rows // matrix.heads
    return matrix.heads * -(-own // wide) * columns * wide, matrix.heads * -(-columns // wide) * own * wide


@kernel(**_INNER)
def _empty(rows, columns):  # type: ignore[no-untyped-def]
    """Return an empty matrix that begins where a line of the cache does."""
    found = np.empty(rows * columns + 16, dtype=np.float32)
    first = (np.int64(64) - np.int64(found.ctypes.data) % 64) % 64 // 4
    return found[first : first + rows * columns].reshape(rows, columns)


@kernel(**_INNER)
def _matrix(place, rows, columns):  # type: ignore[no-untyped-def]
    return carray(numbers(place), (rows, columns))


@kernel(**_INNER)
def _vector(place, size):  # type: ignore[no-untyped-def]
    return carray(numbers(place), size)


@kernel(**_INNER)
def _rows(x, rows):  # type: ignore[no-untyped-def]
    """Return the rows of x with these numbers."""
    out = _empty(len(rows), x.shape[1])
    for n in range(len(rows)):
        m = rows[n]
        for j in range(x.shape[1]):
            out[n, j] = x[m, j]
    return out


@kernel(**_INNER)
def _some(x, rows):  # type: ignore[no-untyped-def]
    """Return the entries of an array of int64 with these numbers."""
    out = np.empty(len(rows), dtype=np.int64)
    for n in range(len(rows)):
        out[n] = x[rows[n]]
    return out


@kernel(**_INNER)
def _apply(t, i, x):  # type: ignore[no-untyped-def]
    """Do what `Matrix.apply` does with the matrix in row i of the table."""
    row = t.matrices[i]
    outputs, inputs, heads = row[_ROWS], row[_COLUMNS], row[_HEADS]
    own = outputs // heads
    shape = heads, (own + products.COLUMNS - 1) // products.COLUMNS, inputs, products.COLUMNS
    panels = carray(numbers(row[_APPLIED]), shape)
    if row[_HAS_APPLIED] == 0:
        _turned(t.calls, (carray(numbers(row[_VALUE]), (heads, own, inputs)), panels))
        row[_HAS_APPLIED] = 1
    out = _empty(len(x), outputs)
    _product(t.calls, (x, panels, out))
    return out


@kernel(**_INNER)
def _through(t, i, d):  # type: ignore[no-untyped-def]
    """Do what `Matrix.through` does."""
    row = t.matrices[i]
    outputs, inputs, heads = row[_ROWS], row[_COLUMNS], row[_HEADS]
    own = outputs // heads
    shape = heads, (inputs + products.COLUMNS - 1) // products.COLUMNS, own, products.COLUMNS
    panels = carray(numbers(row[_RETURNED]), shape)
    if row[_HAS_RETURNED] == 0:
        _straight(t.calls, (carray(numbers(row[_VALUE]), (heads, own, inputs)), panels))
        row[_HAS_RETURNED] = 1
    out = _empty(len(d), heads * inputs)
    _product(t.calls, (d, panels, out))
    return out


@kernel(**_INNER)
def _add_outer(t, i, d, x):  # type: ignore[no-untyped-def]
    """Do what `Matrix.learn` does."""
    row = t.matrices[i]
    _outer(t.calls, (d, x, _matrix(row[_SUM], row[_ROWS], row[_COLUMNS])))


@kernel(**_INNER)
def _back(t, i, d, x):  # type: ignore[no-untyped-def]
    """Do what `Matrix.back` does."""
    _add_outer(t, i, d, x)
    return _through(t, i, d)


@kernel(**_INNER)
def _value(t, i, size):  # type: ignore[no-untyped-def]
    """Return the vector in row i of the table."""
    return _vector(t.vectors[i, 0], size)


@kernel(**_INNER)
def _slope(t, i, size):  # type: ignore[no-untyped-def]
    """Return the sum of the gradient of the vector in row i of the table."""
    return _vector(t.vectors[i, 1], size)


@kernel(**_INNER)
def _part(t, i, which, first, size):  # type: ignore[no-untyped-def]
    """Return `size` numbers from number `first` on of a vector, or with `which` 1 of its gradient's sum."""
    return _vector(t.vectors[i, which] + 4 * first, size)


@kernel(**_INNER)
def _forward_junction(t, w, r, o, place, k, site):  # type: ignore[no-untyped-def]
    """Do what `Pass._junction` does; `site` is 1 behind attention and 2 behind the MLP."""
    D = r.shape[1]
    base = _VECTORS + k * _EACH_VECTORS
    shift, norm = (_OUTPUT_BIAS, _ONE) if site == _BEHIND_ATTENTION else (_DOWN_BIAS, _TWO)
    s, stats, y = _empty(len(r), D), _empty(len(r), 2), _empty(len(r), D)
    out = _empty(len(r), D) if t.post else _empty(0, 0)
    _junction(
        t.calls,
        (
            r, o, _value(t, base + shift, D), place, w.sites[3 * k + 1 + site], w.cut,
            _value(t, base + norm, D), _value(t, base + norm + 1, D), t.eps[2 + 2 * k + site],
            s, stats, out, y,
        ),
    )  # fmt: skip
    return s, stats, out if t.post else s, y


@kernel(**_INNER)
def _backward_junction(t, w, d, d_y, s, stats, place, k, site):  # type: ignore[no-untyped-def]
    """Do what `Pass._junction_backward` does."""
    D = d.shape[1]
    base = _VECTORS + k * _EACH_VECTORS
    shift, norm = (_OUTPUT_BIAS, _ONE) if site == _BEHIND_ATTENTION else (_DOWN_BIAS, _TWO)
    d_o = _empty(len(d), D)
    _junction_backward(
        t.calls,
        (
            t.post, d, d_y, place, w.sites[3 * k + 1 + site], w.cut, _value(t, base + norm, D), s, stats, d_o,
            _slope(t, base + shift, D), _slope(t, base + norm, D), _slope(t, base + norm + 1, D),
        ),
    )  # fmt: skip
    return d_o


@kernel(**_INNER)
def _behind_attention(t, w, r, mixed, place, k):  # type: ignore[no-untyped-def]
    """Return the residual stream, the next sublayer's input, and what the backward pass of layer k needs."""
    base = _MATRICES + k * _EACH_MATRICES
    o = _apply(t, base + _OUTPUT, mixed)
    s1, stats1, out1, y1 = _forward_junction(t, w, r, o, place, k, _BEHIND_ATTENTION)
    slope = _apply(t, base + _UP, y1)
    g = _empty(len(slope), slope.shape[1])
    _gelu(t.calls, (slope, _value(t, _VECTORS + k * _EACH_VECTORS + _UP_BIAS, g.shape[1]), g))
    s2, stats2, out2, y2 = _forward_junction(t, w, out1, _apply(t, base + _DOWN, g), place, k, _BEHIND_MLP)
    return out2, y2, (mixed, s1, stats1, y1, slope, g, s2, stats2)


@kernel(**_INNER)
def _before_attention(t, w, kept, d, d_y, place, k):  # type: ignore[no-untyped-def]
    """Turn d into the gradient of the stream before layer k; return that of attention's mixtures."""
    mixed, s1, stats1, y1, slope, g, s2, stats2 = kept
    base = _MATRICES + k * _EACH_MATRICES
    d_m = _backward_junction(t, w, d, d_y, s2, stats2, place, k, _BEHIND_MLP)
    d_g = _back(t, base + _DOWN, d_m, g)
    shift = _slope(t, _VECTORS + k * _EACH_VECTORS + _UP_BIAS, g.shape[1])
    _gelu_backward(t.calls, (slope, d_g, shift))
    d_y = _back(t, base + _UP, d_g, y1)
    d_o = _backward_junction(t, w, d, d_y, s1, stats1, place, k, _BEHIND_ATTENTION)
    return _back(t, base + _OUTPUT, d_o, mixed)


@kernel(**COMPILED, no_cfunc_wrapper=True)
def _run(t, w, factor, reading, states):  # type: ignore[no-untyped-def]
    """Do what `Whole.learn` does; or with `reading` write what `Whole.encode` returns, to `states` [M, D]."""
    V, D = t.matrices[_TOKENS, _ROWS], t.matrices[_TOKENS, _COLUMNS]
    N, M, last = len(w.ids), len(w.masked), t.layers - 1
    masked, place, longest, cut, sites = w.masked, w.place, w.longest, w.cut, w.sites
    asked = _some(place, masked)

    # Of equal words in equal places one may enter for all (`Pass`).
    ids, at, which = w.ids, w.at, w.ids
    few = cut == 0 and 2 * V * longest <= N
    if few:
        ids, at = np.empty(V * longest, dtype=np.int64), np.empty(V * longest, dtype=np.int64)
        for i in range(V):
            for j in range(longest):
                ids[i * longest + j], at[i * longest + j] = i, j
        which = np.empty(N, dtype=np.int64)
        for n in range(N):
            which[n] = w.ids[n] * longest + w.at[n]

    # Forward.
    tokens, positions = _matrix(t.matrices[_TOKENS, _VALUE], V, D), _matrix(t.vectors[_POSITIONS, 0], t.places, D)
    embedded, y = _empty(len(ids), D), _empty(len(ids), D)
    embedding_stats, entering_stats = _empty(len(ids), _BEHIND_MLP), _empty(len(ids), _BEHIND_MLP)
    weight = _value(t, _EMBEDDING, D)
    _embed(
        t.calls,
        (
            ids, at, place, tokens, positions, weight, _value(t, _EMBEDDING + 1, D), t.eps[0],
            sites[0], cut, embedding_stats, embedded, y,
        ),
    )  # fmt: skip
    if not t.post:
        weight, bias = _value(t, _ENTERING, D), _value(t, _ENTERING + 1, D)
        _norm(t.calls, (embedded, weight, bias, t.eps[2], entering_stats, y))
    r = embedded
    kept = []
    for k in range(last):
        entered, own = y, _apply(t, _MATRICES + k * _EACH_MATRICES + _PROJECTION, y)
        if k == 0 and few:
            own, r = _rows(own, which), _rows(r, which)
        shift, mixed = _value(t, _VECTORS + k * _EACH_VECTORS + _PROJECTION_BIAS, 3 * D), _empty(N, D)
        _attend(
            t.calls,
            (
                own, shift, own, shift, D, w.starts, w.starts, longest, t.heads, place,
                sites[3 * k + 1], cut, w.stride, mixed,
            ),
        )  # fmt: skip
        r, y, more = _behind_attention(t, w, r, mixed, place, k)
        kept.append((entered, own, more))

    # The last layer: masked words ask (`raysweep.models.fused.sublayer`).
    biases = _VECTORS + last * _EACH_VECTORS + _PROJECTION_BIAS
    key, nothing = sites[3 * last + 1], np.zeros(D, dtype=np.float32)
    alone = last == 0 and few
    if alone:
        y, r = _rows(y, which), _rows(r, _some(which, masked))
    else:
        r = _rows(r, masked)
    asking = _rows(y, masked)
    query = _apply(t, _QUERY, asking)
    ones, sums = np.ones((M, t.heads), dtype=np.float32), _empty(M, t.heads)
    if w.gathering:
        _shift_heads(t.calls, (query, _part(t, biases, 0, 0, D), ones))
        # Those of every head side by side.
        keys = _through(t, _KEY, query)
        mix = _empty(M, t.heads * D)
        _gather(
            t.calls,
            (
                keys.reshape(M * t.heads, D), nothing, y, w.starts, w.asking, longest, t.heads, asked,
                key, cut, w.stride, mix.reshape(M * t.heads, D), sums,
            ),
        )  # fmt: skip
        mixed = _apply(t, _OF_VALUE, mix)
        _shift_heads(t.calls, (mixed, _part(t, biases, 0, 2 * D, D), sums))
    else:
        keys, mix, mixed = _apply(t, _KEY_VALUE, y), _empty(0, 0), _empty(M, D)
        _attend(
            t.calls,
            (
                query, _part(t, biases, 0, 0, D), keys, _part(t, biases, 0, D, 2 * D), 0, w.starts, w.asking,
                longest, t.heads, asked, key, cut, w.stride, mixed,
            ),
        )  # fmt: skip
    _, hidden, more = _behind_attention(t, w, r, mixed, asked, last)

    if reading:
        states[:] = hidden
        return 0.0

    # The head.
    z, inputs, head_stats = _apply(t, _DENSE, hidden), _empty(M, D), _empty(M, 2)
    shift, weight, bias = _value(t, _DENSE_BIAS, D), _value(t, _HEAD, D), _value(t, _HEAD + 1, D)
    _transform(t.calls, (z, shift, weight, bias, t.eps[1], head_stats, inputs))
    logits = _apply(t, _TOKENS, inputs)
    given = logits, _value(t, _DECODER_BIAS, V), w.targets, factor, _slope(t, _DECODER_BIAS, V)
    loss = _cross_entropy(t.calls, given)

    # Backward.
    d_y = _back(t, _TOKENS, logits, inputs)
    slopes = _slope(t, _DENSE_BIAS, D), _slope(t, _HEAD, D), _slope(t, _HEAD + 1, D)
    _transform_backward(t.calls, (z, shift, weight, head_stats, d_y, slopes[0], slopes[1], slopes[2]))
    d_y = _back(t, _DENSE, d_y, hidden)
    d = np.zeros((M, D), dtype=np.float32)
    d_mixed = _before_attention(t, w, more, d, d_y, asked, last)
    if w.gathering:
        d_sums = _empty(M, t.heads)
        _shift_factors_backward(t.calls, (d_mixed, _part(t, biases, 0, 2 * D, D), d_sums))
        _shift_heads_backward(t.calls, (d_mixed, sums, _part(t, biases, 1, 2 * D, D)))
        d_mix = _back(t, _OF_VALUE, d_mixed, mix)
        d_keys, d_y = _empty(M, t.heads * D), _empty(N, D)
        _gather_backward(
            t.calls,
            (
                keys.reshape(M * t.heads, D), nothing, y, w.starts, w.asking, longest, t.heads, asked,
                key, cut, w.stride, d_mix.reshape(M * t.heads, D), d_sums,
                d_keys.reshape(M * t.heads, D), d_y,
            ),
        )  # fmt: skip
        _add_outer(t, _KEY, query, d_keys)
        d_query = _apply(t, _KEY, d_keys)
        _shift_heads_backward(t.calls, (d_query, ones, _part(t, biases, 1, 0, D)))
        _add_rows(t.calls, (d_y, masked, _back(t, _QUERY, d_query, asking)))
    else:
        d_query, d_keys = _empty(M, D), _empty(N, 2 * D)
        _attend_backward(
            t.calls,
            (
                query, _part(t, biases, 0, 0, D), keys, _part(t, biases, 0, D, 2 * D), 0, w.starts, w.asking,
                longest, t.heads, asked, key, cut, w.stride, d_mixed, nothing, d_query, d_keys,
                _part(t, biases, 1, 0, D), _part(t, biases, 1, D, 2 * D),
            ),
        )  # fmt: skip
        d_asking = _back(t, _QUERY, d_query, asking)
        d_y = _back(t, _KEY_VALUE, d_keys, y)
        _add_rows(t.calls, (d_y, masked, d_asking))
    if not alone:
        whole = np.zeros((N, D), dtype=np.float32)
        for m in range(M):
            for j in range(D):
                whole[masked[m], j] = d[m, j]
        d = whole
    for k in range(last - 1, -1, -1):
        entered, own, more = kept.pop()
        d_mixed = _before_attention(t, w, more, d, d_y, place, k)
        row = _VECTORS + k * _EACH_VECTORS + _PROJECTION_BIAS
        shift, slope, d_own = _value(t, row, 3 * D), _slope(t, row, 3 * D), _empty(N, 3 * D)
        _attend_backward(
            t.calls,
            (
                own, shift, own, shift, D, w.starts, w.starts, longest, t.heads, place,
                sites[3 * k + 1], cut, w.stride, d_mixed, nothing, d_own, d_own, slope, slope,
            ),
        )  # fmt: skip
        if k == 0 and few:
            d_own = _summed(t, d_own, which, len(ids))
        d_y = _back(t, _MATRICES + k * _EACH_MATRICES + _PROJECTION, d_own, entered)
    if few:
        d = _summed(t, d, _some(which, masked) if alone else which, len(ids))
        if alone:
            d_y = _summed(t, d_y, which, len(ids))
    if t.post:
        _add_rows(t.calls, (d, np.arange(len(d)), d_y))
    else:
        weight, slopes_of = _value(t, _ENTERING, D), (_slope(t, _ENTERING, D), _slope(t, _ENTERING + 1, D))
        _norm_backward(t.calls, (embedded, weight, entering_stats, d_y, d, slopes_of[0], slopes_of[1]))
    _embed_backward(
        t.calls,
        (
            ids, at, place, tokens, positions, _value(t, _EMBEDDING, D), sites[0], cut, embedding_stats, d,
            _matrix(t.matrices[_TOKENS, _SUM], V, D), _matrix(t.vectors[_POSITIONS, 1], t.places, D),
            _slope(t, _EMBEDDING, D), _slope(t, _EMBEDDING + 1, D),
        ),
    )  # fmt: skip
    return loss


@kernel(**_INNER)
def _summed(t, x, which, rows):  # type: ignore[no-untyped-def]
    """Return the sums of the rows of x that go to each of so many rows."""
    out = np.zeros((rows, x.shape[1]), dtype=np.float32)
    _sum_rows(t.calls, (x, which, out))
    return out


_T = types.NamedTuple([_I, _MI, _MI, _V, _i, _i, _i, _b], _Tables)
_W = types.NamedTuple([*[_I] * 7, _i, _b, types.uint64[::1], _i, _i], _Words)
#: No kernel calls this one.  It is here to be compiled in turn with those that it calls.
_CALLS.of(_run, _T, _W, _f, _b, _M)
