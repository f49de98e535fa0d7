"""Small corpora with tasks of labelled texts in local tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import local_texts
from raysweep.errors import ConfigError, DataError
from raysweep.languages.corpus import Corpus

CORPUS = {"tokenizer": {"train": "wordpiece", "vocabulary": 400}, "length": 24, "held_out": 0.2}


def corpus(*tasks: dict[str, Any], **fields: Any) -> Corpus:
    return Corpus.open(str(local_texts.files()["jsonl"]), **(CORPUS | fields), tasks=list(tasks))


def sentences(language, name: str, split: str):
    """Ids and labels in the order of the rows."""
    data = language.data_tasks[name]
    data.prepare()
    return data.take(split, torch.arange(data.size(split)))


def write(folder: Path, train: dict[str, list[Any]], test: list[Any] | None = None, *, y: Any = None) -> None:
    """Write train.jsonl of columns `text` and `y`, and validation.jsonl with the labels 0, 1, ..."""
    folder.mkdir(exist_ok=True)
    rows = [dict(zip(train, values, strict=True)) for values in zip(*train.values(), strict=True)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if test is not None:
        labels = y or [k % 2 for k in range(len(test))]
        rows = [{"text": text, "y": label} for text, label in zip(test, labels, strict=True)]
        (folder / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def refused(language: Corpus, message: str) -> None:
    """Check that the look at the rows and the making of sentences refuse the only task, in the same words."""
    ((field, found),) = language.problems()
    assert field.startswith("tasks.0.")
    said = f"{field.removeprefix('tasks.0.')}: {found}"
    assert re.match(message, said), said
    (data,) = language.data_tasks.values()
    with pytest.raises((ConfigError, DataError), match=re.escape(said)):
        data.prepare()
    with pytest.raises(DataError, match=re.escape(said)):
        language.prepare()
