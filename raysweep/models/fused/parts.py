"""Parts of an encoder's compiled passes (`.passes`), which call kernels by their addresses (`.calls`).

A matrix is its address and two lengths here, a vector its address and its length
(`raysweep.compiled.addresses`).  Those that `low` made are in the precision of the weights, all others are
float32.  `t` are `Tables`, and `w` are `Words`; with `Words.apart`, norms of gradients are taken in place of
sums.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.addresses import allocated, freed, read, write
from raysweep.compiled.scalars import COMPILED
from raysweep.compiled.simd import itemsize
from raysweep.models.fused import products
from raysweep.models.fused.calls import (
    gelu,
    gelu_backward,
    junction,
    junction_backward,
    junction_norms,
    matrix_norms,
    norm_backward,
    norm_norms,
    norms_by_head,
    outer,
    product,
    round_rows,
    straight,
    sum_low,
    sum_rows,
    take_low,
    take_rows,
    turned,
)
from raysweep.models.fused.tables import (
    APPLIED,
    DOWN,
    DOWN_BIAS,
    EACH_MATRICES,
    EACH_MODULES,
    EACH_VECTORS,
    FIRST,
    HAS_APPLIED,
    HAS_RETURNED,
    HEADS,
    INPUTS,
    LAYER_MODULES,
    LOW,
    MATRICES,
    MODULES,
    OF_ENTERING,
    ONE,
    OUTPUT,
    OUTPUT_BIAS,
    OUTPUTS,
    RETURNED,
    SUM,
    TWO,
    UP,
    UP_BIAS,
    VECTORS,
)

F0, F1 = np.float32(0.0), np.float32(1.0)

#: Sites of dropout behind a layer's sublayers.
_BEHIND_ATTENTION, _BEHIND_MLP = np.array([1, 2])

#: Bytes in a line of the cache, columns of LayerNorm's statistics and of a panel, and bytes of a float32 and
#: of a float64.
_LINE, STATISTICS, _PANEL, _FLOAT, _DOUBLE = np.array([64, 2, products.COLUMNS, 4, 8])
ZERO, UNIT = np.arange(2)

#: Options of a part that only kernels call: numba need not compile the ways in from elsewhere.
INNER = {**COMPILED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


@kernel(**INNER)
def _matrix(rows, columns, size):  # type: ignore[no-untyped-def]
    """Return an empty matrix of numbers of so many bytes, which begins where a line of the cache does."""
    place = allocated(_LINE, (size * rows * columns // _LINE + 1) * _LINE)
    if place == 0:
        raise MemoryError("no memory for the passes of a chunk")
    return place, rows, columns


@kernel(**INNER)
def new(rows, columns):  # type: ignore[no-untyped-def]
    """Return an empty matrix."""
    return _matrix(rows, columns, _FLOAT)


@kernel(**INNER)
def low(t, rows, columns):  # type: ignore[no-untyped-def]
    """Return an empty matrix in the precision of the weights."""
    return _matrix(rows, columns, itemsize(t.calls[1]))


@kernel(**INNER)
def _terms(t, numbers):  # type: ignore[no-untyped-def]
    """Return how many terms of sums so many low numbers are."""
    return numbers * itemsize(t.calls[1]) // _FLOAT


@kernel(**INNER)
def _panels(t, place, heads, numbers, columns):  # type: ignore[no-untyped-def]
    """Return the layout of matrices [heads, numbers, columns] (`raysweep.models.fused.products.Product`)."""
    count = (columns + products.COLUMNS - 1) // products.COLUMNS
    return place, heads, count, (_terms(t, numbers) + t.depth - 1) // t.depth * t.depth, _PANEL


@kernel(**INNER)
def _multiplied(t, x, panels, columns):  # type: ignore[no-untyped-def]
    """Return x times the matrices in panels, which have so many columns in all.

    Where x has fewer rows than a product takes at least, it is copied, with rows of zeros below.
    """
    few, rows, terms = x[1] < t.fewest, max(x[1], t.fewest), _terms(t, x[2])
    given = x[0], rows, terms
    if few:
        given = new(rows, terms)
        for n in range(rows * terms):
            write(given[0], n, read(x[0], n) if n < x[1] * terms else F0)
    out = low(t, rows, columns)
    product(t.calls, (given, panels, out))
    if few:
        freed(given[0])
    return out[0], x[1], columns


@kernel(**INNER)
def filled(rows, columns, value):  # type: ignore[no-untyped-def]
    """Return a matrix that holds one number everywhere."""
    found = new(rows, columns)
    for n in range(rows * columns):
        write(found[0], n, value)
    return found


@kernel(**INNER)
def rows_of(t, x, rows):  # type: ignore[no-untyped-def]
    """Return the rows of x, float32, with these numbers."""
    out = new(np.int64(len(rows)), x[2])
    take_rows(t.calls, (x, array_of(rows), out))
    return out


@kernel(**INNER)
def low_rows_of(t, x, rows):  # type: ignore[no-untyped-def]
    """Return the rows of x, low, with these numbers."""
    out = low(t, np.int64(len(rows)), x[2])
    take_low(t.calls, (x, array_of(rows), out))
    return out


@kernel(**INNER)
def array_of(numbers):  # type: ignore[no-untyped-def]
    """Return the address and the length of a chunk's array, which outlives the call."""
    return np.int64(numbers.ctypes.data), np.int64(len(numbers))


@kernel(**INNER)
def apply(t, i, x):  # type: ignore[no-untyped-def]
    """Do what `Matrix.apply` does with the matrix in row i of the table."""
    m = t.matrices
    rows, columns, heads = m[i, OUTPUTS], m[i, INPUTS], m[i, HEADS]
    own = rows // heads
    panels = _panels(t, m[i, APPLIED], heads, columns, own)
    if m[i, HAS_APPLIED] == 0:
        turned(t.calls, ((m[i, LOW], heads, own, _terms(t, columns)), panels))
        m[i, HAS_APPLIED] = 1
    return _multiplied(t, x, panels, rows)


@kernel(**INNER)
def let_go(w, x):  # type: ignore[no-untyped-def]
    """Give back the memory of what the forward pass kept, unless another backward pass follows."""
    if not w.again:
        freed(x[0])


@kernel(**INNER)
def norms_at(w, module):  # type: ignore[no-untyped-def]
    """Return where the norms of a module's weight and bias are: vectors [S]."""
    sentences = np.int64(len(w.starts)) - 1
    place = w.norms.ctypes.data + _DOUBLE * module * sentences
    return (place, sentences), (place + _DOUBLE * w.norms.shape[1] * sentences, sentences)


@kernel(**INNER)
def learn(t, w, i, d, x):  # type: ignore[no-untyped-def]
    """Do what `Matrix.learn` does, or take the norms of each sentence."""
    m = t.matrices
    if not w.apart:
        outer(t.calls, (d, x, (m[i, SUM], m[i, OUTPUTS], m[i, INPUTS])))
        return
    weight, bias = norms_at(w, m[i, FIRST])
    if m[i, HEADS] > 1:
        norms_by_head(t.calls, (x, d, m[i, HEADS], weight, bias))
    else:
        parts = m[i, MODULES]
        those = (weight[0], parts, weight[1]), (bias[0], parts, bias[1])
        matrix_norms(t.calls, (x, d, bounds_of(w, d[1]), those[0], those[1]))


@kernel(**INNER)
def bounds_of(w, rows):  # type: ignore[no-untyped-def]
    """Return where sentences begin among so many words: all of the chunk, or the masked ones."""
    return array_of(w.starts) if rows == len(w.place) else array_of(w.asking)


@kernel(**INNER)
def norms_of(t, w, number):  # type: ignore[no-untyped-def]
    """Return where the norms of the LayerNorm are that has this number in `Tables.eps`."""
    return norms_at(w, LAYER_MODULES + EACH_MODULES * t.layers + number)


@kernel(**INNER)
def through_norm(t, w, number, row, x, stats, d_y, d):  # type: ignore[no-untyped-def]
    """Add the gradient of x to d, given d_y, that of LN(x); add to the parameters' sums, or take the norms.

    The LayerNorm has this row in the table of vectors, and this number in `Tables.eps`.
    """
    D, v = d[2], t.vectors
    weight = v[row, 0], D
    if w.apart:
        of_weight, of_bias = norms_of(t, w, number)
        norm_norms(t.calls, (x, weight, stats, d_y, d, bounds_of(w, x[1]), of_weight, of_bias))
    else:
        norm_backward(t.calls, (x, weight, stats, d_y, d, (v[row, 1], D), (v[row + 1, 1], D)))


@kernel(**INNER)
def back(t, w, i, d, x):  # type: ignore[no-untyped-def]
    """Do what `Matrix.back` does; give back the memory of d, and let go of x."""
    learn(t, w, i, d, x)
    let_go(w, x)
    out = through(t, i, d)
    freed(d[0])
    return out


@kernel(**INNER)
def through(t, i, d):  # type: ignore[no-untyped-def]
    """Do what `Matrix.through` does."""
    m = t.matrices
    rows, columns, heads = m[i, OUTPUTS], m[i, INPUTS], m[i, HEADS]
    own = rows // heads
    panels = _panels(t, m[i, RETURNED], heads, own, columns)
    if m[i, HAS_RETURNED] == 0:
        straight(t.calls, ((m[i, LOW], heads, own, columns), panels))
        m[i, HAS_RETURNED] = 1
    return _multiplied(t, d, panels, heads * columns)


@kernel(**INNER)
def summed(t, x, which, rows):  # type: ignore[no-untyped-def]
    """Return the sums of the rows of x that go to each of so many rows; give back the memory of x."""
    out = filled(rows, x[2], F0)
    sum_rows(t.calls, (x, array_of(which), out))
    freed(x[0])
    return out


@kernel(**INNER)
def low_summed(t, x, which, rows):  # type: ignore[no-untyped-def]
    """Do what `summed` does with low x: sums are float32, and low when they are done."""
    total = filled(rows, x[2], F0)
    sum_low(t.calls, (x, array_of(which), total))
    freed(x[0])
    if itemsize(t.calls[1]) == _FLOAT:
        return total
    out = low(t, rows, x[2])
    round_rows(t.calls, (total, out))
    freed(total[0])
    return out


@kernel(**INNER)
def _forward_junction(t, w, r, o, place, k, site):  # type: ignore[no-untyped-def]
    """Do what `Pass._junction` does behind attention or the MLP; give back the memory of o."""
    rows, D = r[1], r[2]
    base = VECTORS + k * EACH_VECTORS
    shift, norm = (OUTPUT_BIAS, ONE) if site == _BEHIND_ATTENTION else (DOWN_BIAS, TWO)
    s, stats, y = new(rows, D), new(rows, STATISTICS), low(t, rows, D)
    # The residual stream behind is s itself without a LayerNorm in it, and the kernel writes no other.
    out, written = (new(rows, D), rows) if t.post else (s, ZERO)
    v = t.vectors
    junction(
        t.calls,
        (
            r, o, (v[base + shift, 0], D), place, w.sites[3 * k + 1 + site], w.cut,
            (v[base + norm, 0], D), (v[base + norm + 1, 0], D), t.eps[OF_ENTERING + 2 * k + site],
            s, stats, (out[0], written, D), y,
        ),
    )  # fmt: skip
    freed(o[0])
    return s, stats, out, y


@kernel(**INNER)
def _backward_junction(t, w, d, d_y, s, stats, place, k, site):  # type: ignore[no-untyped-def]
    """Do what `Pass._junction_backward` does; give back the memory of d_y, and let go of s and stats."""
    D, v = d[2], t.vectors
    base = VECTORS + k * EACH_VECTORS
    shift, norm = (OUTPUT_BIAS, ONE) if site == _BEHIND_ATTENTION else (DOWN_BIAS, TWO)
    d_o, weight = low(t, d[1], D), (v[base + norm, 0], D)
    if w.apart:
        of_weight, of_bias = norms_of(t, w, OF_ENTERING + 2 * k + site)
        bounds = bounds_of(w, d[1])
        junction_norms(t.calls, (t.post, d, d_y, weight, s, stats, d_o, bounds, of_weight, of_bias))
    else:
        junction_backward(
            t.calls,
            (
                t.post, d, d_y, place, w.sites[3 * k + 1 + site], w.cut, weight, s, stats, d_o,
                (v[base + shift, 1], D), (v[base + norm, 1], D), (v[base + norm + 1, 1], D),
            ),
        )  # fmt: skip
    freed(d_y[0])
    let_go(w, s)
    let_go(w, stats)
    return d_o


@kernel(**INNER)
def behind_attention(t, w, r, mixed, place, k, mine):  # type: ignore[no-untyped-def]
    """Return the residual stream, the next sublayer's input, and what the backward pass of layer k needs.

    With `mine`, the memory of r is given back.
    """
    base = MATRICES + k * EACH_MATRICES
    s1, stats1, out1, y1 = _forward_junction(
        t, w, r, apply(t, base + OUTPUT, mixed), place, k, _BEHIND_ATTENTION
    )
    if mine:
        freed(r[0])
    slope = apply(t, base + UP, y1)
    g = low(t, slope[1], slope[2])
    gelu(t.calls, (slope, (t.vectors[VECTORS + k * EACH_VECTORS + UP_BIAS, 0], g[2]), g))
    o = apply(t, base + DOWN, g)
    s2, stats2, out2, y2 = _forward_junction(t, w, out1, o, place, k, _BEHIND_MLP)
    if t.post:
        freed(out1[0])
    return out2, y2, (mixed, s1, stats1, y1, slope, g, s2, stats2)


@kernel(**INNER)
def before_attention(t, w, kept, d, d_y, place, k):  # type: ignore[no-untyped-def]
    """Turn d into the gradient of the stream before layer k; return that of attention's mixtures.

    The memory of d_y is given back, and `kept` is let go.
    """
    mixed, s1, stats1, y1, slope, g, s2, stats2 = kept
    base = MATRICES + k * EACH_MATRICES
    d_m = _backward_junction(t, w, d, d_y, s2, stats2, place, k, _BEHIND_MLP)
    d_g = back(t, w, base + DOWN, d_m, g)
    gelu_backward(t.calls, (slope, d_g, (t.vectors[VECTORS + k * EACH_VECTORS + UP_BIAS, 1], d_g[2])))
    let_go(w, slope)
    d_y = back(t, w, base + UP, d_g, y1)
    d_o = _backward_junction(t, w, d, d_y, s1, stats1, place, k, _BEHIND_ATTENTION)
    return back(t, w, base + OUTPUT, d_o, mixed)


@kernel(**INNER)
def give_back(t, kept):  # type: ignore[no-untyped-def]
    """Give back the memory of what only a backward pass needs."""
    mixed, s1, stats1, y1, slope, g, s2, stats2 = kept
    for x in (mixed, s1, stats1, y1, slope, g, stats2):
        freed(x[0])
    if t.post:
        freed(s2[0])  # otherwise it is the residual stream
