"""One call of compiled code for the groups of a whole batch, and the tables that it reads.

A call from Python hands over some thirty arrays, and what the last call computed has driven what Python looks
at out of the caches.  That takes as long as the work on a dozen sentences.  So the tables of all lengths lie
one behind another, and a batch is one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.simd import LANES
from raysweep.languages.pcfg import instructions, mixing
from raysweep.languages.pcfg.instructions import Code, Instructions
from raysweep.languages.pcfg.kernels import charts
from raysweep.languages.pcfg.mixing import Mixture, log_normalised

#: Sentences between two kernels: what the first writes is still in the cache when the second reads it.
CHUNK = 8 * LANES


class Library(NamedTuple):
    """The tables of P programs, one behind another.

    The leaves of program p are `cells[cells_of[p] : cells_of[p + 1]]`.  `sizes` int64 [P, 3] are its words,
    the cells of its chart, and the most pairs of a block.
    """

    code: Code
    mixture: Mixture
    cells: np.ndarray
    cells_of: np.ndarray
    sizes: np.ndarray


def library(parts: Sequence[tuple[Instructions, Code, np.ndarray, Mixture]]) -> Library:
    """Return the tables of some programs, with the code, the cells of the leaves and the mixture of each."""
    programs, codes, cells, mixtures = zip(*parts, strict=True)
    return Library(
        code=instructions.joined(codes),
        mixture=mixing.joined(mixtures),
        cells=np.concatenate(cells),
        cells_of=np.cumsum([0, *map(len, cells)]),
        sizes=np.array([(program.n, program.cells, program.pairs) for program in programs]),
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
        cells = programs.cells[programs.cells_of[p] : programs.cells_of[p + 1]]
        n, size, pairs = programs.sizes[p, 0], programs.sizes[p, 1], programs.sizes[p, 2]
        inner = space[:size]
        outer = space[size : 2 * size]
        products = space[2 * size : 2 * size + pairs]
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            shown, to = words[first:last, :n].copy(), place[first:last, :n].copy()
            total, below = np.empty(last - first), np.empty((last - first, 0), dtype=out.dtype)
            around = np.empty((last - first, len(cells)), dtype=out.dtype)
            charts(
                shown,
                leaves,
                root,
                programs.code,
                p,
                cells[:0],
                cells,
                inner,
                outer,
                products,
                total,
                below,
                around,
            )
            log_normalised(around, programs.mixture, p, total, to, floor, out, sound[first:last])
