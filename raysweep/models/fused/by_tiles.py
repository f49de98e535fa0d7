"""Products of bfloat16 matrices by tiles (`raysweep.compiled.amx`), as `.products` uses them.

A block of sums has 32 rows and columns: four tiles, and four more hold its factors.  Sums are of the same
terms as those of vectors, in another order.

Cost: for each 16 pairs of terms, a block reads four tiles and multiplies four times.  A sum over rows also
copies both factors, as pairs, and turns one of them.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import amx, kernel
from raysweep.compiled.amx import add_product, clear, put_low, read_tile, write_tile
from raysweep.compiled.scalars import COMPILED, HELPER
from raysweep.compiled.simd import fetch, peek, plus, poke, put, turn

#: Rows and columns of a block of sums, and numbers in a row of a tile: pairs of terms, or sums.
SIDE, DEPTH = 32, 16

#: Most rows after which sums over rows are written to memory, and most pairs that both factors have in them.
_ROWS, _PAIRS = 512, 2**20

_ONE = np.float32(1.0)


@kernel(error_model="numpy")
def paired(numbers, first, count, out):  # type: ignore[no-untyped-def]
    """Write the pairs of `count` rows of a matrix uint16 [N, I], from row `first` on, to `out` [., I].

    The partner of a last row without one is 0.
    """
    columns = numbers.shape[1]
    for n in range(count // 2):
        upper, lower = (first + 2 * n + 1) * columns, (first + 2 * n) * columns
        for j in range(columns):
            high = np.uint32(peek(numbers, upper + j)) << np.uint32(16)
            poke(out, n * columns + j, high | np.uint32(peek(numbers, lower + j)))
    if count % 2 == 1:
        for j in range(columns):
            last = np.uint32(peek(numbers, (first + count - 1) * columns + j))
            poke(out, count // 2 * columns + j, last)


@kernel(**HELPER)
def _add_tiles(x, place, row, far, y, q, term, down, count):  # type: ignore[no-untyped-def]
    """Add the products of `count` tiles of terms to a block of 32 × 32 sums, tiles 0 to 3.

    Rows of x are `row` apart, and its tiles `far`; rows of y, one for each pair of terms, are `term` apart,
    and its tiles `down`.
    """
    below = place + DEPTH * row
    for _ in range(count):
        read_tile(4, x, place, row)
        read_tile(6, y, q, term)
        read_tile(7, y, q + DEPTH, term)
        read_tile(5, x, below, row)
        add_product(0, 4, 6)
        add_product(1, 4, 7)
        add_product(2, 5, 6)
        add_product(3, 5, 7)
        place += far
        below += far
        q += down


@kernel(**HELPER)
def _clear_block():  # type: ignore[no-untyped-def]
    clear(0)
    clear(1)
    clear(2)
    clear(3)


@kernel(**HELPER)
def _write_block(sums, place):  # type: ignore[no-untyped-def]
    """Write tiles 0 to 3 as 32 rows of 32 numbers."""
    write_tile(0, sums, place, SIDE)
    write_tile(1, sums, place + DEPTH, SIDE)
    write_tile(2, sums, place + DEPTH * SIDE, SIDE)
    write_tile(3, sums, place + DEPTH * SIDE + DEPTH, SIDE)


@kernel(**HELPER)
def _round_block(sums, place, spare, out, c, whole, width):  # type: ignore[no-untyped-def]
    """Write the first `width` columns of a block, rounded, to rows of `out` that are `whole` apart."""
    for r in range(SIDE):
        at, to = place + r * SIDE, c + r * whole
        if width == SIDE:
            put_low(sums, at, out, to)
        else:
            put_low(sums, at, spare, 0)
            for k in range(width):
                poke(out, to + k, peek(spare, k))


@kernel(**COMPILED)
def product_by_tiles(x, panels, out):  # type: ignore[no-untyped-def]
    """Do what `products.product` does with pairs of bfloat16 numbers, of at least 32 rows.

    A block is rounded while the next one is computed.  The last rows are computed again where they are fewer.
    """
    rows, row, whole = x.shape[0], x.shape[1], out.shape[1]
    parts, terms = panels.shape[0], panels.shape[2]
    inner, columns = row // parts, whole // parts
    count, rest = inner // DEPTH, inner % DEPTH
    size = SIDE * SIDE
    sums, spare = np.empty(2 * size, dtype=np.float32), np.empty(SIDE, dtype=np.uint16)
    # Pairs behind the last whole tile, and zeros.
    few = np.zeros(SIDE * DEPTH, dtype=np.uint32)
    at, before, wide = 0, -1, 0
    amx.begin()
    for first in range(0, rows, SIDE):
        i = min(first, rows - SIDE)
        for g in range(parts):
            place = i * row + g * inner
            for r in range(SIDE):
                for k in range(rest):
                    poke(few, r * DEPTH + k, peek(x, place + r * row + count * DEPTH + k))
            for p in range(panels.shape[1]):
                y, j = (g * panels.shape[1] + p) * terms * SIDE, g * columns + p * SIDE
                _clear_block()
                _add_tiles(x, place, row, DEPTH, panels, y, SIDE, DEPTH * SIDE, count)
                if rest > 0:
                    y += count * DEPTH * SIDE
                    _add_tiles(few, 0, DEPTH, 0, panels, y, SIDE, 0, 1)
                if before >= 0:
                    _round_block(sums, size - at, spare, out, before, whole, wide)
                _write_block(sums, at)
                before, wide, at = i * whole + j, min(SIDE, columns - p * SIDE), size - at
    _round_block(sums, size - at, spare, out, before, whole, wide)
    amx.end()


@kernel(**HELPER)
def _tiles_at_once(rows, columns):  # type: ignore[no-untyped-def]
    """Return the tiles of pairs in the rows after which sums over `rows` of so many columns are written."""
    fit = min(_ROWS // 2, _PAIRS // columns) // DEPTH
    return max(1, min(fit, (rows + SIDE - 1) // SIDE))


@kernel(**COMPILED)
def outer_by_tiles(d, x, total):  # type: ignore[no-untyped-def]
    """Do what `products.outer_pairs` does, for any O."""
    outputs, inputs = total.shape
    columns = x.shape[1]
    parts = columns // inputs
    each = outputs // parts
    blocks = (each + SIDE - 1) // SIDE
    most = _tiles_at_once(len(d), outputs + columns)
    between = most * 2 * DEPTH
    # Whole tiles are read where columns end within one.
    of_d = np.empty(between // 2 * outputs + SIDE, dtype=np.uint32)
    of_x = np.empty(between // 2 * columns + SIDE, dtype=np.uint32)
    size = DEPTH * DEPTH
    turned_d = np.empty(parts * blocks * most * 2 * size, dtype=np.uint32)
    sums = np.empty(SIDE * SIDE, dtype=np.float32)
    amx.begin()
    for n in range(0, len(d), between):
        count = min(between, len(d) - n)
        pairs = (count + 1) // 2
        steps = (pairs + DEPTH - 1) // DEPTH
        paired(d, n, count, of_d)
        paired(x, n, count, of_x)
        of_d[pairs * outputs : steps * DEPTH * outputs] = 0
        of_x[pairs * columns : steps * DEPTH * columns] = 0
        for g in range(parts):
            for b in range(blocks):
                place = g * each + b * SIDE
                to = (g * blocks + b) * most * 2 * size
                for k in range(steps):
                    for half in range(0, SIDE, DEPTH):
                        turn(of_d, place + k * DEPTH * outputs + half, outputs, turned_d, to, DEPTH)
                        to += size
        for g in range(parts):
            for b in range(blocks):
                place, o = (g * blocks + b) * most * 2 * size, g * each + b * SIDE
                for i in range(0, inputs, SIDE):
                    _clear_block()
                    _add_tiles(
                        turned_d, place, DEPTH, 2 * size,
                        of_x, g * inputs + i, columns, DEPTH * columns, steps,
                    )  # fmt: skip
                    _write_block(sums, 0)
                    for r in range(min(SIDE, each - b * SIDE)):
                        for k in range(0, min(SIDE, inputs - i), DEPTH):
                            c = (o + r) * inputs + i + k
                            found = plus(_ONE, fetch(sums, r * SIDE + k), fetch(total, c))
                            put(total, c, found)
    amx.end()
