"""Texts as sentences of a language: words outside it, pairs, separators and truncation, as BERT has them.

    one text:   A [SEP]                    two texts:   A [SEP] B [SEP]

Where they are too long, words are taken from the end of the longer text, one by one, and of the second one
where both are equally long (Devlin, Chang, Lee and Toutanova, "BERT: pre-training of deep bidirectional
transformers for language understanding", NAACL 2019, and its released code).  The token [CLS] in front is
added by what classifies with it, and is no part of the sentence.  A language without a separator among its
words (a causal LM) closes no text, and has the token [CLS] between the texts of a pair.

BERT also adds an embedding of the segment, first or second text, to every token.  Encoders of raysweep have
none, as RoBERTa (Liu et al., "RoBERTa: a robustly optimized BERT pretraining approach", 2019): the separator
alone divides a pair.  In a model read from a BERT folder, both texts have the embedding of the first segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raysweep.errors import ConfigError

_ROWS = 1024  # encoded at once: a token takes a hundred bytes meanwhile

#: What an encoder returns for a token outside the vocabulary.
OUTSIDE = -1


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The way a language writes texts: `encode` gives int64 word ids per text, `OUTSIDE` for what it lacks.

    `outside` is its rule for these: `keep` writes the word `unknown`.  `separator` is between two texts, and
    behind the last one where `closed`.
    """

    encode: Callable[[Sequence[str]], list[np.ndarray]]
    outside: Literal["keep", "drop", "mask"]
    unknown: int | None
    mask_id: int
    separator: int
    closed: bool
    length: int


@dataclass
class Tally:
    """Counts over the sentences of a task: tokens, those outside the vocabulary, and what became of texts."""

    tokens: int = 0
    outside: int = 0
    blank: int = 0
    cut: int = 0


def sentences_of(
    columns: Sequence[Sequence[str]], encoding: Encoding, rule: Literal["keep", "drop", "mask"], tally: Tally
) -> list[np.ndarray]:
    """Return the sentence of each row, int64 word ids, from its one or two texts, and count in `tally`.

    A text that has no word left becomes one mask.  Raises `ConfigError` where sentences are too short for
    a word of each text.
    """
    room = encoding.length - (len(columns) if encoding.closed else len(columns) - 1)
    if room < len(columns):
        raise ConfigError(f"length: {encoding.length} words have no room for {len(columns)} texts; raise it")
    parts = [
        [
            _known(ids, encoding, rule, tally)
            for k in range(0, len(column), _ROWS)
            for ids in encoding.encode(column[k : k + _ROWS])
        ]
        for column in columns
    ]
    separator = np.array([encoding.separator])
    sentences = []
    for texts in zip(*parts, strict=True):
        sizes = _sizes([len(ids) for ids in texts], room)
        tally.cut += any(size < len(ids) for size, ids in zip(sizes, texts, strict=True))
        pieces: list[Any] = []
        for ids, size in zip(texts, sizes, strict=True):
            pieces += [ids[:size], separator]
        sentences.append(np.concatenate(pieces if encoding.closed else pieces[:-1]))
    return sentences


def _known(ids: np.ndarray, encoding: Encoding, rule: str, tally: Tally) -> np.ndarray:
    """Return the words of a text after the rule for those outside the vocabulary."""
    outside = ids == OUTSIDE
    tally.tokens += len(ids)
    tally.outside += int(outside.sum())
    if rule == "drop":
        ids = ids[~outside]
    else:
        filler = encoding.unknown if rule == "keep" else None
        ids = np.where(outside, encoding.mask_id if filler is None else filler, ids)
    if not len(ids):
        tally.blank += 1
        return np.array([encoding.mask_id])
    return ids


def _sizes(lengths: list[int], room: int) -> list[int]:
    """Return the words that remain of each text.

    >>> _sizes([9], 4), _sizes([9, 2], 6), _sizes([5, 5], 7), _sizes([2, 3], 7)
    ([4], [4, 2], [4, 3], [2, 3])
    """
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first, second = lengths
    if first + second <= room:
        return lengths
    # Both at most: the longer one is shortened to the other's length, then both in turn, the second first.
    shorter = min(first, second)
    if shorter <= room // 2:
        return [room - shorter, shorter] if first > second else [shorter, room - shorter]
    return [room - room // 2, room // 2]
