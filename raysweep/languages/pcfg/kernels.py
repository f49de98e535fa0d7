"""Compiled kernel of the sparse engine: the inside and outside charts of many sentences at once.

Charts are [cells, LANES]: sentences of one length stand in the innermost dimension, so that every instruction
of `instructions.py` is a few vector operations, four vectors at a time.  A lane's numbers depend on that
lane's words alone, and sums within a lane keep the order of the instructions, so a result does not depend on
the rest of the batch.  A single sentence costs as much as LANES of them.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.simd import BYTES, LANES, load, peek, plus, poke, splat, store, times
from raysweep.languages.pcfg.instructions import Code

_ONE = np.uint32(1)


@kernel(error_model="numpy")
def charts(
    words: np.ndarray,
    leaves: np.ndarray,
    root: np.ndarray,
    code: Code,
    read_inside: np.ndarray,
    read_outside: np.ndarray,
    inner: np.ndarray,
    outer: np.ndarray,
    products: np.ndarray,
    total: np.ndarray,
    inside: np.ndarray,
    outside: np.ndarray,
) -> None:
    """Run the inside pass, and the outside pass where something is read, over sentences of one length.

    `words` int64 [B, n] index the rows of `leaves` [V+1, N]; `inner`, `outer` [cells, LANES] and `products`
    [pairs, LANES] are working space.  Fills `total` float64 [B], the root-weighted sum over the tops, and
    `inside` and `outside` [B, cells], the charts at the cells `read_inside` and `read_outside`.
    """
    n, N, at = words.shape[1], leaves.shape[1], np.empty(LANES, dtype=np.int64)
    for g in range(0, words.shape[0], LANES):
        lanes = min(LANES, words.shape[0] - g)
        for t in range(n):
            for j in range(LANES):
                # Lanes without a sentence repeat the tile's first.
                poke(at, j, N * peek(words, (g + (j if j < lanes else 0)) * n + t))
            for k in range(code.leaves_of[t], code.leaves_of[t + 1]):
                to, A = np.int64(code.leaf_cells[k]) * LANES, np.int64(code.leaf_symbols[k])
                for j in range(LANES):
                    poke(inner, to + j, peek(leaves, peek(at, j) + A))
        for b in range(len(code.starts_of) - 1):
            for s in range(code.starts_of[b], code.starts_of[b + 1]):
                _block_inside(code, b, code.starts[s], inner, products)
        for j in range(lanes):
            z = 0.0
            for k in range(len(code.top_cells)):
                z += np.float64(inner[code.top_cells[k], j]) * np.float64(root[code.top_symbols[k]])
            total[g + j] = z
        _read(inner, read_inside, g, lanes, inside)
        if len(read_outside) > 0:
            for k in range(len(code.reached)):
                cell = outer[code.reached[k]]
                for j in range(LANES):
                    cell[j] = 0
            for k in range(len(code.top_cells)):
                cell, p = outer[code.top_cells[k]], root[code.top_symbols[k]]
                for j in range(LANES):
                    cell[j] = p
            for back in range(len(code.starts_of) - 1):
                b = len(code.starts_of) - 2 - back
                for s in range(code.starts_of[b], code.starts_of[b + 1]):
                    _block_outside(code, b, code.starts[s], inner, outer)
            _read(outer, read_outside, g, lanes, outside)


@kernel(error_model="numpy")
def _read(chart, cells, g, lanes, out):  # type: ignore[no-untyped-def]
    """Write `cells` [C] of the first lanes of a chart into rows `g` .. of `out` [B, C]."""
    C = len(cells)
    for k in range(C):
        first = np.int64(cells[k]) * LANES
        for j in range(lanes):
            poke(out, (g + j) * C + k, peek(chart, first + j))


@kernel(error_model="numpy")
def _block_inside(code, b, i, inner, products):  # type: ignore[no-untyped-def]
    step = BYTES // inner.itemsize
    first = np.int64(code.pairs_of[b])
    for q in range(first, code.pairs_of[b + 1]):
        begin, end = code.terms_of[q], code.terms_of[q + 1]
        for j in range(0, LANES, 4 * step):
            x, y = code.left[begin] + i, code.right[begin] + i
            p0 = times(load(inner, x, j), load(inner, y, j))
            p1 = times(load(inner, x, j + step), load(inner, y, j + step))
            p2 = times(load(inner, x, j + 2 * step), load(inner, y, j + 2 * step))
            p3 = times(load(inner, x, j + 3 * step), load(inner, y, j + 3 * step))
            for k in range(begin + _ONE, end):
                x, y = code.left[k] + i, code.right[k] + i
                p0 = plus(load(inner, x, j), load(inner, y, j), p0)
                p1 = plus(load(inner, x, j + step), load(inner, y, j + step), p1)
                p2 = plus(load(inner, x, j + 2 * step), load(inner, y, j + 2 * step), p2)
                p3 = plus(load(inner, x, j + 3 * step), load(inner, y, j + 3 * step), p3)
            store(products, q - first, j, p0)
            store(products, q - first, j + step, p1)
            store(products, q - first, j + 2 * step, p2)
            store(products, q - first, j + 3 * step, p3)
    for a in range(code.parents_of[b], code.parents_of[b + 1]):
        cell = code.parents[a] + i
        for j in range(0, LANES, 4 * step):
            w, p = splat(code.probability[code.rules_of[a]]), code.pair[code.rules_of[a]]
            c0 = times(w, load(products, p, j))
            c1 = times(w, load(products, p, j + step))
            c2 = times(w, load(products, p, j + 2 * step))
            c3 = times(w, load(products, p, j + 3 * step))
            for r in range(code.rules_of[a] + _ONE, code.rules_of[a + 1]):
                w, p = splat(code.probability[r]), code.pair[r]
                c0 = plus(w, load(products, p, j), c0)
                c1 = plus(w, load(products, p, j + step), c1)
                c2 = plus(w, load(products, p, j + 2 * step), c2)
                c3 = plus(w, load(products, p, j + 3 * step), c3)
            store(inner, cell, j, c0)
            store(inner, cell, j + step, c1)
            store(inner, cell, j + 2 * step, c2)
            store(inner, cell, j + 3 * step, c3)


@kernel(error_model="numpy")
def _block_outside(code, b, i, inner, outer):  # type: ignore[no-untyped-def]
    step = BYTES // inner.itemsize
    for q in range(code.pairs_of[b], code.pairs_of[b + 1]):
        begin, end = code.above_of[q], code.above_of[q + 1]
        for j in range(0, LANES, 4 * step):
            w, cell = splat(code.share[begin]), code.above[begin] + i
            p0 = times(w, load(outer, cell, j))
            p1 = times(w, load(outer, cell, j + step))
            p2 = times(w, load(outer, cell, j + 2 * step))
            p3 = times(w, load(outer, cell, j + 3 * step))
            for r in range(begin + _ONE, end):
                w, cell = splat(code.share[r]), code.above[r] + i
                p0 = plus(w, load(outer, cell, j), p0)
                p1 = plus(w, load(outer, cell, j + step), p1)
                p2 = plus(w, load(outer, cell, j + 2 * step), p2)
                p3 = plus(w, load(outer, cell, j + 3 * step), p3)
            for k in range(code.terms_of[q], code.terms_of[q + 1]):
                x, y = code.left[k] + i, code.right[k] + i
                _give(p0, x, y, j, inner, outer)
                _give(p1, x, y, j + step, inner, outer)
                _give(p2, x, y, j + 2 * step, inner, outer)
                _give(p3, x, y, j + 3 * step, inner, outer)


@kernel(error_model="numpy")
def _give(p, x, y, j, inner, outer):  # type: ignore[no-untyped-def]
    """Add to the outside weight of each of two cells what a pair above hands it through the other."""
    store(outer, x, j, plus(p, load(inner, y, j), load(outer, x, j)))
    store(outer, y, j, plus(p, load(inner, x, j), load(outer, y, j)))
