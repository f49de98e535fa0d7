"""Cutting a fixed number of sentences into shards, and drawing a shard's sentences."""

from __future__ import annotations

from torch import Tensor

from raysweep.languages.base import Language
from raysweep.seeding import derive


def shard_count(total: int, size: int) -> int:
    """Return the number of shards of at most `size` that `total` sentences make.

    >>> shard_count(10, 4)
    3
    """
    return -(-total // size)


def shard_range(total: int, size: int, shard: int) -> range:
    """Return the numbers of the sentences of one shard; raises `IndexError` for a shard that is not there.

    >>> shard_range(10, 4, 2)
    range(8, 10)
    """
    if not 0 <= shard < shard_count(total, size):
        raise IndexError(f"shard {shard} of {shard_count(total, size)}")
    return range(shard * size, min(total, (shard + 1) * size))


def draw_sentences(language: Language, numbers: range, *, seed: int, purpose: str) -> Tensor:
    """Return the sentences `numbers` [n, T] of an evaluation: the same for every run."""
    return language.held_out.sample(len(numbers), seed=derive(seed, purpose), start=numbers.start)
