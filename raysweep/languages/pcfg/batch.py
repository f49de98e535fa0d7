"""One call of compiled code for the groups of a whole batch, and the tables that it reads.

A call from Python hands over some thirty arrays, and what the last call computed has driven what Python looks
at out of the caches.  That takes some 0.1 ms, as much as the work on twenty sentences.  So the tables of all
lengths lie one behind another, and a batch is one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.simd import LANES
from raysweep.languages.pcfg.instructions import Code, Instructions
from raysweep.languages.pcfg.kernels import charts
from raysweep.languages.pcfg.mixing import Mixture, log_normalised

#: Sentences between two kernels: what the first writes is still in the cache when the second reads it.
CHUNK = 8 * LANES


class Library(NamedTuple):
    """The tables of P programs, one behind another.

    `code_at` int64 [fields, P+1] delimits each one's part of each field of `code`, and `mixture_at` of
    `mixture`, whose emissions are those of all.  Its leaves are `cells[cells_at[p] : cells_at[p + 1]]`.
    `sizes` int64 [P, 2] are the cells of a chart and the pairs of a block, at most.
    """

    code: Code
    code_at: np.ndarray
    mixture: Mixture
    mixture_at: np.ndarray
    cells: np.ndarray
    cells_at: np.ndarray
    sizes: np.ndarray


def library(parts: Sequence[tuple[Instructions, Code, np.ndarray, Mixture]]) -> Library:
    """Return the tables of some programs, with the code, the cells of the leaves and the mixture of each."""
    code, code_at = _joined([code for _, code, _, _ in parts])
    mixture, mixture_at = _joined([mixture[1:] for *_, mixture in parts])
    (cells,), [cells_at] = _joined([(cells,) for _, _, cells, _ in parts])
    return Library(
        code=Code(*code),
        code_at=code_at,
        mixture=Mixture(parts[0][3].emission, *mixture),
        mixture_at=mixture_at,
        cells=cells,
        cells_at=cells_at,
        sizes=np.array([(program.cells, program.pairs) for program, *_ in parts]),
    )


def _joined(parts: Sequence[Sequence[np.ndarray]]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return each field of some tuples of arrays, one behind another, and where parts begin [fields, P+1]."""
    fields = list(zip(*parts, strict=True))
    ends = np.array([[0, *np.cumsum([len(array) for array in field])] for field in fields])
    return [np.concatenate(field) for field in fields], ends


@kernel(error_model="numpy")
def _code(code, at, p):  # type: ignore[no-untyped-def]
    """Return the code of program `p`."""
    return Code(
        code.starts_of[at[0, p] : at[0, p + 1]],
        code.starts[at[1, p] : at[1, p + 1]],
        code.pairs_of[at[2, p] : at[2, p + 1]],
        code.terms_of[at[3, p] : at[3, p + 1]],
        code.left[at[4, p] : at[4, p + 1]],
        code.right[at[5, p] : at[5, p + 1]],
        code.parents_of[at[6, p] : at[6, p + 1]],
        code.parents[at[7, p] : at[7, p + 1]],
        code.rules_of[at[8, p] : at[8, p + 1]],
        code.pair[at[9, p] : at[9, p + 1]],
        code.probability[at[10, p] : at[10, p + 1]],
        code.above_of[at[11, p] : at[11, p + 1]],
        code.above[at[12, p] : at[12, p + 1]],
        code.share[at[13, p] : at[13, p + 1]],
        code.leaves_of[at[14, p] : at[14, p + 1]],
        code.leaf_cells[at[15, p] : at[15, p + 1]],
        code.leaf_symbols[at[16, p] : at[16, p + 1]],
        code.top_cells[at[17, p] : at[17, p + 1]],
        code.top_symbols[at[18, p] : at[18, p + 1]],
        code.reached[at[19, p] : at[19, p + 1]],
    )


@kernel(error_model="numpy")
def _mixture(mixture, at, p):  # type: ignore[no-untyped-def]
    """Return the mixture of program `p`."""
    return Mixture(
        mixture.emission,
        mixture.mass[at[0, p] : at[0, p + 1]],
        mixture.of[at[1, p] : at[1, p + 1]],
        mixture.rows[at[2, p] : at[2, p + 1]],
        mixture.terms_of[at[3, p] : at[3, p + 1]],
        mixture.source[at[4, p] : at[4, p + 1]],
        mixture.word[at[5, p] : at[5, p + 1]],
        mixture.value[at[6, p] : at[6, p + 1]],
    )


@kernel(error_model="numpy")
def write_conditionals(
    groups: np.ndarray,
    words: np.ndarray,
    place: np.ndarray,
    leaves: np.ndarray,
    root: np.ndarray,
    programs: Library,
    space: np.ndarray,
    floor: float,
    out: np.ndarray,
    sound: np.ndarray,
) -> None:
    """Write log Pr(x_t = . | visible words but x_t) into row `place[b, t]` of `out` float32 [rows, V].

    `groups` int64 [G, 3] are the first sentence, the end and the program of each; `words` and `place` [B, T]
    hold as many words of a sentence as its program has.  `leaves` [V+1, N] and `root` [N] are those of
    `charts`, and `sound` boolean [B] is filled as by `log_normalised`.  `space` [2 cells + pairs, LANES] is
    working space for the largest program.
    """
    for g in range(len(groups)):
        start, end, p = groups[g, 0], groups[g, 1], groups[g, 2]
        code = _code(programs.code, programs.code_at, p)
        mixture = _mixture(programs.mixture, programs.mixture_at, p)
        cells = programs.cells[programs.cells_at[p] : programs.cells_at[p + 1]]
        size, pairs, n = programs.sizes[p, 0], programs.sizes[p, 1], len(code.leaves_of) - 1
        inner = space[:size]
        outer = space[size : 2 * size]
        products = space[2 * size : 2 * size + pairs]
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            shown, to = words[first:last, :n].copy(), place[first:last, :n].copy()
            total, below = np.empty(last - first), np.empty((last - first, 0), dtype=out.dtype)
            around = np.empty((last - first, len(cells)), dtype=out.dtype)
            charts(shown, leaves, root, code, cells[:0], cells, inner, outer, products, total, below, around)
            log_normalised(around, mixture, total, to, floor, out, sound[first:last])
