"""Compiled kernel of the sparse engine: the inside and outside charts of many sentences at once.

Charts are [cells, LANES]: sentences of one length stand in the innermost dimension, so that every instruction
of `instructions.py` is a few vector operations.  A lane's numbers depend on that lane's words alone, and sums
within a lane keep the order of the instructions, so a result does not depend on the rest of the batch.

It is compiled once per dtype when it is first used, and kept on disk.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from raysweep.languages.pcfg.instructions import Code

#: Sentences side by side in a chart.
LANES = 128

_ONE, _FOUR = np.uint32(1), np.uint32(4)


#: Contraction into fused multiply-adds only: sums keep their order.
@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
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
    for g in range(0, words.shape[0], LANES):
        lanes = min(LANES, words.shape[0] - g)
        for t in range(words.shape[1]):
            for k in range(code.leaves_of[t], code.leaves_of[t + 1]):
                cell, A = inner[code.leaf_cells[k]], code.leaf_symbols[k]
                for j in range(lanes):
                    cell[j] = leaves[words[g + j, t], A]
                for j in range(lanes, LANES):
                    cell[j] = cell[0]
        for b in range(len(code.starts_of) - 1):
            for s in range(code.starts_of[b], code.starts_of[b + 1]):
                _block_inside(code, b, code.starts[s], inner, products)
        for j in range(lanes):
            z = 0.0
            for k in range(len(code.top_cells)):
                z += np.float64(inner[code.top_cells[k], j]) * np.float64(root[code.top_symbols[k]])
            total[g + j] = z
        for k in range(len(read_inside)):
            cell = inner[read_inside[k]]
            for j in range(lanes):
                inside[g + j, k] = cell[j]
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
                    _block_outside(code, b, code.starts[s], inner, outer, products)
            for k in range(len(read_outside)):
                cell = outer[read_outside[k]]
                for j in range(lanes):
                    outside[g + j, k] = cell[j]


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy", inline="always")
def _block_inside(code, b, i, inner, products):  # type: ignore[no-untyped-def]
    first = code.pairs_of[b]
    for q in range(first, code.pairs_of[b + 1]):
        p = products[q - first]
        k, last = code.terms_of[q], code.terms_of[q + 1]
        x, y = inner[code.left[k] + i], inner[code.right[k] + i]
        for j in range(LANES):
            p[j] = x[j] * y[j]
        for m in range(k + _ONE, last):
            x, y = inner[code.left[m] + i], inner[code.right[m] + i]
            for j in range(LANES):
                p[j] += x[j] * y[j]
    for a in range(code.parents_of[b], code.parents_of[b + 1]):
        cell = inner[code.parents[a] + i]
        r, last = code.rules_of[a], code.rules_of[a + 1]
        w, p = code.probability[r], products[code.pair[r]]
        for j in range(LANES):
            cell[j] = w * p[j]
        r += _ONE
        while r + _FOUR <= last:
            w0, p0 = code.probability[r], products[code.pair[r]]
            w1, p1 = code.probability[r + 1], products[code.pair[r + 1]]
            w2, p2 = code.probability[r + 2], products[code.pair[r + 2]]
            w3, p3 = code.probability[r + 3], products[code.pair[r + 3]]
            for j in range(LANES):
                cell[j] += w0 * p0[j] + w1 * p1[j] + w2 * p2[j] + w3 * p3[j]
            r += _FOUR
        while r < last:
            w, p = code.probability[r], products[code.pair[r]]
            for j in range(LANES):
                cell[j] += w * p[j]
            r += _ONE


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy", inline="always")
def _block_outside(code, b, i, inner, outer, products):  # type: ignore[no-untyped-def]
    p = products[0]
    for q in range(code.pairs_of[b], code.pairs_of[b + 1]):
        r, last = code.above_of[q], code.above_of[q + 1]
        w, cell = code.share[r], outer[code.above[r] + i]
        for j in range(LANES):
            p[j] = w * cell[j]
        for m in range(r + _ONE, last):
            w, cell = code.share[m], outer[code.above[m] + i]
            for j in range(LANES):
                p[j] += w * cell[j]
        for k in range(code.terms_of[q], code.terms_of[q + 1]):
            left, right = code.left[k] + i, code.right[k] + i
            x, y, below_x, below_y = inner[left], inner[right], outer[left], outer[right]
            for j in range(LANES):
                below_x[j] += p[j] * y[j]
            for j in range(LANES):
                below_y[j] += p[j] * x[j]
