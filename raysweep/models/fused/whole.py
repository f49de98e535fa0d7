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
from numba import types

from raysweep.compiled import kernel
from raysweep.compiled.addresses import Calls, allocated, freed, read, write
from raysweep.compiled.scalars import COMPILED
from raysweep.models.fused import attention, kernels, products
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.sublayer import gathers
from raysweep.models.fused.weights import Matrix, Vector

if TYPE_CHECKING:
    from raysweep.models.fused.encoder import EncoderWeights, Norm

_F0, _F1 = np.float32(0.0), np.float32(1.0)

# Numbers below are numpy's: numba compiles a kernel anew for each of Python's that another one hands to it.

#: Columns of the table of matrices: addresses of the matrix [O, I] and of its gradient's sum, O, I, heads,
#: the addresses of both layouts (`raysweep.models.fused.products.Product`), and whether each is made.
_LOW, _SUM, _ROWS, _COLUMNS, _HEADS, _APPLIED, _RETURNED, _HAS_APPLIED, _HAS_RETURNED = np.arange(9)

#: Rows of the table of matrices.  Query, key, value, and key and value are parts of the last layer's
#: projection.  Each layer has rows of its own, from the last number of the first line on.
_TOKENS, _DENSE, _QUERY, _KEY, _VALUE, _KEY_VALUE, _MATRICES = np.arange(7)
_PROJECTION, _OUTPUT, _UP, _DOWN, _EACH_MATRICES = np.arange(5)

#: Rows of the table of vectors, whose columns are the addresses of values and of the gradient's sum.  A
#: LayerNorm has a row for its weight and one for its bias; `_ENTERING` is that before the first layer of a
#: pre-norm encoder, and `_ONE` and `_TWO` are those behind a layer's sublayers.
_POSITIONS, _DECODER_BIAS, _DENSE_BIAS = np.arange(3)
_EMBEDDING, _HEAD, _ENTERING, _VECTORS = np.arange(3, 11, 2)
_PROJECTION_BIAS, _OUTPUT_BIAS, _UP_BIAS, _DOWN_BIAS = np.arange(4)
_ONE, _TWO, _EACH_VECTORS = np.arange(4, 10, 2)

#: Sites of dropout behind a layer's sublayers.
_BEHIND_ATTENTION, _BEHIND_MLP = np.array([1, 2])

#: Bytes in a line of the cache, columns of LayerNorm's statistics, and columns of a panel.
_LINE, _STATISTICS, _PANEL = np.array([64, 2, products.COLUMNS])
_0, _1 = np.arange(2)

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

    `ids` and `at` [n] are the words that enter, and `which` [N] says which of them each word of the chunk is;
    without entries each word enters itself (`raysweep.models.fused.encoder.Pass`).  `asked` [M] are the
    places of the masked words, and `rows` [M] their rows in the residual stream before the last layer.
    `longest` are the words of the longest sentence.  With `gathering`, masked words attend without keys and
    values.
    """

    ids: np.ndarray
    at: np.ndarray
    which: np.ndarray
    place: np.ndarray
    asked: np.ndarray
    rows: np.ndarray
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
        self._vocabulary, self._width = weights.tokens.low.shape
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
        """Return whether all products and sums over rows are compiled ones, of arrays in C order."""
        # The residual stream is float32, and here it is what products take.
        return weights.dtype == torch.float32 and all(
            matrix.low.is_contiguous()
            and products.serves(matrix.low)
            and products.serves_sum(matrix.gradient, matrix.heads, matrix.gradient.dtype)
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
        pairs = None if cut else chunk.distinct(self._vocabulary)
        ids, at, which = pairs or (chunk.ids, chunk.at, np.empty(0, dtype=np.int64))
        alone = self._tables.layers == 1 and pairs is not None
        return _Words(
            ids=ids,
            at=at,
            which=which,
            place=chunk.place,
            asked=chunk.place[chunk.masked],
            rows=which[chunk.masked] if alone else chunk.masked,
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
def _new(rows, columns):  # type: ignore[no-untyped-def]
    """Return an empty matrix that begins where a line of the cache does."""
    place = allocated(_LINE, (4 * rows * columns // _LINE + 1) * _LINE)
    if place == 0:
        raise MemoryError("no memory for the passes of a chunk")
    return place, rows, columns


@kernel(**_INNER)
def _filled(rows, columns, value):  # type: ignore[no-untyped-def]
    found = _new(rows, columns)
    for n in range(rows * columns):
        write(found[0], n, value)
    return found


@kernel(**_INNER)
def _rows(x, rows):  # type: ignore[no-untyped-def]
    """Return the rows of x with these numbers."""
    out = _new(len(rows), x[2])
    for n in range(len(rows)):
        to, place = n * x[2], rows[n] * x[2]
        for j in range(x[2]):
            write(out[0], to + j, read(x[0], place + j))
    return out


@kernel(**_INNER)
def _of(numbers):  # type: ignore[no-untyped-def]
    """Return an array of the chunk as kernels take it; it is the caller's, and lasts."""
    return np.int64(numbers.ctypes.data), np.int64(len(numbers))


@kernel(**_INNER)
def _apply(t, i, x):  # type: ignore[no-untyped-def]
    """Do what `Matrix.apply` does with the matrix in row i of the table."""
    m, rows, columns, heads = t.matrices, t.matrices[i, _ROWS], t.matrices[i, _COLUMNS], t.matrices[i, _HEADS]
    own = rows // heads
    panels = m[i, _APPLIED], heads, (own + products.COLUMNS - 1) // products.COLUMNS, columns, _PANEL
    if m[i, _HAS_APPLIED] == 0:
        _turned(t.calls, ((m[i, _LOW], heads, own, columns), panels))
        m[i, _HAS_APPLIED] = 1
    out = _new(x[1], rows)
    _product(t.calls, (x, panels, out))
    return out


@kernel(**_INNER)
def _back(t, i, d, x):  # type: ignore[no-untyped-def]
    """Do what `Matrix.back` does, and give back the memory of d and x."""
    _outer(t.calls, (d, x, (t.matrices[i, _SUM], t.matrices[i, _ROWS], t.matrices[i, _COLUMNS])))
    freed(x[0])
    out = _through(t, i, d)
    freed(d[0])
    return out


@kernel(**_INNER)
def _through(t, i, d):  # type: ignore[no-untyped-def]
    """Do what `Matrix.through` does."""
    m, rows, columns, heads = t.matrices, t.matrices[i, _ROWS], t.matrices[i, _COLUMNS], t.matrices[i, _HEADS]
    own = rows // heads
    panels = m[i, _RETURNED], heads, (columns + products.COLUMNS - 1) // products.COLUMNS, own, _PANEL
    if m[i, _HAS_RETURNED] == 0:
        _straight(t.calls, ((m[i, _LOW], heads, own, columns), panels))
        m[i, _HAS_RETURNED] = 1
    out = _new(d[1], heads * columns)
    _product(t.calls, (d, panels, out))
    return out


@kernel(**_INNER)
def _summed(t, x, which, rows):  # type: ignore[no-untyped-def]
    """Return the sums of the rows of x that go to each of so many rows; give back the memory of x."""
    out = _filled(rows, x[2], _F0)
    _sum_rows(t.calls, (x, _of(which), out))
    freed(x[0])
    return out


@kernel(**_INNER)
def _forward_junction(t, w, r, o, place, k, site):  # type: ignore[no-untyped-def]
    """Do what `Pass._junction` does behind attention or the MLP; give back the memory of o."""
    rows, D = r[1], r[2]
    base = _VECTORS + k * _EACH_VECTORS
    shift, norm = (_OUTPUT_BIAS, _ONE) if site == _BEHIND_ATTENTION else (_DOWN_BIAS, _TWO)
    s, stats, y = _new(rows, D), _new(rows, _STATISTICS), _new(rows, D)
    # The residual stream behind is s itself without a LayerNorm in it, and the kernel writes no other.
    out, written, v = (_new(rows, D), rows, t.vectors) if t.post else (s, _0, t.vectors)
    _junction(
        t.calls,
        (
            r, o, (v[base + shift, 0], D), place, w.sites[3 * k + 1 + site], w.cut,
            (v[base + norm, 0], D), (v[base + norm + 1, 0], D), t.eps[2 + 2 * k + site],
            s, stats, (out[0], written, D), y,
        ),
    )  # fmt: skip
    freed(o[0])
    return s, stats, out, y


@kernel(**_INNER)
def _backward_junction(t, w, d, d_y, s, stats, place, k, site):  # type: ignore[no-untyped-def]
    """Do what `Pass._junction_backward` does; give back the memory of all but d."""
    D = d[2]
    base = _VECTORS + k * _EACH_VECTORS
    shift, norm = (_OUTPUT_BIAS, _ONE) if site == _BEHIND_ATTENTION else (_DOWN_BIAS, _TWO)
    d_o = _new(d[1], D)
    v = t.vectors
    _junction_backward(
        t.calls,
        (
            t.post, d, d_y, place, w.sites[3 * k + 1 + site], w.cut, (v[base + norm, 0], D), s, stats, d_o,
            (v[base + shift, 1], D), (v[base + norm, 1], D), (v[base + norm + 1, 1], D),
        ),
    )  # fmt: skip
    freed(d_y[0])
    freed(s[0])
    freed(stats[0])
    return d_o


@kernel(**_INNER)
def _behind_attention(t, w, r, mixed, place, k, mine):  # type: ignore[no-untyped-def]
    """Return the residual stream, the next sublayer's input, and what the backward pass of layer k needs.

    With `mine`, the memory of r is given back.
    """
    base = _MATRICES + k * _EACH_MATRICES
    s1, stats1, out1, y1 = _forward_junction(
        t, w, r, _apply(t, base + _OUTPUT, mixed), place, k, _BEHIND_ATTENTION
    )
    if mine:
        freed(r[0])
    slope = _apply(t, base + _UP, y1)
    g = _new(slope[1], slope[2])
    _gelu(t.calls, (slope, (t.vectors[_VECTORS + k * _EACH_VECTORS + _UP_BIAS, 0], g[2]), g))
    o = _apply(t, base + _DOWN, g)
    s2, stats2, out2, y2 = _forward_junction(t, w, out1, o, place, k, _BEHIND_MLP)
    if t.post:
        freed(out1[0])
    return out2, y2, (mixed, s1, stats1, y1, slope, g, s2, stats2)


@kernel(**_INNER)
def _before_attention(t, w, kept, d, d_y, place, k):  # type: ignore[no-untyped-def]
    """Turn d into the gradient of the stream before layer k; return that of attention's mixtures.

    Memory of all but d is given back.
    """
    mixed, s1, stats1, y1, slope, g, s2, stats2 = kept
    base = _MATRICES + k * _EACH_MATRICES
    d_m = _backward_junction(t, w, d, d_y, s2, stats2, place, k, _BEHIND_MLP)
    d_g = _back(t, base + _DOWN, d_m, g)
    _gelu_backward(t.calls, (slope, d_g, (t.vectors[_VECTORS + k * _EACH_VECTORS + _UP_BIAS, 1], d_g[2])))
    freed(slope[0])
    d_y = _back(t, base + _UP, d_g, y1)
    d_o = _backward_junction(t, w, d, d_y, s1, stats1, place, k, _BEHIND_ATTENTION)
    return _back(t, base + _OUTPUT, d_o, mixed)


@kernel(**_INNER)
def _forget(t, kept):  # type: ignore[no-untyped-def]
    """Give back what only a backward pass needs."""
    mixed, s1, stats1, y1, slope, g, s2, stats2 = kept
    for x in (mixed, s1, stats1, y1, slope, g, stats2):
        freed(x[0])
    if t.post:
        freed(s2[0])  # otherwise it is the residual stream


@kernel(**COMPILED)
def _run(t, w, factor, reading, states):  # type: ignore[no-untyped-def]
    """Do what `Whole.learn` does; or with `reading` write what `Whole.encode` returns, to `states` [M, D]."""
    v, V, D = t.vectors, t.matrices[_TOKENS, _ROWS], t.matrices[_TOKENS, _COLUMNS]
    # Entering words, words of the chunk, and words that ask.
    n, N, M, last = np.int64(len(w.ids)), np.int64(len(w.place)), np.int64(len(w.masked)), t.layers - 1
    few, alone = len(w.which) > 0, len(w.which) > 0 and last == 0
    ids, at, place, asked = _of(w.ids), _of(w.at), _of(w.place), _of(w.asked)
    starts, asking, masked = _of(w.starts), _of(w.asking), _of(w.masked)
    cut, longest, heads, stride = w.cut, w.longest, t.heads, w.stride

    # Forward.
    tokens, positions = (t.matrices[_TOKENS, _LOW], V, D), (v[_POSITIONS, 0], t.places, D)
    embedded, embedding_stats, y, entering_stats = (
        _new(n, D), _new(n, _STATISTICS), _new(n, D), _new(n, _STATISTICS)
    )  # fmt: skip
    _embed(
        t.calls,
        (
            ids, at, place, tokens, positions, (v[_EMBEDDING, 0], D), (v[_EMBEDDING + 1, 0], D), t.eps[0],
            w.sites[0], cut, embedding_stats, embedded, y,
        ),
    )  # fmt: skip
    if not t.post:
        weight, bias = (v[_ENTERING, 0], D), (v[_ENTERING + 1, 0], D)
        _norm(t.calls, (embedded, weight, bias, t.eps[2], entering_stats, y))
    r, mine = embedded, False
    kept = np.empty((t.layers, 10), dtype=np.int64)
    for k in range(last):
        entered, own = y, _apply(t, _MATRICES + k * _EACH_MATRICES + _PROJECTION, y)
        if k == 0 and few:
            each = _rows(own, w.which)
            freed(own[0])
            own, r, mine = each, _rows(r, w.which), True
        shift, mixed = (v[_VECTORS + k * _EACH_VECTORS + _PROJECTION_BIAS, 0], 3 * D), _new(N, D)
        _attend(
            t.calls,
            (
                own, shift, own, shift, D, starts, starts, longest, heads, place,
                w.sites[3 * k + 1], cut, stride, mixed,
            ),
        )  # fmt: skip
        r, y, more = _behind_attention(t, w, r, mixed, place, k, mine)
        mine = t.post or reading
        if reading:
            freed(entered[0])
            freed(own[0])
            _forget(t, more)
        else:
            kept[k, 0], kept[k, 1] = entered[0], own[0]
            for j in range(8):
                kept[k, 2 + j] = more[j][0]

    # The last layer: masked words ask (`raysweep.models.fused.sublayer`).
    biases = v[_VECTORS + last * _EACH_VECTORS + _PROJECTION_BIAS]
    nothing = _filled(_1, D, _F0)
    zeros = nothing[0], D
    before = r
    r = _rows(r, w.rows)
    if mine:
        freed(before[0])
    if alone:
        before = y
        y = _rows(y, w.which)
        freed(before[0])
    those = _rows(y, w.masked)
    query = _apply(t, _QUERY, those)
    ones, sums = _filled(M, heads, _F1), _new(M, heads)
    if w.gathering:
        _shift_heads(t.calls, (query, (biases[0], D), ones))
        # Those of every head side by side.
        keys, mix = _through(t, _KEY, query), _new(M, heads * D)
        _gather(
            t.calls,
            (
                (keys[0], M * heads, D), zeros, y, starts, asking, longest, heads, asked,
                w.sites[3 * last + 1], cut, stride, (mix[0], M * heads, D), sums,
            ),
        )  # fmt: skip
        mixed = _apply(t, _VALUE, mix)
        _shift_heads(t.calls, (mixed, (biases[0] + 8 * D, D), sums))
    else:
        keys, mix, mixed = _apply(t, _KEY_VALUE, y), _new(_0, _0), _new(M, D)
        _attend(
            t.calls,
            (
                query, (biases[0], D), keys, (biases[0] + 4 * D, 2 * D), _0, starts, asking,
                longest, heads, asked, w.sites[3 * last + 1], cut, stride, mixed,
            ),
        )  # fmt: skip
    r, hidden, more = _behind_attention(t, w, r, mixed, asked, last, True)
    if t.post or reading:
        freed(r[0])
    if reading:
        _forget(t, more)
        for j in range(M * D):
            write(np.int64(states.ctypes.data), j, read(hidden[0], j))
        for x in (
            embedded, embedding_stats, entering_stats, nothing, y, those, query, ones, sums, keys, mix, hidden
        ):  # fmt: skip
            freed(x[0])
        return 0.0

    # The head.
    z, inputs, head_stats = _apply(t, _DENSE, hidden), _new(M, D), _new(M, _STATISTICS)
    shift, weight = (v[_DENSE_BIAS, 0], D), (v[_HEAD, 0], D)
    _transform(t.calls, (z, shift, weight, (v[_HEAD + 1, 0], D), t.eps[1], head_stats, inputs))
    logits = _apply(t, _TOKENS, inputs)
    slope = v[_DECODER_BIAS, 1], V
    loss = _cross_entropy(t.calls, (logits, (v[_DECODER_BIAS, 0], V), _of(w.targets), factor, slope))

    # Backward.
    d_y = _back(t, _TOKENS, logits, inputs)
    slopes = (v[_DENSE_BIAS, 1], D), (v[_HEAD, 1], D), (v[_HEAD + 1, 1], D)
    _transform_backward(t.calls, (z, shift, weight, head_stats, d_y, slopes[0], slopes[1], slopes[2]))
    freed(z[0])
    freed(head_stats[0])
    d_y = _back(t, _DENSE, d_y, hidden)
    d = _filled(M, D, _F0)
    d_mixed = _before_attention(t, w, more, d, d_y, asked, last)
    if w.gathering:
        d_sums = _new(M, heads)
        _shift_factors_backward(t.calls, (d_mixed, (biases[0] + 8 * D, D), d_sums))
        _shift_heads_backward(t.calls, (d_mixed, sums, (biases[1] + 8 * D, D)))
        d_mix = _back(t, _VALUE, d_mixed, mix)
        d_keys, d_y = _new(M, heads * D), _new(N, D)
        _gather_backward(
            t.calls,
            (
                (keys[0], M * heads, D), zeros, y, starts, asking, longest, heads, asked,
                w.sites[3 * last + 1], cut, stride, (d_mix[0], M * heads, D), d_sums,
                (d_keys[0], M * heads, D), d_y,
            ),
        )  # fmt: skip
        for x in (y, keys, d_mix, d_sums):
            freed(x[0])
        # The product was that with the weight itself, so queries stand here where outputs do elsewhere.
        _outer(t.calls, (query, d_keys, (t.matrices[_KEY, _SUM], D, D)))
        freed(query[0])
        d_query = _apply(t, _KEY, d_keys)
        freed(d_keys[0])
        _shift_heads_backward(t.calls, (d_query, ones, (biases[1], D)))
        d_those = _back(t, _QUERY, d_query, those)
    else:
        d_query, d_keys = _new(M, D), _new(N, 2 * D)
        _attend_backward(
            t.calls,
            (
                query, (biases[0], D), keys, (biases[0] + 4 * D, 2 * D), _0, starts, asking,
                longest, heads, asked, w.sites[3 * last + 1], cut, stride, d_mixed, zeros, d_query, d_keys,
                (biases[1], D), (biases[1] + 4 * D, 2 * D),
            ),
        )  # fmt: skip
        for x in (d_mixed, query, keys, mix):
            freed(x[0])
        d_those = _back(t, _QUERY, d_query, those)
        d_y = _back(t, _KEY_VALUE, d_keys, y)
    _add_rows(t.calls, (d_y, masked, d_those))
    for x in (d_those, ones, sums):
        freed(x[0])
    if not alone:
        some, d = d, _filled(N, D, _F0)
        for m in range(M):
            to = w.masked[m] * D
            for j in range(D):
                write(d[0], to + j, read(some[0], m * D + j))
        freed(some[0])
    for k in range(last - 1, -1, -1):
        F = t.matrices[_MATRICES + k * _EACH_MATRICES + _UP, _ROWS]
        held = kept[k]
        entered, own = (held[0], n if k == 0 else N, D), (held[1], N, 3 * D)
        d_mixed = _before_attention(
            t, w,
            (
                (held[2], N, D), (held[3], N, D), (held[4], N, _STATISTICS), (held[5], N, D),
                (held[6], N, F), (held[7], N, F), (held[8], N, D), (held[9], N, _STATISTICS),
            ),
            d, d_y, place, k,
        )  # fmt: skip
        row, d_own = v[_VECTORS + k * _EACH_VECTORS + _PROJECTION_BIAS], _new(N, 3 * D)
        shift, slope = (row[0], 3 * D), (row[1], 3 * D)
        _attend_backward(
            t.calls,
            (
                own, shift, own, shift, D, starts, starts, longest, heads, place,
                w.sites[3 * k + 1], cut, stride, d_mixed, zeros, d_own, d_own, slope, slope,
            ),
        )  # fmt: skip
        freed(d_mixed[0])
        freed(own[0])
        if k == 0 and few:
            d_own = _summed(t, d_own, w.which, n)
        d_y = _back(t, _MATRICES + k * _EACH_MATRICES + _PROJECTION, d_own, entered)
    if few:
        d = _summed(t, d, w.rows if alone else w.which, n)
        if alone:
            d_y = _summed(t, d_y, w.which, n)
    if t.post:
        for j in range(n * D):
            write(d[0], j, read(d[0], j) + read(d_y[0], j))
    else:
        slopes = (v[_ENTERING, 1], D), (v[_ENTERING + 1, 1], D), (v[_ENTERING, 0], D)
        _norm_backward(t.calls, (embedded, slopes[2], entering_stats, d_y, d, slopes[0], slopes[1]))
    _embed_backward(
        t.calls,
        (
            ids, at, place, tokens, positions, (v[_EMBEDDING, 0], D), w.sites[0], cut, embedding_stats, d,
            (t.matrices[_TOKENS, _SUM], V, D), (v[_POSITIONS, 1], t.places, D),
            (v[_EMBEDDING, 1], D), (v[_EMBEDDING + 1, 1], D),
        ),
    )  # fmt: skip
    for x in (d, d_y, embedded, embedding_stats, entering_stats, nothing):
        freed(x[0])
    return loss


_T = types.NamedTuple([_I, _MI, _MI, _V, _i, _i, _i, _b], _Tables)
_W = types.NamedTuple([*[_I] * 10, _i, _b, types.uint64[::1], _i, _i], _Words)
#: No kernel calls this one.  It is here to be compiled in turn with those that it calls.
_CALLS.of(_run, _T, _W, _f, _b, _M)
