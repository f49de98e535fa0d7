"""Counter-based randomness: the same numbers on every device, in every process, in any order.

A random number is a pure function of (seed, purpose, index, draw).  The function is Philox-4x32 with ten
rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a keyed
bijection of a 128-bit counter, so nothing is stored, nothing is carried from one call to the next, and any
worker can make any slice of a data set.

>>> a = uniforms(7, "doc", torch.arange(4), 3)
>>> bool((uniforms(7, "doc", torch.tensor([2]), 3) == a[2:3]).all())
True
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed that belongs to `purpose` alone: unrelated streams from one seed.

    >>> derive(0, "train") != derive(0, "test")
    True
    """
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def philox(key: int, counters: tuple[Tensor | int, Tensor | int, Tensor | int, Tensor | int]) -> list[Tensor]:
    """Return the four 32-bit words (int64 tensors in [0, 2^32)) of Philox-4x32-10.

    `key` is a 64-bit integer; `counters` are four 32-bit words that broadcast together.
    Cost: about 60 integer operations per counter, 8 bytes per word.
    """
    device = next((c.device for c in counters if isinstance(c, Tensor)), None)
    words = torch.broadcast_tensors(*[torch.as_tensor(c, dtype=torch.int64, device=device) for c in counters])
    c0, c1, c2, c3 = words
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    for _ in range(10):
        # The int64 product wraps modulo 2^64, so its 64 bits are those of the unsigned product;
        # the arithmetic shift is masked to give the unsigned high word.
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return [c0, c1, c2, c3]


def words(seed: int, purpose: str, index: Tensor, draws: int, *, start: int = 0) -> Tensor:
    """Return 32-bit words as int64 [len(index), draws]; row i depends on `index[i]` alone.

    `index` holds 64-bit counters (sentence numbers); draws `start .. start+draws-1` of each are returned.
    """
    index = index.to(torch.int64)
    first, last = start // 4, (start + draws + 3) // 4
    block = torch.arange(first, last, device=index.device)
    out = philox(
        derive(seed, purpose),
        (block[None, :] & _MASK, 0, (index & _MASK)[:, None], ((index >> 32) & _MASK)[:, None]),
    )
    flat = torch.stack(out, dim=-1).flatten(1)
    return flat[:, start - 4 * first : start - 4 * first + draws]


def uniforms(seed: int, purpose: str, index: Tensor, draws: int, *, start: int = 0) -> Tensor:
    """Return float64 uniforms [len(index), draws] in (0, 1), keyed by (seed, purpose, index, draw)."""
    return (words(seed, purpose, index, draws, start=start).to(torch.float64) + 0.5) * 2.0**-32


def one_position(seed: int, index: Tensor, lengths: Tensor, *, purpose: str = "position") -> Tensor:
    """Return a uniformly drawn position [n] below each of `lengths` [n], keyed by (seed, purpose, index)."""
    return (words(seed, purpose, index, 1)[:, 0].to(lengths.device) * lengths) >> 32


def signs(seed: int, purpose: str, index: Tensor, draws: int) -> Tensor:
    """Return float32 Rademacher signs [len(index), draws], one bit of a word each."""
    packed = words(seed, purpose, index, (draws + 31) // 32)
    bits = (packed[:, :, None] >> torch.arange(32, device=packed.device)) & 1
    return (bits.reshape(len(index), -1)[:, :draws] * 2 - 1).to(torch.float32)


def generator(seed: int, *purpose: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """Return a torch generator seeded for one purpose, e.g. `generator(0, "init")`."""
    return torch.Generator(device=device).manual_seed(derive(seed, *purpose))
