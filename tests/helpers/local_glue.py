"""Tables with the columns, class numbers and class names of the real GLUE tasks, in files of every kind."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np

from helpers import local_texts
from raysweep.languages.labelled.glue import GLUE, GlueName

Form = Literal["parquet", "jsonl", "csv", "saved"]

#: Words that decide a label: the first half of the classes has one, and so on.
SIGNS = ("object", "string", "value", "return")


def rows(task: GlueName, n: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows as the hub has them: the texts, the class number or the number of a regression, and `idx`.

    Texts are pieces of documentation.  The class shows in one word, so that a model can learn it.
    """
    generator = np.random.default_rng(seed)
    words = [word for text in local_texts.documents() for word in text.lower().split() if word.isalpha()]
    words = [word for word in words if word not in SIGNS]
    glue = GLUE[task]
    found = []
    for k in range(n):
        label: Any = k % len(glue.classes) if glue.classes else round(float(generator.uniform(0, 5)), 3)
        row: dict[str, Any] = {}
        for column in glue.text:
            start = int(generator.integers(len(words) - 10))
            text = words[start : start + int(generator.integers(3, 10))]
            text.insert(int(generator.integers(len(text))), SIGNS[int(label) % len(SIGNS)])
            row[column] = " ".join(text)
        found.append(row | {"label": label, "idx": k})
    return found


def write(
    folder: Path, task: GlueName, *, form: Form = "parquet", train: int = 40, test: int = 16, seed: int = 0
) -> Path:
    """Write `train` and the reported split of a task into `folder` and return it."""
    splits = {"train": rows(task, train, seed=seed), GLUE[task].reported: rows(task, test, seed=seed + 1)}
    folder.mkdir(parents=True, exist_ok=True)
    write_splits(folder, splits, form, GLUE[task].classes)
    return folder


def write_splits(
    folder: Path, splits: dict[str, list[dict[str, Any]]], form: Form, classes: tuple[str, ...] = ()
) -> None:
    """Write tables of a form; parquet and saved ones name their classes, as the hub's do."""
    if form == "jsonl":
        for name, table in splits.items():
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    elif form == "csv":
        for name, table in splits.items():
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(table[0]))
                writer.writeheader()
                writer.writerows(table)
    else:
        tables = {name: _table(table, classes) for name, table in splits.items()}
        if form == "saved":
            datasets.DatasetDict(tables).save_to_disk(folder)
            return
        for name, made in tables.items():
            made.to_parquet(folder / f"{name}-00000-of-00001.parquet")


def _table(table: list[dict[str, Any]], classes: tuple[str, ...]) -> datasets.Dataset:
    made = datasets.Dataset.from_list(table)
    return made.cast_column("label", datasets.ClassLabel(names=list(classes))) if classes else made
