"""Tables of an encoder's weights, and the arrays of a chunk, as its compiled passes take them (`.whole`).

Parameters, sums of gradients and layouts of matrices are known by their addresses, which are valid as long as
the weights are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from raysweep.models.fused import products
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.products import array
from raysweep.models.fused.sublayer import gathers
from raysweep.models.fused.weights import Matrix, Vector

if TYPE_CHECKING:
    from raysweep.models.fused.encoder_weights import EncoderWeights, Norm

# Numbers below are numpy's: numba compiles a kernel anew for each of Python's that another one hands to it.

#: Columns of the table of matrices: addresses of the matrix [O, I] and of its gradient's sum, O, I, heads,
#: the number of its first linear module and how many modules it has, the addresses of both layouts
#: (`raysweep.models.fused.products.Product`), and whether each is made.
LOW, SUM, OUTPUTS, INPUTS, HEADS, FIRST, MODULES, APPLIED, RETURNED, HAS_APPLIED, HAS_RETURNED = np.arange(11)

#: Rows of the table of matrices.  Query, key, value, and key and value are parts of the last layer's
#: projection.  Each layer has rows of its own, from the last number of the first line on.
TOKENS, DENSE, QUERY, KEY, VALUE, KEY_VALUE, MATRICES = np.arange(7)
PROJECTION, OUTPUT, UP, DOWN, EACH_MATRICES = np.arange(5)

#: Numbers of linear modules: those of the first five rows, and of each layer query, key, value, output, up
#: and down.  LayerNorms have the numbers behind them, in the order of `Tables.eps`, and tables of embeddings
#: the last.
LAYER_MODULES, EACH_MODULES = np.array([5, 6])

#: Rows of the table of vectors, whose columns are the addresses of values and of the gradient's sum; `WORDS`
#: and `POSITIONS` are those of the tables of embeddings.  A LayerNorm has a row for its weight and one for
#: its bias; `ENTERING` is that before the first layer of a pre-norm encoder, and `ONE` and `TWO` are those
#: behind a layer's sublayers.
WORDS, POSITIONS, DECODER_BIAS, DENSE_BIAS = np.arange(4)
EMBEDDING, HEAD, ENTERING, VECTORS = np.arange(4, 12, 2)
PROJECTION_BIAS, OUTPUT_BIAS, UP_BIAS, DOWN_BIAS = np.arange(4)
ONE, TWO, EACH_VECTORS = np.arange(4, 10, 2)

#: Numbers of LayerNorms in `Tables.eps`; behind them are two for each layer.
OF_EMBEDDING, OF_HEAD, OF_ENTERING = np.arange(3)

#: Numbers in a line of the cache.
_LINE = 16


class Tables(NamedTuple):
    """An encoder's matrices, vectors and sizes; `calls` is what `Calls.addresses` returns.

    `eps` are those of the LayerNorms.  A product takes at least the `fewest` rows, and multiples of `depth`
    terms in a layout.
    """

    calls: tuple[np.ndarray, np.ndarray]
    matrices: np.ndarray
    vectors: np.ndarray
    eps: np.ndarray
    layers: int
    heads: int
    places: int
    fewest: int
    depth: int
    post: bool


class Words(NamedTuple):
    """The arrays of a `Chunk`, and its dropout (`raysweep.models.fused.encoder.dropped`).

    `ids` and `at` [n] are the words that enter, and `which` [N] says which of them each word of the chunk is;
    without entries each word enters itself (`raysweep.models.fused.encoder.Pass`).  `asked` [M] are the
    places of the masked words, and `rows` [M] their rows in the residual stream before the last layer.
    `longest` are the words of the longest sentence.  With `gathering`, masked words attend without keys and
    values.

    With `apart`, gradients of weights are not summed: their squared norms by sentence are written to `norms`
    [2, modules, S], those of weights and of biases, which are zeros before.  With `again`, another backward
    pass follows.
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
    apart: bool
    again: bool
    norms: np.ndarray


def serves(weights: EncoderWeights, *, apart: bool = False) -> bool:
    """Return whether parameters are float32 in C order, and all products are compiled ones.

    So are their sums, unless gradients are to be `apart`.
    """
    plain = all(p.dtype == torch.float32 and p.is_contiguous() for p in weights.parameters)
    return plain and all(
        matrix.low.dtype == weights.dtype
        and all(map(products.serves, (matrix.by_head, matrix.by_head.mT)))
        and (apart or products.serves_sum(matrix.gradient, matrix.heads, array(matrix.low).dtype))
        for matrix in _matrices(weights)
    )


def tables(weights: EncoderWeights, calls: tuple[np.ndarray, np.ndarray]) -> tuple[Tables, np.ndarray]:
    """Return the tables of weights, and the memory of the layouts, which is to last as long as these.

    No layout is made yet.  `calls` are the addresses of kernels for the weights' precision.
    """
    norms = [weights.embedding_norm, weights.head_norm, weights.layers[0].attention_norm]
    embedding = Vector(weights.token_values, weights.tokens.gradient)
    vectors = [embedding, weights.positions, weights.decoder_bias, weights.dense_bias, *_vectors(norms)]
    for k, layer in enumerate(weights.layers):
        behind = weights.behind(k)
        norms += behind
        vectors += layer.projection_bias, layer.output_bias, layer.up_bias, layer.down_bias
        vectors += _vectors(behind)
    matrices = list(_matrices(weights))
    tiles = products.TILES and weights.dtype == torch.bfloat16
    ends = np.cumsum([size for matrix in matrices for size in _sizes(matrix, products.DEPTH if tiles else 1)])
    # Zeros stay behind the last columns; what is not laid out takes no memory.
    layouts = np.zeros(int(ends[-1]) + _LINE, dtype=np.float32)
    first = layouts.ctypes.data + -layouts.ctypes.data % (4 * _LINE)
    places = first + 4 * np.concatenate([[0], ends[:-1]])
    rows = zip(matrices, _modules(len(weights.layers)), places[::2], places[1::2], strict=True)
    made = Tables(
        calls=calls,
        matrices=np.array(
            [
                [m.low.data_ptr(), m.gradient.ctypes.data, *m.low.shape, m.heads, *modules, one, two, 0, 0]
                for m, modules, one, two in rows
            ]
        ),
        vectors=np.array([[v.value.ctypes.data, v.gradient.ctypes.data] for v in vectors]),
        eps=np.array([norm.eps for norm in norms]),
        layers=len(weights.layers),
        heads=weights.heads,
        places=len(weights.positions.value),
        fewest=products.SIDE if tiles else 0,
        depth=products.DEPTH if tiles else 1,
        post=weights.final_norm is None,
    )
    return made, layouts


def forget(t: Tables) -> None:
    """Let matrices be laid out anew at their next products."""
    t.matrices[:, HAS_APPLIED:] = 0


def words(
    t: Tables, chunk: Chunk, cut: int, stride: int, sites: Sequence[np.uint64], *, apart: bool = False
) -> Words:
    """Return what the passes take of a chunk; with `apart`, `norms` are to be replaced by zeros."""
    vocabulary, width = t.matrices[TOKENS, [OUTPUTS, INPUTS]].tolist()
    pairs = None if cut else chunk.distinct(vocabulary)
    ids, at, which = pairs or (chunk.ids, chunk.at, np.empty(0, dtype=np.int64))
    return Words(
        ids=ids,
        at=at,
        which=which,
        place=chunk.place,
        asked=chunk.place[chunk.masked],
        rows=which[chunk.masked] if pairs is not None and t.layers == 1 else chunk.masked,
        starts=chunk.starts,
        masked=chunk.masked,
        asking=chunk.asking,
        targets=chunk.targets,
        longest=chunk.longest,
        gathering=gathers(chunk, width, t.heads),
        sites=np.array(sites, dtype=np.uint64),
        cut=cut,
        stride=stride,
        apart=apart,
        again=False,
        norms=np.empty((2, 0, 0)),
    )


def _modules(layers: int) -> Iterator[tuple[int, int]]:
    """Yield the number of the first module, and how many modules, of the rows of the table of matrices."""
    yield from ((number, 1) for number in range(LAYER_MODULES))
    yield int(KEY), 2
    for first in range(LAYER_MODULES, LAYER_MODULES + EACH_MODULES * layers, EACH_MODULES):
        yield first, 3
        yield from ((number, 1) for number in range(first + 3, first + EACH_MODULES))


def _matrices(weights: EncoderWeights) -> Iterator[Matrix]:
    """Yield what is in the rows of the table of matrices."""
    last, heads = weights.layers[-1].projection, weights.heads
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


def _sizes(matrix: Matrix, depth: int) -> tuple[int, int]:
    """Return the terms of both layouts of a matrix: numbers of float32, or pairs of bfloat16."""
    rows, columns = matrix.low.shape
    wide, pair = products.COLUMNS, 4 // matrix.low.itemsize
    own = rows // matrix.heads
    return (
        matrix.heads * -(-own // wide) * -(-columns // pair // depth) * depth * wide,
        matrix.heads * -(-columns // wide) * -(-own // pair // depth) * depth * wide,
    )
