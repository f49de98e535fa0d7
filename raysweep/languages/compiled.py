"""Keyed uniforms and categorical draws, compiled: bitwise those of `seeding.words` and `draw.Categories`.

Building blocks of the samplers' kernels.  Importing this module imports numba, so it is imported where it is
first used.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from raysweep.languages.draw import Categories
from raysweep.seeding import derive

#: Sentences whose words are made in one go: enough for full vector registers, few enough for the cache.
TILE = 16

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


class Guide(NamedTuple):
    """`Categories` for 32-bit words as they come, with an index into each distribution.

    A word w draws the first entry k of its distribution with w <= `top[k]`.  The word's top bits
    (w >> `shift`) say in `jump`, from `start` on, where the search begins, so that a draw costs a few
    comparisons however many entries there are.  Unsigned, for numba tests a signed index for being negative.
    """

    start: np.ndarray
    shift: np.ndarray
    jump: np.ndarray
    top: np.ndarray
    entry: np.ndarray


def guide(categories: Categories) -> Guide:
    """Return the tables by which `pick` draws what `categories.draw` draws from the word's uniform."""
    edges, group, count = categories.edges.numpy(), categories.group.numpy(), categories.count.numpy()
    # ceiling[k] is the number of words whose uniform lies below edge k, in the very sums of `draw`: an
    # estimate, and whether each word near it is below.
    near = np.clip(np.ceil((edges - group) * 2.0**32).astype(np.int64) - 4, 0, 1 << 32)
    ceiling = near.copy()
    for step in range(8):
        word = near + step
        ceiling += (word < 1 << 32) & (group + (word + 0.5) * 2.0**-32 < edges)
    # The last entry of a distribution takes all remaining words.
    ceiling[np.cumsum(count)[count > 0] - 1] = 1 << 32
    # Two to four times as many places to begin as entries: most searches end where they begin.
    bits = np.minimum(np.ceil(np.log2(np.maximum(count, 1))).astype(np.int64) + 1, 32)
    size = np.where(count > 0, 1 << bits, 0)
    start = np.cumsum(size) - size
    owner = np.repeat(np.arange(len(count)), size)
    lowest = (np.arange(size.sum()) - start[owner]) << (32 - bits[owner])
    jump = np.searchsorted((group << 33) + ceiling, (owner << 33) + lowest, side="right")
    return Guide(
        start=start.astype(np.uint64),
        shift=(32 - bits).astype(np.uint64),
        jump=jump.astype(np.uint32),
        # An entry that no word draws is never where a search begins, and is passed over as its neighbour is.
        top=(np.maximum(ceiling, 1) - 1).astype(np.uint32),
        entry=categories.entry.numpy(),
    )


def key(seed: int, purpose: str) -> np.uint64:
    """Return the key of a stream, as `seeding.words` derives it."""
    return np.uint64(derive(seed, purpose))


@numba.njit(cache=True, nogil=True, inline="always")
def pick(table, group, word):  # type: ignore[no-untyped-def]
    """Return the place in `table.entry` that a 32-bit word draws from distribution `group`."""
    group = np.uint64(group)
    place = np.uint64(table.jump[table.start[group] + (np.uint64(word) >> table.shift[group])])
    # The one step that is often needed is taken without a branch to mispredict.
    place += np.uint64(word > table.top[place])
    while word > table.top[place]:
        place += np.uint64(1)
    return place


@numba.njit(cache=True, nogil=True, inline="always")
def rounds(c0, c1, c2, c3, key):  # type: ignore[no-untyped-def]
    """Return the four words uint32 of Philox-4x32-10 of a counter of four, as `seeding.philox` does."""
    r0, r1 = np.uint32(key & _MASK), np.uint32(key >> _HALF)
    for _ in range(10):
        p0, p1 = np.uint64(c0) * _M0, np.uint64(c2) * _M1
        c0, c1, c2, c3 = (
            np.uint32(p1 >> _HALF) ^ c1 ^ r0,
            np.uint32(p1),
            np.uint32(p0 >> _HALF) ^ c3 ^ r1,
            np.uint32(p0),
        )
        r0, r1 = np.uint32(r0 + _W0), np.uint32(r1 + _W1)
    return c0, c1, c2, c3


@numba.njit(cache=True, nogil=True)
def fill(key, first, blocks, out):  # type: ignore[no-untyped-def]
    """Write the words of sentences `first` .. `first + TILE - 1` into `out` uint32 [4, TILE * blocks].

    Draw d of the i-th sentence is out[d % 4, i * blocks + d // 4].
    """
    for i in range(TILE):
        index = np.uint64(first + i)
        for block in range(blocks):
            lane = i * blocks + block
            out[0, lane] = block
            out[1, lane] = 0
            out[2, lane] = np.uint32(index & _MASK)
            out[3, lane] = np.uint32(index >> _HALF)
    a, b, c, d = out[0], out[1], out[2], out[3]
    for lane in range(TILE * blocks):
        a[lane], b[lane], c[lane], d[lane] = rounds(a[lane], b[lane], c[lane], d[lane], key)
