"""The base of all languages: sentences, exact conditionals, entropy and labelled tasks.

A language is a distribution over sentences x = (x_1, ..., x_T), T at most `max_length`, of words
0 .. V-1.  Token ids above the words are special, the same for every language: `pad_id` = V, `mask_id` = V+1,
`cls_id` = V+2.  A batch of sentences is an int64 tensor [B, T], rows padded on the right with `pad_id`.

Sentence i of a seed is a function of (seed, i) alone, so data is generated, and stored only where
drawing it costs more than reading it (`stores_sentences`).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep.errors import DataError
from raysweep.registry import KindConfig
from raysweep.seeding import one_position

#: Sentences whose conditionals are in float64 at once.
_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its standard error over `n` independent draws; nats unless said otherwise."""

    value: float
    standard_error: float
    n: int

    @classmethod
    def of(cls, values: Tensor) -> Estimate:
        """Return mean and standard error of independent `values` [n], in float64."""
        values = values.to(torch.float64)
        n = values.numel()
        error = values.std().item() / math.sqrt(n) if n > 1 else math.nan
        return cls(value=values.mean().item(), standard_error=error, n=n)


#: Scores of predictions; `raysweep.downstream.scores` computes them.
TaskMetric = Literal["accuracy", "f1", "matthews", "pearson", "spearman"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A downstream task on whole sentences: classification, or regression.

    `classes` names the labels 0 .. C-1 of a classification; a regression has none, and real labels.
    `metrics` are the task's scores, the first one its headline.  `segments` is the number of texts that a
    sentence joins: 1, or 2 with a separator between them.
    """

    name: str
    classes: tuple[str, ...]
    description: str
    metrics: tuple[TaskMetric, ...] = ("accuracy",)
    segments: Literal[1, 2] = 1

    @property
    def regression(self) -> bool:
        """True where labels are real numbers."""
        return not self.classes


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Sentences with what generated them: `ids` [B, T] and the latents that the language keeps."""

    ids: Tensor
    latents: Mapping[str, Tensor] = field(default_factory=dict)


class LabelledData(ABC):
    """The labelled rows of a data set, as sentences of a language: a downstream task that it can be given.

    `train` are the rows to learn from, `test` the rows that results are reported on.
    """

    @property
    @abstractmethod
    def task(self) -> Task:
        """The task; prepares what is missing, because rows may name the classes."""

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return self.task.regression

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The sha256 of all that determines sentences and labels, independent of file names."""

    def problems(self) -> list[tuple[str, str]]:
        """Return field and message for each mistake that can be seen before `prepare`, in bounded time."""
        return []

    @abstractmethod
    def prepare(self) -> None:
        """Read and check the rows and make their sentences, unless that is done.

        Raises `DataError` for rows that make no task.
        """

    @abstractmethod
    def size(self, split: Literal["train", "test"]) -> int | None:
        """Return the number of rows of a split, None where it is unknown before `prepare`."""

    def most(self, split: Literal["train", "test"]) -> int | None:
        """Return the largest number that `size` can be, None where it is unknown before `prepare`."""
        return self.size(split)

    @abstractmethod
    def take(self, split: Literal["train", "test"], rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids int64 [n, max_length] and labels [n] of rows [n] by number; prepares what is missing.

        Labels are int64, or float32 for a regression.
        """

    def summary(self) -> str:
        """Return a sentence on the rows for people; prepares what is missing."""
        self.prepare()
        return f"{self.size('train'):,} training and {self.size('test'):,} test examples"


def sentence_numbers(n: int, start: int = 0) -> Tensor:
    """Return the numbers start .. start+n-1 of sentences, int64 [n].

    Raises `DataError` unless both are whole numbers, and not negative.
    """
    for name, value in (("n", n), ("start", start)):
        if not hasattr(value, "__index__") or value < 0:
            raise DataError(f"{name}: {value!r} is not a whole number ≥ 0")
    return torch.arange(start, start + n)


def certain_length(length: int) -> np.ndarray:
    """Return `length_probabilities` of a language whose sentences all have `length` words.

    >>> certain_length(2).tolist()
    [0.0, 0.0, 1.0]
    """
    probabilities = np.zeros(length + 1)
    probabilities[length] = 1.0
    return probabilities


#: Most words of a drawn language, and most probabilities in its tables together: a configuration with more
#: is refused before anything is built.  Drawing tables of this size takes some 500 MiB.
MOST_WORDS = 1 << 20
MOST_PROBABILITIES = 1 << 23


class LanguageConfig(KindConfig):
    """Base of language configurations; `build` makes the language."""

    #: Fields that hold the name of something on the Hugging Face hub, or a local path.
    hub_or_path: ClassVar[frozenset[str]] = frozenset()

    def build(self) -> Language:
        """Make the language; raises `ConfigError` or `DataError` where its parameters make no sense."""
        raise TypeError(f"{type(self).__name__} does not say how to build its language")


class Language(ABC):
    """A distribution over sentences; its conditionals are known exactly where `exact` is true."""

    vocabulary_size: int
    max_length: int
    #: False where the distribution is unknown (a corpus): `conditionals` and `log_prob` raise `DataError`.
    exact: ClassVar[bool] = True
    #: True where every sentence has `max_length` words.
    fixed_length: ClassVar[bool] = False
    #: Positions of a sentence that `conditionals` can hide at once; None: any number.
    most_hidden: ClassVar[int | None] = None
    #: True where exact conditionals are stored, because computing them costs more than reading them.
    stores_conditionals: ClassVar[bool] = False
    #: True where training sentences are stored, because drawing them costs more than reading them.
    stores_sentences: ClassVar[bool] = False
    #: Sentences that training draws at once; it waits for them, so fewer where each takes long.
    drawn_at_once: ClassVar[int] = 16384
    #: Reason for a language without downstream tasks, for error messages.
    no_tasks: ClassVar[str] = "the language has no downstream tasks"
    #: Remarks for the user, a line each, e.g. on symbols that occur in no sentence.
    notes: tuple[str, ...] = ()
    #: Pr(a sentence has n words), float64 [max_length+1]; None where it is not known exactly.
    length_probabilities: np.ndarray | None = None

    def __repr__(self) -> str:
        most = "" if self.fixed_length else "at most "
        return f"{type(self).__name__}({self.vocabulary_size:,} words, sentences of {most}{self.max_length})"

    @property
    def held_out(self) -> Language:
        """The same language for evaluation: sentences that training never sees.

        A language that is generated gives each seed its own independent sentences, so this is the language
        itself; a corpus gives its held-out documents.
        """
        return self

    @property
    def distinct(self) -> int | None:
        """Number of different sentences that a seed gives before they repeat.

        None where they never repeat, and where the number is unknown before `prepare`.
        """
        return None

    def remarks(self) -> list[str]:
        """Return what a reader should know before `prepare`, though it is no mistake."""
        return []

    def problems(self) -> list[tuple[str, str]]:
        """Return field of the configuration and message for each mistake that `prepare` would find at once.

        Local tables of `data_tasks` are read for it; nothing is made, and no rows come from the hub.
        """
        return [
            (f"tasks.{k}.{field}", message)
            for k, data in enumerate(self.data_tasks.values())
            for field, message in data.problems()
        ]

    def prepare(self) -> None:
        """Make what sampling reads, such as the token shards of a corpus; without it, the first sample does.

        The sentences of `data_tasks` are made too.  Raises `DataError` where that fails.
        """
        for data in self.data_tasks.values():
            data.prepare()

    @property
    def pad_id(self) -> int:
        """Id that fills a row behind its sentence."""
        return self.vocabulary_size

    @property
    def mask_id(self) -> int:
        """Id that hides a word from the model."""
        return self.vocabulary_size + 1

    @property
    def cls_id(self) -> int:
        """Id of the sentence-level token, reserved for fine-tuning."""
        return self.vocabulary_size + 2

    @property
    @abstractmethod
    def tasks(self) -> Mapping[str, Task]:
        """Downstream tasks on the language's own sentences, by name; `labels` gives their labels."""

    @property
    def data_tasks(self) -> Mapping[str, LabelledData]:
        """Downstream tasks by name whose sentences come from data sets; no part of the fingerprint."""
        return {}

    @abstractmethod
    def sample_latent(self, n: int, *, seed: int, start: int = 0) -> Sample:
        """Draw sentences `start .. start+n-1` of `seed`, padded to `max_length`, with their latents."""

    @abstractmethod
    def labels(self, task: str, sample: Sample) -> Tensor:
        """Return the labels [B] of one of `tasks`, int64; raises `DataError` for an unknown task."""

    def determined(self, task: str) -> bool:
        """Return whether the label of one of `tasks` is known to be a function of the sentence."""
        return False

    def label_posterior(self, task: str, ids: Tensor) -> Tensor | None:
        """Return Pr(label = c | sentence) [B, C], float64, exactly; None where it is unknown.

        Raises `DataError` for an unknown task.
        """
        labels = self.labels(task, Sample(ids=ids)) if self.determined(task) else None
        return None if labels is None else F.one_hot(labels, len(self.tasks[task].classes)).double()

    def in_tasks(self, ids: Tensor) -> Tensor:
        """Return which sentences [B] the tasks are about: all, unless the language says otherwise."""
        return torch.ones(len(ids), dtype=torch.bool, device=ids.device)

    @abstractmethod
    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return exact log-probabilities [B, T, V] in nats, of `dtype`: float32 or float64.

        Without `mask`, entry (b, t) is log Pr(x_t = . | all other words), every position masked in turn.
        With a boolean `mask` [B, T], the marked positions are all hidden at once and entry (b, t) is
        log Pr(x_t = . | words that are not marked); the other entries are NaN.  Entries at padding are NaN.
        With float64, the whole computation is in float64.

        Raises `DataError` for a malformed batch, another dtype, or an id outside the vocabulary, and names
        the first sentence whose visible words are impossible.  `checks.check_conditionals` makes all checks
        but the last.
        """

    @abstractmethod
    def log_prob(self, ids: Tensor) -> Tensor:
        """Return log Pr(x) [B] in nats, float64; -inf for a sentence outside the language."""

    @abstractmethod
    def content(self) -> bytes:
        """Return bytes that determine distribution and tasks, independent of file names and seeds."""

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of `content`: the identity of the language in a run."""
        return hashlib.sha256(type(self).__name__.encode() + b"\0" + self.content()).hexdigest()

    def sample(self, n: int, *, seed: int, start: int = 0) -> Tensor:
        """Draw sentences `start .. start+n-1` of `seed`: ids [n, max_length]."""
        return self.sample_latent(n, seed=seed, start=start).ids

    def sample_at(self, numbers: Tensor, *, seed: int) -> Tensor:
        """Draw the sentences `numbers` [n] of `seed`, in any order: ids [n, max_length].

        This draws neighbours in one call; a language overrides it where it can draw all at once.
        """
        # A new stretch begins wherever a number does not follow the one before it.
        breaks = 1 + (numbers.diff() != 1).nonzero()[:, 0].cpu()
        stretches = [part for part in numbers.tensor_split(breaks) if len(part)]
        rows = [self.sample(len(part), seed=seed, start=int(part[0])) for part in stretches]
        return torch.cat([torch.empty(0, self.max_length, dtype=torch.int64), *rows])

    def sample_on(self, device: torch.device, numbers: Tensor, *, seed: int) -> Tensor:
        """Return the sentences of `sample_at` on `device`; a language that can draws them there."""
        return self.sample_at(numbers.cpu(), seed=seed).to(device)

    def to(self, device: str | torch.device) -> Self:
        """Draw sentences on `device` from now on, if that is faster; the sentences are the same, on the CPU.

        Returns self.  Most languages are drawn on the CPU in no time, so this leaves them there.
        """
        return self

    def lengths(self, ids: Tensor) -> Tensor:
        """Return the number of words of each row [B]."""
        return (ids != self.pad_id).sum(dim=1)

    def text(self, ids: Tensor) -> str:
        """Return a sentence [T] as text: the names of its words, or their numbers where they have none."""
        return " ".join(map(str, ids[ids != self.pad_id].tolist()))

    def sentence_entropy(self, ids: Tensor) -> Tensor:
        """Return (1/T) sum_t H(x_t | x_-t) of each sentence [B] in nats, float64."""
        return self.entropy_of(self.conditionals(ids), ids)

    def entropy_of(self, log_probs: Tensor, ids: Tensor) -> Tensor:
        """Return `sentence_entropy` [B] of `ids` [B, T] from their conditionals [B, T, V]."""
        terms = torch.cat(
            [torch.special.entr(part.double().exp()).sum(-1) for part in log_probs.split(_ROWS)]
        )
        real = ids != self.pad_id
        return torch.where(real, terms, 0.0).sum(dim=1) / real.sum(dim=1)

    def conditionals_at(
        self, ids: Tensor, positions: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return log Pr(x_t = . | all other words) [B, V] in nats, with t = `positions`[b] in sentence b.

        `dtype` is as in `conditionals`.  Raises `DataError` as `conditionals` does, and for a position
        outside the sentence.
        """
        rows = torch.arange(len(ids), device=ids.device)
        return self.conditionals(ids, self.mask_at(ids, positions), dtype=dtype)[rows, positions]

    def mask_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the mask [B, T] that marks `positions`[b] in sentence b.

        Raises `DataError` for a position outside the sentence.
        """
        inside = (positions >= 0) & (positions < self.lengths(ids))
        if not inside.all():
            row = int((~inside).nonzero()[0, 0])
            raise DataError(f"sentence {row}: no word at position {int(positions[row])}")
        return torch.zeros_like(ids, dtype=torch.bool).scatter_(1, positions[:, None].long(), True)

    def drawn_positions(self, ids: Tensor, *, seed: int, start: int = 0) -> Tensor:
        """Return the position [B] that `entropy` draws in sentences `start ..` of `seed`."""
        number = torch.arange(start, start + len(ids))
        return one_position(seed, number, self.lengths(ids), purpose="entropy")

    def entropy(
        self,
        n: int = 4096,
        *,
        seed: int = 0,
        batch: int = 1024,
        positions: Literal["all", "random"] = "all",
    ) -> Estimate:
        """Estimate the least possible masked-LM loss, with one uniformly drawn masked position per sentence.

        Each of `n` sampled sentences gives the entropy of its exact conditionals, averaged over its
        positions (`all`) or of one drawn position (`random`).  Both are unbiased; `random` is noisier, and
        cheaper where the cost grows with the number of positions.  The standard error is over sentences.
        """
        parts = []
        for k in range(0, n, batch):
            ids = self.sample(min(batch, n - k), seed=seed, start=k)
            if positions == "all":
                parts.append(self.sentence_entropy(ids))
                continue
            log_probs = self.conditionals_at(ids, self.drawn_positions(ids, seed=seed, start=k))
            parts.append(torch.special.entr(log_probs.double().exp()).sum(dim=-1))
        return Estimate.of(torch.cat(parts))
