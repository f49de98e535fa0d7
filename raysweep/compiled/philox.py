"""Philox's words in compiled code: bitwise those of `raysweep.seeding.words`.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.seeding import derive

#: Sentences whose words are made at once: enough for full vector registers, few enough for the cache.
TILE = 16

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


def key(seed: int, purpose: str) -> np.uint64:
    """Return the key of a stream, as `seeding.words` derives it."""
    return np.uint64(derive(seed, purpose))


@kernel(inline="always")
def rounds(c0, c1, c2, c3, key):  # type: ignore[no-untyped-def]
    """Return the four words uint32 of Philox-4x32-10 at a counter of four words, as `seeding.philox` does."""
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


@kernel
def fill(key, numbers, first, blocks, out):  # type: ignore[no-untyped-def]
    """Write the words of the sentences `numbers[first:]`, up to TILE, into `out` uint32 [4, TILE * blocks].

    Draw d of the i-th sentence is out[d % 4, i * blocks + d // 4].
    """
    for i in range(TILE):
        # Whole tiles, so that the loop below has one length: behind the end, the last sentence again.
        index = np.uint64(numbers[min(first + i, len(numbers) - 1)])
        for block in range(blocks):
            lane = i * blocks + block
            out[0, lane] = block
            out[1, lane] = 0
            out[2, lane] = np.uint32(index & _MASK)
            out[3, lane] = np.uint32(index >> _HALF)
    a, b, c, d = out[0], out[1], out[2], out[3]
    for lane in range(TILE * blocks):
        a[lane], b[lane], c[lane], d[lane] = rounds(a[lane], b[lane], c[lane], d[lane], key)
