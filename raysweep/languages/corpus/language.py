"""Real text as a language: rows of a corpus, with unknown conditionals.

Documents are divided into training and held-out ones by a hash of their text, tokenised, and packed into rows
of `length` tokens.  A sentence is a row.  Each seed runs through all training rows in its own order, then
through all of them in another order, and so on: with R rows, sentence i is row p(i mod R), where p is the
permutation of (seed, i div R).  `held_out` does the same with the held-out rows.

The loss is measured on held-out rows (`held_out_loss`); there is no entropy to compare it with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.languages.base import Estimate, LabelledData, Language, Sample, Task, sentence_numbers
from raysweep.languages.cache import cache_directory
from raysweep.languages.checks import decoded
from raysweep.languages.corpus import prepare, tokenizer
from raysweep.languages.corpus.config import CorpusConfig
from raysweep.languages.corpus.fields import TrainedTokenizer
from raysweep.languages.corpus.source import Source, resolve
from raysweep.languages.corpus.store import Manifest, Rows, Split, Store, dump
from raysweep.languages.corpus.tokenizer import Words
from raysweep.languages.labelled.sentences import Encoding
from raysweep.languages.labelled.task import TextTask
from raysweep.languages.permutation import permuted

_FORMAT = 1  # of the stored form; another version uses another folder


class Corpus(Language):
    """The training rows of a corpus; `held_out` has the others.  Latents: `row` [B], the number of the row.

    The constructor reads only what identifies source and tokenizer; tasks are looked for when they are asked
    for, or by `problems`.  `prepare`, or the first sample, makes
    the tokens, which are kept in `$RAYSWEEP_CACHE` or `~/.cache/raysweep` for later processes.
    """

    exact: ClassVar[bool] = False
    no_tasks: ClassVar[str] = "the language has no downstream tasks: language.tasks names no labelled texts"

    def __init__(self, config: CorpusConfig, *, split: Split = "train", source: Source | None = None) -> None:
        self.config = config
        self.split = split
        self.max_length = config.length
        self._source = source or resolve(config)
        wanted = config.tokenizer
        self._given: Words | None = None
        if isinstance(wanted, TrainedTokenizer):
            self.vocabulary_size = wanted.vocabulary
        else:
            self._given = Words(tokenizer.fetch(wanted), config.separator)
            self.vocabulary_size = self._given.size
        self._data_tasks = {
            task.title: TextTask(
                task,
                length=config.length,
                pad_id=self.pad_id,
                identity=self._writing,
                encoding=self._encoding,
            )
            for task in config.tasks
        }

    @classmethod
    def open(cls, source: str, **fields: Any) -> Corpus:
        """Open a hub data set or local files; `fields` are those of `CorpusConfig`.  Raises `ConfigError`."""
        return decoded(CorpusConfig, {"source": source, **fields}).build()

    @property
    def held_out(self) -> Corpus:
        """The held-out rows of the same corpus."""
        return self if self.split == "held_out" else self._held_out

    @cached_property
    def _held_out(self) -> Corpus:
        return Corpus(self.config, split="held_out", source=self._source)

    def remarks(self) -> list[str]:
        return [f"language.source: {remark}" for remark in self._source.remarks()]

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Return all that determines the tokens, as plain data: the content of the source, not its path."""
        config = self.config
        return {
            "format": _FORMAT,
            "part": [prepare.PART_DOCUMENTS, prepare.PART_CHARACTERS],
            "source": self._source.identity,
            "rows_per_document": config.rows_per_document,
            "documents": config.documents,
            "tokenizer": config.encode()["tokenizer"] if self._given is None else self._given.digest,
            "separator": config.separator,
            "length": config.length,
            "held_out": config.held_out,
            "seed": config.seed,
        }

    @property
    def store(self) -> Store:
        """The folder of the tokens."""
        return Store(cache_directory() / "corpus" / hashlib.sha256(dump(self.recipe)).hexdigest()[:32])

    @cached_property
    def _rows(self) -> Rows:
        return Rows(self.store, self.manifest, self.split, self.max_length)

    @cached_property
    def manifest(self) -> Manifest:
        """Prepare the corpus and return what it holds.  Raises `DataError` where that cannot be done."""
        return prepare.prepare(self.store, self._source, self.recipe, self._given)

    def prepare(self) -> None:
        """Tokenise the corpus unless that is done; this may take hours, and continues after an interruption.

        Progress is logged as `raysweep.corpus`.  Raises `DataError`, before that, for bad tables of tasks.
        """
        for field, message in self.problems():
            raise DataError(f"{field}: {message}")
        _ = self.manifest
        super().prepare()

    @property
    def distinct(self) -> int | None:
        """Rows of this split; None before the corpus is prepared."""
        if "manifest" not in self.__dict__ and self.store.manifest() is None:
            return None
        return self.manifest.total(self.split, "rows")

    @property
    def words(self) -> Words:
        """The tokenizer; one that is trained on the corpus exists once the corpus is prepared."""
        if self._given is not None:
            return self._given
        return self._trained

    @cached_property
    def _trained(self) -> Words:
        _ = self.manifest
        return prepare.trained(self.store, self._source)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """No tasks: a corpus has no labels."""
        return {}

    @property
    def data_tasks(self) -> Mapping[str, LabelledData]:
        """The tasks of labelled texts that the configuration names.

        Text outside the vocabulary is the tokenizer's own unknown word, unless a task says otherwise.
        """
        return self._data_tasks

    @property
    def _writing(self) -> dict[str, Any]:
        """Plain data that determines the words of a text; a tokenizer in training depends on the corpus."""
        if self._given is None:
            return {"recipe": self.recipe}
        return {"tokenizer": self._given.digest, "separator": self._given.separator}

    def _encoding(self) -> Encoding:
        words = self.words
        return Encoding(
            encode=words.known,
            outside="keep",
            unknown=words.unknown,
            mask_id=self.mask_id,
            separator=words.separator,
            closed=True,
            length=self.max_length,
        )

    def sample_latent(self, n: int, *, seed: int, start: int = 0) -> Sample:
        """Draw rows without replacement, epoch by epoch: latents `row` int64 [n]."""
        row = self._row(sentence_numbers(n, start), seed)
        return Sample(ids=self._taken(row), latents={"row": row})

    def sample_at(self, numbers: Tensor, *, seed: int) -> Tensor:
        return self._taken(self._row(numbers, seed))

    def _row(self, numbers: Tensor, seed: int) -> Tensor:
        rows = len(self._rows)
        return permuted(numbers % rows, rows, seed=seed, purpose="corpus", epoch=numbers // rows)

    def _taken(self, row: Tensor) -> Tensor:
        return torch.from_numpy(self._rows.take(row.numpy()))

    def labels(self, task: str, sample: Sample) -> Tensor:
        """Raise `DataError`: a corpus has no tasks."""
        raise DataError(f"no task '{task}'; a corpus has none")

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Raise `DataError`: they are unknown."""
        raise self._unknown("conditionals")

    def log_prob(self, ids: Tensor) -> Tensor:
        """Raise `DataError`: it is unknown."""
        raise self._unknown("probabilities of sentences")

    def entropy(
        self,
        n: int = 4096,
        *,
        seed: int = 0,
        batch: int = 1024,
        positions: Literal["all", "random"] = "all",
    ) -> Estimate:
        """Raise `DataError`: it is unknown."""
        raise self._unknown("entropy")

    def _unknown(self, what: str) -> DataError:
        return DataError(
            f"nobody knows the {what} of a corpus; measure the loss on held-out text with held_out_loss"
        )

    def content(self) -> bytes:
        """Return bytes that determine the rows."""
        return dump([self.split, self.recipe])

    def text(self, ids: Tensor) -> str:
        """Return a row [T] as text."""
        return self.words.decode(ids.tolist())
