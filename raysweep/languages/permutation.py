"""A permutation of 0 .. n-1 that is computed, not stored: any value, in any order, in any process.

A Feistel network over the b bits of the smallest power of two that holds n is a bijection of 0 .. 2^b - 1
for every round function, here Philox.  Applied repeatedly until the value is below n
("cycle walking"; Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002) it is a bijection
of 0 .. n-1, in fewer than two applications on average.
"""

from __future__ import annotations

from torch import Tensor

from raysweep.seeding import derive, philox

_ROUNDS = 8
_WORD = 0xFFFFFFFF


def permuted(index: Tensor, n: int, *, seed: int, purpose: str, epoch: Tensor) -> Tensor:
    """Return the places int64 [m] of `index` [m], below n, in the permutation of (seed, purpose, epoch [m]).

    `n` is at most 2^62.

    >>> import torch
    >>> places = permuted(torch.arange(5), 5, seed=0, purpose="doc", epoch=torch.zeros(5, dtype=torch.int64))
    >>> sorted(places.tolist())
    [0, 1, 2, 3, 4]
    """
    # Halves of one or two bits would reach only few of all permutations.
    bits = max(6, (n - 1).bit_length())
    key = derive(seed, purpose)
    value = _round_trip(index, bits, key, epoch)
    while True:
        outside = (value >= n).nonzero()[:, 0]
        if not len(outside):
            return value
        value[outside] = _round_trip(value[outside], bits, key, epoch[outside])


def _round_trip(value: Tensor, bits: int, key: int, epoch: Tensor) -> Tensor:
    """Return a bijection of 0 .. 2^bits - 1, keyed by `key` and `epoch`."""
    low = bits // 2
    left, right = value >> low, value & ((1 << low) - 1)
    left_mask, right_mask = (1 << (bits - low)) - 1, (1 << low) - 1
    for k in range(_ROUNDS):
        # Halves are at most 31 bits, so that one word of Philox changes them and one counter holds them.
        if k % 2:
            right = right ^ (philox(key, (left, k, epoch & _WORD, epoch >> 32))[0] & right_mask)
        else:
            left = left ^ (philox(key, (right, k, epoch & _WORD, epoch >> 32))[0] & left_mask)
    return (left << low) | right
