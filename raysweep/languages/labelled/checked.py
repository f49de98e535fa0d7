"""The rows of a task, read and checked: all that is asked of a table before its texts become sentences.

The check of a sweep file reads the rows alone.  The making of sentences reads them in the same way, so both
refuse the same.  Only sentences tell two texts that differ in what a tokenizer leaves out, such as capitals;
the check takes these for different rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from raysweep.errors import DataError
from raysweep.languages.labelled import labels
from raysweep.languages.labelled.rows import Rows, Table
from raysweep.languages.splits import Split
from raysweep.languages.text_split import is_held_out


@dataclass(frozen=True)
class Checked:
    """The complete rows of both splits, with their answers: class numbers int64, or float32 numbers.

    `classes` is empty for a regression.  `empty` rows were left out.
    """

    rows: Mapping[Split, Rows]
    answers: Mapping[Split, np.ndarray]
    classes: tuple[str, ...]
    empty: int

    def fresh(self, keys: Mapping[Split, Iterable[Hashable]]) -> np.ndarray:
        """Return which training rows have a key, their text or sentence, that no test row has, bool [n].

        Raises `DataError` where those that have make no task.
        """
        held = set(keys["test"])
        fresh = np.array([key not in held for key in keys["train"]])
        if not fresh.any():
            raise DataError(
                f"source: every text of {self.rows['train']} is also one of {self.rows['test']}; learn from "
                "other texts than those that are reported on"
            )
        if self.classes:
            labels.check_classes(self.rows, self.classes, self.answers, fresh)
        return fresh


def read(table: Table) -> Checked:
    """Read and check the rows of a task; raises `DataError` with field, place, value and remedy."""
    config = table.config
    train, empty = _complete(table.rows(config.train))
    if config.reported is not None:
        test, more = _complete(table.rows(config.reported))
        empty += more
    else:
        train, test = _divided(train)
    rows: dict[Split, Rows] = {"train": train, "test": test}
    if config.classes == ():
        return Checked(rows, {split: labels.numbers(found) for split, found in rows.items()}, (), empty)
    classes = labels.classes_of(config, train)
    source = train if config.classes is None else None
    answers: dict[Split, np.ndarray] = {
        "train": labels.class_numbers(train, classes),
        "test": labels.class_numbers(test, classes, train=source),
    }
    return Checked(rows, answers, classes, empty)


def _complete(rows: Rows) -> tuple[Rows, int]:
    """Return the rows that are complete, and the number of the others."""
    complete = rows.complete()
    bad = [k for k, good in enumerate(complete) if not good]
    if not bad:
        return rows, 0
    if not rows.table.config.skip_empty:
        raise DataError(
            f"{rows.lack(bad[0])}{labels.first_of(bad)}; fill it in, remove the row, or leave such rows "
            "out with skip_empty: true"
        )
    if len(bad) == len(complete):
        raise DataError(f"{rows.lack(0)}, and no row of {rows} has both text and label; name other columns")
    return rows.kept([k for k, good in enumerate(complete) if good]), len(bad)


def _divided(rows: Rows) -> tuple[Rows, Rows]:
    """Return the rows to learn from, and the share of them that is held out."""
    config = rows.table.config
    share = config.held_out or 0.0
    sides: tuple[list[int], list[int]] = [], []
    for k, texts in enumerate(zip(*rows.texts, strict=True)):
        sides[is_held_out("\n".join(texts), share, config.seed)].append(k)
    if not all(sides):
        raise DataError(
            f"held_out: {share} of the {len(rows.labels)} rows of {rows} are {len(sides[1])}; take another "
            "share or more rows"
        )
    return rows.kept(sides[0]), rows.kept(sides[1])
