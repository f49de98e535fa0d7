"""A downstream task of labelled texts: its sentences, made once and kept in the cache folder.

The folder is `$RAYSWEEP_CACHE/tasks` or `~/.cache/raysweep/tasks`; a file's name is the task's fingerprint.
Training rows whose sentence is also a test sentence are left out, so that the two share no sentence.  The
folder also has the numbers of rows of tables that were checked alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.files import write_atomic
from raysweep.languages.base import LabelledData, Task
from raysweep.languages.cache import cache_directory
from raysweep.languages.labelled.checked import read
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.rows import Table, find
from raysweep.languages.labelled.sentences import Encoding, Tally, sentences_of
from raysweep.languages.splits import Split

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
        self._found: list[tuple[str, str]] | None = None

    @cached_property
    def _table(self) -> Table:
        with self._named():
            return find(self.config)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Put the name of the task behind the field that an error begins with."""
        try:
            yield
        except (ConfigError, DataError) as error:
            field, _, message = str(error).partition(": ")
            raise type(error)(f"{field}: task '{self.config.title}': {message}") from error

    @cached_property
    def _recipe(self) -> dict[str, Any]:
        """Plain data that determines texts and labels."""
        settings = self.config.encode()
        for name in ("source", "name", "subset", "revision", "train", "test"):
            del settings[name]
        return {
            "format": _FORMAT,
            "table": self._table.identity,
            "settings": settings,
            "columns": self.config.columns,
        }

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of rows, settings and the language's way of writing texts."""
        return _digest(self._recipe | {"length": self._length, "words": self._words})

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

    def problems(self) -> list[tuple[str, str]]:
        """Return field and message for what is wrong with local rows, without making sentences.

        The tables are read, unless that was done for this content; of a data set on the hub, only the commit
        is asked for where it is not known.
        """
        self._found = []
        try:
            _ = self._bounds
        except (ConfigError, DataError) as error:
            field, _, message = str(error).partition(": ")
            self._found = [(field, message)]
        except OSError as error:
            message = f"task '{self.config.title}': {error.filename} cannot be read: {error.strerror}"
            self._found = [("source", message)]
        return self._found

    @cached_property
    def _bounds(self) -> dict[Split, int]:
        """The numbers of rows that bound those of examples; {} where the rows are not looked at."""
        if self._table.loader == "hub" or self._file.is_file():
            return {}
        record = self._file.with_name(f"{_digest(self._recipe)}.json")
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError
        ):  # no record, or a damaged one: the rows are read
            known = json.loads(record.read_bytes())
            return {"train": int(known["train"]), "test": int(known["test"])}
        with self._named():
            checked = read(self._table)
            fresh = checked.fresh(
                {split: zip(*rows.texts, strict=True) for split, rows in checked.rows.items()}
            )
        bounds: dict[Split, int] = {"train": int(fresh.sum()), "test": len(checked.answers["test"])}
        write_atomic(record, json.dumps(bounds).encode())
        return bounds

    def prepare(self) -> None:
        """Make the sentences, unless they are in the cache; raises `DataError` for rows that make no task."""
        _ = self._made

    def size(self, split: Split) -> int | None:
        if "_made" not in self.__dict__ and not self._file.is_file():
            return None
        return len(self._made[0][split].labels)

    def most(self, split: Split) -> int | None:
        if self.problems() if self._found is None else self._found:
            return None
        size = self.size(split)
        return self._bounds.get(split) if size is None else size

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
        with self._named():
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
        checked = read(self._table)
        rule = config.outside or encoding.outside
        texts = {
            split: sentences_of(rows.texts, encoding, rule, tally) for split, rows in checked.rows.items()
        }
        total = sum(map(len, texts.values()))
        fresh = checked.fresh({split: [ids.tobytes() for ids in found] for split, found in texts.items()})
        texts["train"] = [ids for ids, new in zip(texts["train"], fresh, strict=True) if new]
        answers = {**checked.answers, "train": checked.answers["train"][fresh]}
        facts = {
            "classes": list(checked.classes),
            "train": len(texts["train"]),
            "test": len(texts["test"]),
            "empty": checked.empty,
            "repeated": int((~fresh).sum()),
            "outside": tally.outside / tally.tokens if tally.tokens else 0.0,
            "rule": rule,
            "blank": tally.blank,
            "cut": tally.cut / total,
        }
        return {split: _packed(texts[split], answers[split]) for split in texts}, facts


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


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
