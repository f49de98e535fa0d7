"""A downstream task of labelled texts: its sentences, made once and kept in the cache folder.

The folder is `$RAYSWEEP_CACHE/tasks` or `~/.cache/raysweep/tasks`; a file's name is the task's fingerprint.
Training rows whose sentence is also a test sentence are left out, so that the two share no sentence.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.files import write_atomic
from raysweep.languages.base import LabelledData, Task
from raysweep.languages.cache import cache_directory
from raysweep.languages.labelled import labels
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.rows import Rows, Table, find
from raysweep.languages.labelled.sentences import Encoding, Tally, sentences_of
from raysweep.languages.splits import Split
from raysweep.languages.text_split import is_held_out

log = logging.getLogger("raysweep.corpus")

_FORMAT = 2  # of the stored form and of the way of writing sentences; another version makes them again


@dataclass(frozen=True)
class Sentences:
    """The sentences of one split: `words` of all of them, `starts` [n+1] and `labels` [n]."""

    words: np.ndarray
    starts: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray, length: int, pad_id: int) -> np.ndarray:
        """Return padded ids int64 [len(rows), length]."""
        first, size = self.starts[rows], np.diff(self.starts)[rows]
        place = np.arange(length)
        ids = self.words[np.minimum(first[:, None] + place, len(self.words) - 1)].astype(np.int64)
        return np.where(place < size[:, None], ids, pad_id)


class TextTask(LabelledData):
    """A task of labelled texts in the words of a language.

    `encoding` gives the language's way of writing texts when it is first needed, `identity` is plain data
    that determines it.
    """

    def __init__(
        self,
        config: DataTask,
        *,
        length: int,
        pad_id: int,
        identity: Mapping[str, Any],
        encoding: Callable[[], Encoding],
    ) -> None:
        self.config, self._length, self._pad_id = config, length, pad_id
        self._encoding, self._words = encoding, dict(identity)
        self._table: Table = find(config)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of rows, settings and the language's way of writing texts."""
        config = self.config
        settings = config.encode()
        for name in ("source", "name", "subset", "revision", "train", "test"):
            del settings[name]
        content = {
            "format": _FORMAT,
            "table": self._table.identity,
            "settings": settings,
            "columns": config.columns,
            "length": self._length,
            "words": self._words,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def regression(self) -> bool:
        """Whether labels are numbers, known without reading them."""
        return self.config.classes == ()

    @property
    def task(self) -> Task:
        config, facts = self.config, self.facts
        return Task(
            name=config.title,
            classes=tuple(facts["classes"]),
            description=f"{config.place}{f' {config.glue}' if config.glue else ''}",
            metrics=config.scores,
            segments=2 if len(config.columns) == 2 else 1,
        )

    def prepare(self) -> None:
        """Make the sentences, unless they are in the cache; raises `DataError` for rows that make no task."""
        _ = self._made

    def size(self, split: Split) -> int | None:
        if "_made" not in self.__dict__ and not self._file.is_file():
            return None
        return len(self._made[0][split].labels)

    def take(self, split: Split, rows: Tensor) -> tuple[Tensor, Tensor]:
        sentences, number = self._made[0][split], rows.numpy()
        ids = sentences.take(number, self._length, self._pad_id)
        return torch.from_numpy(ids), torch.from_numpy(sentences.labels[number])

    @property
    def facts(self) -> dict[str, Any]:
        """The fate of the rows, as plain data.

        `classes`; `train` and `test`, the numbers of examples; `empty`, rows without text or label, and
        `repeated`, training rows whose sentence is in the test, both left out; `outside`, the share of tokens
        outside the vocabulary, and `rule`, what became of them; `blank`, texts that had no word left;
        `cut`, the share of sentences that were too long.
        """
        return self._made[1]

    def summary(self) -> str:
        return facts_as_text(self.facts)

    @property
    def _file(self) -> Any:
        return cache_directory() / "tasks" / f"{self.fingerprint}.npz"

    @cached_property
    def _made(self) -> tuple[dict[str, Sentences], dict[str, Any]]:
        if self._file.is_file():
            return _load(self._file)
        splits, facts = self._make()
        arrays = {
            f"{split}_{name}": array for split, found in splits.items() for name, array in vars(found).items()
        }
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)
        write_atomic(self._file, buffer.getvalue())
        log.info("task '%s': %s", self.config.title, facts_as_text(facts))
        return splits, facts

    def _make(self) -> tuple[dict[str, Sentences], dict[str, Any]]:
        config, encoding, tally = self.config, self._encoding(), Tally()
        (train, test), empty = self._rows()
        classes: tuple[str, ...] = ()
        if config.classes == ():
            answers = {"train": labels.numbers(train), "test": labels.numbers(test)}
        else:
            classes = labels.classes_of(config, train)
            answers = {
                "train": labels.class_numbers(train, classes),
                "test": labels.class_numbers(
                    test, classes, named=config.classes is None and train.names is not None
                ),
            }
        rule = config.outside or encoding.outside
        texts = {
            "train": sentences_of(train.texts, encoding, rule, tally),
            "test": sentences_of(test.texts, encoding, rule, tally),
        }
        total = len(train.labels) + len(test.labels)
        held = {ids.tobytes() for ids in texts["test"]}
        fresh = np.array([ids.tobytes() not in held for ids in texts["train"]])
        answers["train"] = answers["train"][fresh]
        texts["train"] = [ids for ids, new in zip(texts["train"], fresh, strict=True) if new]
        if not texts["train"]:
            raise DataError(f"task '{config.title}': every training sentence is also a test sentence")
        if classes:
            labels.check_classes(config.title, classes, answers["train"], answers["test"])
        facts = {
            "classes": list(classes),
            "train": len(texts["train"]),
            "test": len(texts["test"]),
            "empty": empty,
            "repeated": int((~fresh).sum()),
            "outside": tally.outside / tally.tokens if tally.tokens else 0.0,
            "rule": rule,
            "blank": tally.blank,
            "cut": tally.cut / total,
        }
        return {split: _packed(texts[split], answers[split]) for split in texts}, facts

    def _rows(self) -> tuple[tuple[Rows, Rows], int]:
        """Return training and test rows, and the number of incomplete rows that were left out."""
        config = self.config
        train, empty = self._complete(self._table.rows(config.train))
        if config.reported is not None:
            test, more = self._complete(self._table.rows(config.reported))
            return (train, test), empty + more
        share = config.held_out or 0.0
        sides: tuple[list[int], list[int]] = [], []
        for k, texts in enumerate(zip(*train.texts, strict=True)):
            sides[is_held_out("\n".join(texts), share, config.seed)].append(k)
        if not all(sides):
            raise DataError(
                f"held_out: {share} of the {len(train.labels)} rows of {train.place} are {len(sides[1])}; "
                "take another share or more rows"
            )
        return (train.kept(sides[0]), train.kept(sides[1])), empty

    def _complete(self, rows: Rows) -> tuple[Rows, int]:
        complete = list(rows.complete())
        if all(complete):
            return rows, 0
        if not self.config.skip_empty:
            raise DataError(
                f"row {complete.index(False)} of {rows.place} has an empty text or no label; remove it, or "
                "leave such rows out with skip_empty: true"
            )
        kept = [k for k, good in enumerate(complete) if good]
        if not kept:
            raise DataError(f"all {len(complete)} rows of {rows.place} have an empty text or no label")
        return rows.kept(kept), len(complete) - len(kept)


def facts_as_text(facts: Mapping[str, Any]) -> str:
    """Return the facts of a task as a sentence."""
    rule = {"keep": "kept as the unknown word", "drop": "left out", "mask": "masked"}[facts["rule"]]
    parts = [
        f"{facts['train']:,} training and {facts['test']:,} test examples",
        f"{facts['outside']:.1%} of the tokens are outside the vocabulary and {rule}",
        f"{facts['cut']:.1%} of the sentences are cut",
    ]
    if facts["blank"]:
        parts.append(f"{facts['blank']:,} texts that have no word left are one mask")
    if facts["repeated"]:
        parts.append(f"{facts['repeated']:,} training rows that are also in the test are left out")
    if facts["empty"]:
        parts.append(f"{facts['empty']:,} rows without text or label are left out")
    return "; ".join(parts)


def _packed(sentences: Sequence[np.ndarray], answers: np.ndarray) -> Sentences:
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in sentences])])
    return Sentences(np.concatenate(sentences).astype(np.int32), starts, answers)


def _load(path: Any) -> tuple[dict[str, Sentences], dict[str, Any]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            splits = {
                split: Sentences(*(stored[f"{split}_{name}"] for name in ("words", "starts", "labels")))
                for split in ("train", "test")
            }
            return splits, json.loads(stored["facts"].tobytes())
    except Exception as error:  # zip files and arrays each have errors of their own
        raise DataError(f"{path} is damaged; remove it, and it is made again") from error
