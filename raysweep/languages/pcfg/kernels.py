"""Compiled kernel of the sparse engine: the inside and outside charts of many sentences at once.

Charts are [cells, LANES]: sentences of one length stand in the innermost dimension, so that every instruction
of `instructions.py` is a few vector operations, on two vectors or four at once.  A lane's numbers depend on
that lane's words alone, and sums within a lane keep the order of the instructions, so a result does not
depend on the rest of the batch.  A single sentence costs as much as two vectors of them.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.simd import BYTES, LANES, load, peek, plus, poke, store, times
from raysweep.languages.pcfg.instructions import Code

_ONE = np.uint32(1)


@kernel(error_model="numpy")
def charts(
    words: np.ndarray,
    leaves: np.ndarray,
    root: np.ndarray,
    code: Code,
    p: int,
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

    `p` is the number of the program for their length.  `words` int64 [B, n] index the rows of `leaves`
    [V+1, N]; `inner`, `outer` [cells, LANES] and `products` [pairs, LANES] are working space.  Fills `total`
    float64 [B], the root-weighted sum over the tops, and `inside` and `outside` [B, cells], the charts at the
    cells `read_inside` and `read_outside`.
    """
    n, N, at = words.shape[1], leaves.shape[1], np.empty(LANES, dtype=np.int64)
    block, last_block = code.programs[p, 0], code.programs[p + 1, 0]
    position = code.programs[p, 1]
    top, last_top = code.programs[p, 2], code.programs[p + 1, 2]
    cell, last_cell = code.programs[p, 3], code.programs[p + 1, 3]
    step = BYTES // inner.itemsize
    for g in range(0, words.shape[0], LANES):
        lanes = min(LANES, words.shape[0] - g)
        # The lanes that are computed: those with a sentence, up to a pair of vectors, and of them those that
        # are computed four vectors at a time.
        wide = -(-lanes // (2 * step)) * 2 * step
        whole = wide // (4 * step) * 4 * step
        for t in range(n):
            for j in range(wide):
                # Lanes without a sentence repeat the tile's first.
                poke(at, j, N * peek(words, (g + (j if j < lanes else 0)) * n + t))
            for k in range(code.leaves_of[position + t], code.leaves_of[position + t + 1]):
                to, A = np.int64(code.leaf_cells[k]) * LANES, np.int64(code.leaf_symbols[k])
                for j in range(wide):
                    poke(inner, to + j, peek(leaves, peek(at, j) + A))
        for b in range(block, last_block):
            for s in range(code.starts_of[b], code.starts_of[b + 1]):
                i = code.starts[s]
                for j in range(0, whole, 4 * step):
                    _block_inside(code, b, i, j, 4, inner, products)
                for j in range(whole, wide, 2 * step):
                    _block_inside(code, b, i, j, 2, inner, products)
        for j in range(lanes):
            z = 0.0
            for k in range(top, last_top):
                z += np.float64(inner[code.top_cells[k], j]) * np.float64(root[code.top_symbols[k]])
            total[g + j] = z
        _read(inner, read_inside, g, lanes, inside)
        if len(read_outside) > 0:
            for k in range(cell, last_cell):
                row = outer[code.reached[k]]
                for j in range(wide):
                    row[j] = 0
            for k in range(top, last_top):
                row, weight = outer[code.top_cells[k]], root[code.top_symbols[k]]
                for j in range(wide):
                    row[j] = weight
            for back in range(last_block - block):
                b = last_block - 1 - back
                for s in range(code.starts_of[b], code.starts_of[b + 1]):
                    i = code.starts[s]
                    for j in range(0, whole, 4 * step):
                        _block_outside(code, b, i, j, 4, inner, outer)
                    for j in range(whole, wide, 2 * step):
                        _block_outside(code, b, i, j, 2, inner, outer)
            _read(outer, read_outside, g, lanes, outside)


@kernel(error_model="numpy")
def _read(chart, cells, g, lanes, out):  # type: ignore[no-untyped-def]
    """Write `cells` [C] of the first lanes of a chart into rows `g` .. of `out` [B, C]."""
    C = len(cells)
    for k in range(C):
        first = np.int64(cells[k]) * LANES
        for j in range(lanes):
            poke(out, (g + j) * C + k, peek(chart, first + j))


@kernel(error_model="numpy", inline="always")
def _block_inside(code, b, i, j, vectors, inner, products):  # type: ignore[no-untyped-def]
    """Compute a block's cells at start i, for `vectors` vectors of lanes from lane j on."""
    first = np.int64(code.pairs_of[b])
    for q in range(first, code.pairs_of[b + 1]):
        begin, end = code.terms_of[q], code.terms_of[q + 1]
        x, y = code.left[begin] + i, code.right[begin] + i
        p = times(load(inner, x, j, vectors), load(inner, y, j, vectors))
        for k in range(begin + _ONE, end):
            x, y = code.left[k] + i, code.right[k] + i
            p = plus(load(inner, x, j, vectors), load(inner, y, j, vectors), p)
        store(products, q - first, j, p)
    for a in range(code.parents_of[b], code.parents_of[b + 1]):
        begin, end = code.rules_of[a], code.rules_of[a + 1]
        c = times(code.probability[begin], load(products, code.pair[begin], j, vectors))
        for r in range(begin + _ONE, end):
            c = plus(code.probability[r], load(products, code.pair[r], j, vectors), c)
        store(inner, code.parents[a] + i, j, c)


@kernel(error_model="numpy", inline="always")
def _block_outside(code, b, i, j, vectors, inner, outer):  # type: ignore[no-untyped-def]
    """Hand the outside weights of a block's cells down, at the start and in the lanes of `_block_inside`."""
    for q in range(code.pairs_of[b], code.pairs_of[b + 1]):
        begin, end = code.above_of[q], code.above_of[q + 1]
        p = times(code.share[begin], load(outer, code.above[begin] + i, j, vectors))
        for r in range(begin + _ONE, end):
            p = plus(code.share[r], load(outer, code.above[r] + i, j, vectors), p)
        for k in range(code.terms_of[q], code.terms_of[q + 1]):
            x, y = code.left[k] + i, code.right[k] + i
            # Each of two cells gets what the pair above hands it through the other.
            store(outer, x, j, plus(p, load(inner, y, j, vectors), load(outer, x, j, vectors)))
            store(outer, y, j, plus(p, load(inner, x, j, vectors), load(outer, y, j, vectors)))
