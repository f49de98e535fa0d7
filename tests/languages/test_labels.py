"""Labels of rows: class numbers belong to the names of their own split."""

from __future__ import annotations

from typing import Any

import pytest

from raysweep.errors import DataError
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.labels import class_numbers, classes_of
from raysweep.languages.labelled.rows import Rows, Table

TASK = DataTask(source="x", name="x", text="text", label="y")
DIGITS = ("1", "2", "3", "4", "5")


def rows(labels: list[Any], names: tuple[str, ...] | None = None) -> Rows:
    table = Table(TASK, "hub", {}, {})
    return Rows(table, "train", [["a"] * len(labels)], labels, names, range(len(labels)))


def test_names_that_are_digits_are_five_classes() -> None:
    train = rows([0, 1, 2, 3, 4], DIGITS)
    classes = classes_of(TASK, train)
    assert classes == DIGITS
    assert class_numbers(train, classes).tolist() == [0, 1, 2, 3, 4]


def test_a_split_with_its_names_in_another_order_has_the_same_classes() -> None:
    train, test = rows([0, 1], ("bad", "good")), rows([0, 1, 1], ("good", "bad"))
    assert class_numbers(test, classes_of(TASK, train)).tolist() == [1, 0, 0]
    digits = rows([0, 4], DIGITS[::-1])
    assert class_numbers(digits, DIGITS).tolist() == [4, 0]


def test_a_table_with_names_in_another_order_than_glue_has_its_classes() -> None:
    swapped = rows([0, 1], ("positive", "negative"))
    sst2 = DataTask(glue="sst2")
    assert class_numbers(swapped, classes_of(sst2, swapped)).tolist() == [1, 0]
    # Names that are class numbers, and class numbers without names, are those of GLUE.
    for numbered in (rows([0, 1], ("0", "1")), rows([0, 1]), rows(["0", "1"])):
        assert class_numbers(numbered, classes_of(sst2, numbered)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("labels", "names", "found"),
    [([-1], DIGITS, "-1"), ([-1], ("-1", "1"), "-1"), ([7], ("1", "7"), "7"), ([0], ("6", "7"), "6")],
)
def test_a_number_without_a_name_is_refused(labels: list[int], names: tuple[str, ...], found: str) -> None:
    with pytest.raises(DataError, match=rf"row 1 of 'train' of x holds '{found}', and the classes are"):
        class_numbers(rows(labels, names), ("1", "7", "-1"))


def test_numbers_without_names_are_refused_where_the_names_are_other_numbers() -> None:
    train = rows([0, 1, 2, 3, 4], DIGITS)
    with pytest.raises(DataError, match="label: 'train' of x does not name its classes"):
        class_numbers(rows([1]), classes_of(TASK, train), train=train)
    named = rows([0, 1], ("bad", "good"))
    assert class_numbers(rows([1, "good"]), ("bad", "good"), train=named).tolist() == [1, 1]


def test_equal_numbers_written_in_two_ways_have_a_fixed_order() -> None:
    # The order in a set of texts is another one in each process, so four of them are hardly right by chance.
    for labels in (["1", "01", "001", "0001", "10", "9"], ["9", "0001", "10", "01", "1", "001"]):
        assert classes_of(TASK, rows(labels)) == ("0001", "001", "01", "1", "9", "10")
