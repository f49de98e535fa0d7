"""Labelled sentences for downstream tasks: training and test sets that share no sentence.

**Train against test.**  A fixed hash of a sentence's words, the same for every seed, puts the sentence into
`train` or `test`, about half of them each.  A sentence of one split therefore never occurs in the other,
whatever seeds and sizes are used.  Each split is the language conditioned on its half of the sentences.

**Tasks against everything else.**  Task sentences are drawn from streams of their own, so they are never the
numbered sentences that a model is pre-trained or evaluated on.  Evaluation sentences (excess loss, trace) are
not restricted by their words, because that would change their distribution: a short sentence that is
probable enough to be drawn twice may occur in an evaluation and in a split.

Sentence i of a split is a function of (seed, split, i) alone: sentences come in blocks, and each block has
its own range of candidates, from which it takes those of its split, in order.

>>> from raysweep.languages.hmm import HMM
>>> language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,))
>>> sample = draw_split(language, "test", 10, seed=0)
>>> bool(in_test(sample.ids, language.pad_id).all())
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.languages.base import Language, Sample, Task
from raysweep.seeding import derive

Split = Literal["train", "test"]

#: Sentences that share a range of candidates: a slice costs at most this many sentences more than it has.
BLOCK = 1024
#: Candidates of a block: about one in two is taken.
CANDIDATES = 64 * BLOCK

_ROWS = 1024  # sentences whose posteriors are in memory at once

# Odd constants of the SplitMix64 generator and its finaliser (Steele, Lea and Flood, "Fast splittable
# pseudorandom number generators", OOPSLA 2014), as the signed integers that tensors hold.
_GOLDEN, _MIX_1, _MIX_2 = (
    c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def sentence_hash(ids: Tensor, pad_id: int) -> Tensor:
    """Return a 64-bit hash [B] (int64) of the words of each sentence [B, T]; padding plays no part.

    Every word is hashed with its position, the sum over positions is hashed again.
    """
    position = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    # Both stay far below 2^31, so every pair of word and position has its own number.
    code = _mixed(((ids.to(torch.int64) + 1) << 32) + position)
    return _mixed(torch.where(ids != pad_id, code, 0).sum(dim=1))


def in_test(ids: Tensor, pad_id: int) -> Tensor:
    """Return which sentences [B] of `ids` [B, T] belong to the split `test`; the others belong to `train`."""
    return sentence_hash(ids, pad_id) < 0


def in_validation(ids: Tensor, pad_id: int, share: float) -> Tensor:
    """Return which sentences [B] of `ids` [B, T] are in the `share` that choices are judged by.

    This is for training examples: settings are chosen on this share of them, and the test examples stay
    unseen.  Equal sentences are on the same side, whatever seeds and sizes are used, and a larger share
    contains a smaller one.
    """
    # Mixed once more, because the first bit of the hash has already chosen the split.
    value = _mixed(sentence_hash(ids, pad_id)) >> 11 & ((1 << 53) - 1)
    return value.to(torch.float64) < share * 2.0**53


def draw_split(language: Language, split: Split, n: int, *, seed: int, start: int = 0) -> Sample:
    """Draw sentences `start .. start+n-1` of a split, with their latents; any slicing gives the same ones.

    Cost: about two sampled sentences per sentence, and up to 1,024 more where `start` is not a multiple of
    1,024.  Raises `DataError` where hardly any sentence of the language falls into the split.
    """
    if split not in ("train", "test"):
        raise DataError(f"split: no '{split}'; choose train or test")
    stop = start + n
    parts = [
        _draw_block(language, split, block, derive(seed, "task", split), first, last)
        for block in range(start // BLOCK, (stop + BLOCK - 1) // BLOCK)
        if (first := max(start - block * BLOCK, 0)) < (last := min(stop - block * BLOCK, BLOCK))
    ]
    # Not every sampler accepts an empty batch, so an empty one is cut from one sentence.
    return _joined(parts) if parts else _picked(language.sample_latent(1, seed=seed), torch.arange(0))


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """The distribution of the labels of some sentences over the classes of a task.

    `counts` has one entry per class, zero for a class that did not occur.  Facts about different sentences of
    one task can be added.
    """

    task: Task
    counts: tuple[int, ...]

    @classmethod
    def of(cls, task: Task, labels: Tensor) -> TaskFacts:
        """Count `labels` [B]."""
        counts = torch.bincount(labels.cpu(), minlength=len(task.classes))
        return cls(task=task, counts=tuple(counts.tolist()))

    def __add__(self, other: TaskFacts) -> TaskFacts:
        if self.task != other.task:
            raise DataError(f"facts about task '{self.task.name}' and '{other.task.name}' do not add up")
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return TaskFacts(task=self.task, counts=counts)

    @property
    def n(self) -> int:
        """Number of sentences."""
        return sum(self.counts)

    @property
    def classes_seen(self) -> int:
        """Number of classes that occur."""
        return sum(count > 0 for count in self.counts)

    @property
    def majority(self) -> int:
        """The most frequent class; the first one of several."""
        return max(range(len(self.counts)), key=self.counts.__getitem__)

    @property
    def majority_rate(self) -> float:
        """Share of the most frequent class, the accuracy of a constant answer; NaN if n is 0."""
        return self.counts[self.majority] / self.n if self.n else math.nan

    @property
    def majority_standard_error(self) -> float:
        """Standard error of `majority_rate` over independently drawn sentences."""
        return math.sqrt(self.majority_rate * (1 - self.majority_rate) / self.n) if self.n else math.nan


def certainty(language: Language, task: str, ids: Tensor) -> Tensor | None:
    """Return max_c Pr(label = c | sentence) [B], float64, None where it is unknown.

    Its mean over sentences is the accuracy of the best possible classifier (Bayes).
    """
    if language.determined(task):
        return torch.ones(len(ids), dtype=torch.float64, device=ids.device)
    parts = [language.label_posterior(task, rows) for rows in ids.split(_ROWS)]
    known = [part.max(dim=1).values for part in parts if part is not None]
    return torch.cat(known) if known else None


def task_facts(
    language: Language, sample: Sample, tasks: Iterable[str] | None = None
) -> dict[str, TaskFacts]:
    """Return the facts about the labels of `sample` for `tasks`, or for all tasks of the language.

    Sentences that the tasks are not about are left out.  Raises `DataError` for an unknown task.
    """
    names = list(language.tasks) if tasks is None else list(tasks)
    about = language.in_tasks(sample.ids)
    labels = {name: language.labels(name, sample)[about] for name in names}
    return {name: TaskFacts.of(language.tasks[name], labels[name]) for name in names}


def _mixed(x: Tensor) -> Tensor:
    """Return the SplitMix64 output of each state: a bijection of 64 bits; products wrap around."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _draw_block(language: Language, split: Split, block: int, stream: int, first: int, last: int) -> Sample:
    """Return sentences `first .. last-1` of a block, from its candidates in order."""
    taken: list[Sample] = []
    found = drawn = 0
    while found < last:
        if drawn == CANDIDATES:
            raise DataError(
                f"split '{split}' of {type(language).__name__}: {found} of {drawn} sentences belong to it, "
                f"where {last} are needed; the language has too few different sentences to be divided into "
                "train and test, so give it more words or longer sentences"
            )
        missing = last - found
        # About half of the candidates fit; three standard deviations more.  Each round at least doubles.
        size = min(max(2 * missing + 6 * math.isqrt(missing), drawn), CANDIDATES - drawn)
        sample = language.sample_latent(size, seed=stream, start=block * CANDIDATES + drawn)
        wanted = in_test(sample.ids, language.pad_id) == (split == "test")
        wanted &= language.in_tasks(sample.ids)
        taken.append(_picked(sample, wanted.nonzero()[:missing, 0]))
        found, drawn = found + len(taken[-1].ids), drawn + size
    whole = _joined(taken)
    return whole if first == 0 else _picked(whole, torch.arange(first, last))


def _picked(sample: Sample, rows: Tensor) -> Sample:
    latents = {name: latent[rows] for name, latent in sample.latents.items()}
    return Sample(ids=sample.ids[rows], latents=latents)


def _joined(parts: list[Sample]) -> Sample:
    if len(parts) == 1:
        return parts[0]
    latents = {name: torch.cat([part.latents[name] for part in parts]) for name in parts[0].latents}
    return Sample(ids=torch.cat([part.ids for part in parts]), latents=latents)
