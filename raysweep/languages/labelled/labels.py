"""The labels of rows: class numbers and their names, or the numbers of a regression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysweep.errors import DataError
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.places import shown
from raysweep.languages.labelled.rows import Rows
from raysweep.languages.splits import Split


def numbers(rows: Rows) -> np.ndarray:
    """Return the labels of a regression, float32 [n]; raises `DataError` naming a row without a number."""
    found = np.empty(len(rows.labels), dtype=np.float32)
    for k, value in enumerate(rows.labels):
        try:
            found[k] = float(value)
        except (TypeError, ValueError):
            found[k] = math.nan
    bad = np.flatnonzero(~np.isfinite(found)).tolist()
    if bad:
        raise DataError(
            f"label: {rows.place(bad[0])} holds {shown(rows.labels[bad[0]])}, not a number{first_of(bad)}; "
            f"correct it, {'leave out regression, ' if rows.table.config.regression else ''}or remove the row"
        )
    return found


def classes_of(task: DataTask, train: Rows) -> tuple[str, ...]:
    """Return the classes of a classification: GLUE's, those that the source names, or those that occur.

    Raises `DataError` where one occurs alone.
    """
    known = task.classes or train.names
    if known is not None:
        return known
    found = {_text(value) for value in train.labels}
    if len(found) < 2:
        raise _one_class(len(train.labels), f"rows of {train}", *found)
    if all(text.removeprefix("-").isdecimal() for text in found):
        return tuple(sorted(found, key=lambda text: (int(text), text)))
    return tuple(sorted(found))


def class_numbers(rows: Rows, classes: Sequence[str], *, train: Rows | None = None) -> np.ndarray:
    """Return the number of each row's class, int64 [n]; raises `DataError` for another label.

    A number in rows that name their classes means the name there, in whatever order these are.  `train` are
    the rows that the classes are from, None where they are known without rows.
    """
    names = {name: k for k, name in enumerate(classes)}
    places = {str(k): k for k in range(len(classes))}
    named = train is not None and train.names is not None
    if named and rows.names is None and any(names.get(text, k) != k for text, k in places.items()):
        raise DataError(
            f"label: {rows} does not name its classes, and those of the training rows are "
            f"{_some(classes)}, so a number has two meanings; name them there too"
        )
    # Class numbers are meant where they are not themselves names.
    number = places | names
    found = [_class(value, rows.names, number) for value in rows.labels]
    bad = [k for k, (_, place) in enumerate(found) if place is None]
    if bad:
        text = found[bad[0]][0]
        if text == "-1":
            remedy = "a label of -1 is hidden, as in GLUE's test sets; report on rows with labels"
        elif train is None or named:
            remedy = "correct the label, or remove the row"
        else:
            remedy = "correct the label, remove the row, or add training rows of that class"
        raise DataError(
            f"label: {rows.place(bad[0])} holds '{text}'{first_of(bad)}, and the classes "
            f"{'are' if train is None else f'of {train} are'} {_some(classes)}; {remedy}"
        )
    return np.array([place for _, place in found], dtype=np.int64)


def check_classes(
    rows: Mapping[Split, Rows], classes: Sequence[str], answers: Mapping[Split, np.ndarray], fresh: np.ndarray
) -> None:
    """Raise `DataError` for training rows of one class, and for a class that occurs in the test alone.

    `answers` are class numbers; only `fresh` training rows [n] count.
    """
    seen = np.unique(answers["train"][fresh])
    others = "" if fresh.all() else f" that {rows['test']} does not have too"
    if len(seen) < 2:
        raise _one_class(fresh.sum(), f"rows of {rows['train']}{others}", classes[int(seen[0])])
    alone = np.flatnonzero(~np.isin(answers["test"], seen)).tolist()
    if alone:
        raise DataError(
            f"label: {rows['test'].place(alone[0])} has the class '{classes[int(answers['test'][alone[0]])]}'"
            f"{first_of(alone)}, and no row of {rows['train']}{others} has; add training rows of it, or "
            "remove those of the test"
        )


def _one_class(n: int, rows: str, name: str) -> DataError:
    return DataError(
        f"label: all {n:,} {rows} have the label '{name}'; a task needs two classes: add rows of another "
        "one, or name another column as label"
    )


def first_of(bad: Sequence[int]) -> str:
    """Return the words that say how many such rows there are.

    >>> first_of([7]), first_of([7, 9])
    ('', ' (the first of 2 such rows)')
    """
    return f" (the first of {len(bad):,} such rows)" if len(bad) > 1 else ""


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
