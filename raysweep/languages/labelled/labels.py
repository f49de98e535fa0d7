"""The labels of rows: class numbers and their names, or the numbers of a regression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysweep.errors import DataError
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.rows import Rows


def numbers(rows: Rows) -> np.ndarray:
    """Return the labels of a regression, float32 [n]; raises `DataError` naming a row without a number."""
    found = np.empty(len(rows.labels), dtype=np.float32)
    for k, value in enumerate(rows.labels):
        try:
            found[k] = float(value)
        except (TypeError, ValueError):
            found[k] = math.nan
        if not math.isfinite(found[k]):
            raise DataError(f"label: row {k} of {rows.place} holds {value!r}, not a number")
    return found


def classes_of(task: DataTask, train: Rows) -> tuple[str, ...]:
    """Return the classes of a classification: GLUE's, those that the source names, or those that occur."""
    known = task.classes or train.names
    if known is not None:
        return known
    found = {_text(value) for value in train.labels}
    if all(text.removeprefix("-").isdecimal() for text in found):
        return tuple(sorted(found, key=lambda text: (int(text), text)))
    return tuple(sorted(found))


def class_numbers(rows: Rows, classes: Sequence[str], *, named: bool = False) -> np.ndarray:
    """Return the number of each row's class, int64 [n]; raises `DataError` for another label.

    A number in rows that name their classes means the name there, in whatever order these are.  `named` says
    that `classes` are the names of other rows.
    """
    names = {name: k for k, name in enumerate(classes)}
    places = {str(k): k for k in range(len(classes))}
    if named and rows.names is None and any(names.get(text, k) != k for text, k in places.items()):
        raise DataError(
            f"label: {rows.place} does not name its classes, and those of the training rows are "
            f"{_some(classes)}, so a number has two meanings; name them there too"
        )
    # Class numbers are meant where they are not themselves names.
    number = places | names
    found = [_class(value, rows.names, number) for value in rows.labels]
    for k, (text, place) in enumerate(found):
        if place is None:
            hidden = "; the labels of GLUE's test sets are not public" if text == "-1" else ""
            raise DataError(
                f"label: row {k} of {rows.place} holds '{text}', and the classes are {_some(classes)}{hidden}"
            )
    return np.array([place for _, place in found], dtype=np.int64)


def check_classes(name: str, classes: Sequence[str], train: np.ndarray, test: np.ndarray) -> None:
    """Raise `DataError` for training labels of one class, and for a class that occurs in the test alone."""
    seen, tested = np.unique(train), np.unique(test)
    if len(seen) < 2:
        raise DataError(
            f"task '{name}': all {len(train)} training rows have the label '{classes[int(seen[0])]}'; "
            "a task needs two classes"
        )
    alone = np.setdiff1d(tested, seen)
    if len(alone):
        raise DataError(
            f"task '{name}': the class '{classes[int(alone[0])]}' occurs in the test rows and in no training "
            "row; add training rows of it, or remove those of the test"
        )


def _class(value: Any, names: tuple[str, ...] | None, number: Mapping[str, int]) -> tuple[str, int | None]:
    """Return a label as text and the number of its class, None where there is no such class."""
    if names is None or not isinstance(value, int):
        return _text(value), number.get(_text(value))
    if not 0 <= value < len(names):
        return str(value), None
    return names[value], number.get(names[value])


def _text(value: Any) -> str:
    """Return a label as text: 1, 1.0 and "1" are the same class."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.strip() if isinstance(value, str) else str(value)


def _some(classes: Sequence[str]) -> str:
    shown = ", ".join(classes[:10])
    return shown if len(classes) <= 10 else f"{shown} and {len(classes) - 10} more"
