"""Sentences of a batch one behind the other, shortest first and without padding, cut into chunks.

A chunk is some number of whole sentences; its forward and backward pass are done before the next one's, so
memory does not grow with the batch, and the activations of small models stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raysweep.errors import DataError
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch


@dataclass(frozen=True)
class Chunk:
    """N words of S whole sentences; M of the words are masked.

    `ids` and `at` [N] are words and their positions; `place` [N] their numbers in the whole batch, row times
    `max_length` plus position; `starts` [S + 1] where sentences begin; `masked` [M] which of the N are
    masked, `asking` [S + 1] where those of each sentence begin among them, `targets` [M] what stood there,
    and `number` [M] their places in the batch's `index`.
    """

    ids: np.ndarray
    at: np.ndarray
    place: np.ndarray
    starts: np.ndarray
    masked: np.ndarray
    asking: np.ndarray
    targets: np.ndarray
    number: np.ndarray

    @cached_property
    def longest(self) -> int:
        """Words of the longest sentence."""
        return int(np.diff(self.starts).max())

    @cached_property
    def pairs(self) -> int:
        """Pairs of a masked word and a word of its sentence."""
        return int(np.diff(self.asking) @ np.diff(self.starts))


def packed(batch: Batch, model: MaskedLM, words: int) -> Iterator[Chunk]:
    """Yield a batch's chunks of about `words` words.

    Raises `DataError` for words, positions or targets that the model does not have: compiled code would read
    what lies beside its tables.
    """
    ids, length, index = batch.ids.numpy(), batch.lengths.numpy(), batch.flat_index.numpy()
    order = length.argsort(kind="stable")
    length = length[order]
    ends = length.cumsum()
    starts = ends - length
    # For each word: the number of its sentence in this order, and its position there.
    sentence = np.repeat(np.arange(len(order)), length)
    at = np.arange(len(sentence)) - starts[sentence]
    row = order[sentence]
    flat = ids[row, at]
    number = np.arange(batch.rows.start, batch.rows.stop, batch.rows.step)
    place = number[row] * model.max_length + at
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    masked_row, position = np.divmod(index, ids.shape[1])
    masked = starts[rank[masked_row]] + position
    sorting = masked.argsort(kind="stable")
    masked, wanted = masked[sorting], batch.targets.numpy()[sorting]
    _check(model, flat, length, wanted)
    first = 0
    while first < len(order):
        # The chunk has the sentences that begin within `words` words of the first: at least one.
        last = int(np.searchsorted(starts, starts[first] + words))
        lo, hi = starts[first], ends[last - 1]
        bounds = np.append(starts[first:last], hi)
        asked = np.searchsorted(masked, bounds)
        mine = slice(asked[0], asked[-1])
        yield Chunk(
            ids=flat[lo:hi],
            at=at[lo:hi],
            place=place[lo:hi],
            starts=bounds - lo,
            masked=masked[mine] - lo,
            asking=asked - asked[0],
            targets=wanted[mine],
            number=sorting[mine],
        )
        first = last


def _check(model: MaskedLM, ids: np.ndarray, length: np.ndarray, targets: np.ndarray) -> None:
    if length[-1] > model.max_length:
        raise DataError(
            f"sentences of {length[-1]} positions, but the model has {model.max_length}; "
            "build it for a language with this max_length"
        )
    for name, found in (("word", ids), ("target", targets)):
        if found.min() < 0 or found.max() >= model.total_vocabulary:
            wrong = found.min() if found.min() < 0 else found.max()
            raise DataError(f"{name} {wrong} is none of the model's {model.total_vocabulary} tokens")
