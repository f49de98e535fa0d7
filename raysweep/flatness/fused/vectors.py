"""The random signs of `raysweep.flatness.vectors`, made in one compiled pass over the logits.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysweep.compiled import kernel
from raysweep.compiled.philox import rounds
from raysweep.compiled.scalars import COMPILED, exponential
from raysweep.compiled.simd import peek, poke
from raysweep.seeding import derive

_F0, _F1, _F2 = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_U0, _U1 = np.uint32(0), np.uint32(1)
_HALF = np.uint64(32)

#: Logits so far below the largest have no probability.
_LEAST = np.float32(-87.0)
#: Signs of a block of random words.
_SIGNS = 128


def sign_vectors(logits: Tensor, index: Tensor, *, seed: int) -> Tensor:
    """Return the vectors [B, V] of `cotangents` for one Rademacher draw at these float32 logits."""
    v = torch.empty_like(logits)
    key = np.uint64(derive(seed, "test-vector"))
    _sign_vectors(logits.numpy(), index.numpy(), key, v.numpy())
    return v


@kernel(**COMPILED)
def _signs(key, number, out):  # type: ignore[no-untyped-def]
    """Fill out [..] with an input's signs, as `raysweep.seeding.signs` draws them."""
    words = np.empty(4, dtype=np.uint32)
    low, high = np.uint32(number), np.uint32(np.uint64(number) >> _HALF)
    for block in range((len(out) + _SIGNS - 1) // _SIGNS):
        words[0], words[1], words[2], words[3] = rounds(np.uint32(block), _U0, low, high, key)
        for w in range(4):
            first, word = block * _SIGNS + 32 * w, words[w]
            for j in range(min(32, len(out) - first)):
                bit = (word >> np.uint32(j)) & _U1
                poke(out, first + j, _F2 * np.float32(bit) - _F1)


@kernel(**COMPILED)
def _sign_vectors(logits, index, key, v):  # type: ignore[no-untyped-def]
    rows, classes = logits.shape
    p, r = np.empty(classes, dtype=np.float32), np.empty(classes, dtype=np.float32)
    for m in range(rows):
        _signs(key, index[m], r)
        first = m * classes
        top = np.float32(-np.inf)
        for c in range(classes):
            top = max(top, peek(logits, first + c))
        total = _F0
        for c in range(classes):
            d = peek(logits, first + c) - top
            # A probability that rounds to zero is zero; NaN is not below anything, and stays.
            e = _F0 if d < _LEAST else exponential(d)
            poke(p, c, e)
        for c in range(classes):
            total += peek(p, c)
        share, mean = _F1 / total, _F0
        for c in range(classes):
            poke(p, c, peek(p, c) * share)
            poke(r, c, np.sqrt(peek(p, c)) * peek(r, c))
        for c in range(classes):
            mean += peek(r, c)
        for c in range(classes):
            poke(v, first + c, peek(r, c) - peek(p, c) * mean)
