"""Cutting a fixed number of sentences into shards, and drawing a shard's sentences and masked positions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from raysweep.flatness.inputs import draw_positions
from raysweep.languages.base import Language
from raysweep.seeding import derive
from raysweep.training.data import some_positions


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


def draw_inputs(
    language: Language, numbers: range, *, mask: Literal["one"] | float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return sentences and masked positions of the Fisher trace's inputs `numbers`, the same for every run.

    For a `mask` of "one" positions are [n]; for a rate, as in `pretrain`, they are a mask [n, T] of bools.
    """
    ids = draw_sentences(language, numbers, seed=seed, purpose="trace")
    if mask == "one":
        return ids, draw_positions(ids, language.pad_id, seed=seed, start=numbers.start)
    at = torch.arange(numbers.start, numbers.stop)
    key = derive(seed, "trace", "mask")
    return ids, some_positions(language.lengths(ids), ids.shape[1], mask, seed=key, sentences=at)
