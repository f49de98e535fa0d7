"""Sentences of a batch one behind the other, shortest first and without padding, cut into chunks.

A chunk is some number of whole sentences; its forward and backward pass are done before the next one's, so
memory does not grow with the batch, and the activations of small models stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NoReturn

import numpy as np

from raysweep.compiled import kernel
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

    def distinct(self, vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return all pairs of a word and a position, [n] and [n], and which of them each word is [N].

        None where there are more than half as many pairs as words.
        """
        if 2 * vocabulary * self.longest > len(self.ids):
            return None
        return *_pairs(vocabulary, self.longest), self.ids * self.longest + self.at


@lru_cache(maxsize=8)
def _pairs(vocabulary: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    words, places = np.divmod(np.arange(vocabulary * longest), longest)
    return words, places


def packed(batch: Batch, model: MaskedLM, words: int) -> Iterator[Chunk]:
    """Yield a batch's chunks of about `words` words.

    Raises `DataError` for words, positions or targets that the model does not have: compiled code would read
    what lies beside its tables.
    """
    ids, length, targets = batch.ids.numpy(), batch.lengths.numpy(), batch.targets.numpy()
    index = batch.index.numpy()
    _check(model, batch)
    words_in_all, sentences, predicted = int(length.sum()), len(length), len(index)
    flat, at, place = (np.empty(words_in_all, dtype=np.int64) for _ in range(3))
    starts, asked = (np.empty(sentences + 1, dtype=np.int64) for _ in range(2))
    masked, number = (np.empty(predicted, dtype=np.int64) for _ in range(2))
    rows = batch.rows
    found = _sort(
        ids, length, index, batch.single, rows.start, rows.step, model.max_length,
        starts, flat, at, place, asked, masked, number,
    )  # fmt: skip
    if found != predicted:
        raise DataError(f"{predicted - found} of {predicted} masked words stand behind a sentence, or twice")
    wanted, first = targets[number].astype(np.int64, copy=False), 0
    if not 0 <= flat.min() <= flat.max() < model.total_vocabulary:
        _refuse("word", flat, model)
    while first < sentences:
        # The chunk has the sentences that begin within `words` words of the first: at least one.
        last = int(np.searchsorted(starts[:-1], starts[first] + words))
        lo, hi, mine = starts[first], starts[last], slice(asked[first], asked[last])
        yield Chunk(
            ids=flat[lo:hi],
            at=at[lo:hi],
            place=place[lo:hi],
            starts=starts[first : last + 1] - lo,
            masked=masked[mine] - lo,
            asking=asked[first : last + 1] - asked[first],
            targets=wanted[mine],
            number=number[mine],
        )
        first = last


@kernel()
def _sort(  # type: ignore[no-untyped-def]
    ids, length, index, single, first, step, max_length, starts, flat, at, place, asked, masked, number
):
    """Write what the chunks of a batch have, over all chunks; return the number of masked words found.

    Sentences of one length stay in their order.  `starts` and `asked` [S + 1] are `starts` and `asking` of
    all sentences.
    """
    sentences, width = ids.shape
    begin = np.zeros(width + 2, dtype=np.int64)
    for s in range(sentences):
        begin[length[s] + 1] += 1
    for n in range(width + 1):
        begin[n + 1] += begin[n]
    order = np.empty(sentences, dtype=np.int64)
    for s in range(sentences):
        order[begin[length[s]]] = s
        begin[length[s]] += 1
    n = 0
    place_of = np.empty(sentences, dtype=np.int64)
    for k in range(sentences):
        s = order[k]
        starts[k] = place_of[s] = n
        for t in range(length[s]):
            flat[n], at[n], place[n] = ids[s, t], t, (first + step * s) * max_length + t
            n += 1
    starts[sentences] = n
    masked_at = np.full(n, -1)
    for m in range(len(index)):
        s = m if single else index[m] // width
        t = index[m] if single else index[m] % width
        if 0 <= s < sentences and 0 <= t < length[s]:
            masked_at[place_of[s] + t] = m
    found = 0
    for k in range(sentences):
        asked[k] = found
        for i in range(starts[k], starts[k + 1]):
            if masked_at[i] >= 0:
                masked[found], number[found] = i, masked_at[i]
                found += 1
    asked[sentences] = found
    return found


def _check(model: MaskedLM, batch: Batch) -> None:
    length, targets, (sentences, width) = batch.lengths.numpy(), batch.targets.numpy(), batch.ids.shape
    if not len(length) == len(batch.rows) == sentences:
        raise DataError(f"{len(length)} lengths and {len(batch.rows)} numbers of {sentences} sentences")
    longest = length.max()
    if longest > model.max_length:
        raise DataError(
            f"sentences of {longest} positions, but the model has {model.max_length}; "
            "build it for a language with this max_length"
        )
    if length.min() < 0 or longest > width:
        raise DataError(f"sentences of {length.min()} to {longest} words in rows of {width}")
    if not 0 <= targets.min() <= targets.max() < model.total_vocabulary:
        _refuse("target", targets, model)


def _refuse(name: str, found: np.ndarray, model: MaskedLM) -> NoReturn:
    wrong = found.min() if found.min() < 0 else found.max()
    raise DataError(f"{name} {wrong} is none of the model's {model.total_vocabulary} tokens")
