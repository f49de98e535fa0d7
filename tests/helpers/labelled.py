"""Small corpora with tasks of labelled texts in local tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from helpers import local_texts
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
