"""Rows of local tables are counted as a person counts them, and a broken table is named with its line."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import datasets
import numpy as np
import pytest

from helpers.labelled import corpus, refused
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.rows import find


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))


class TestPlaces:
    """Lines are counted as a text editor does: the writer of a file puts its line number into each row."""

    @pytest.mark.parametrize("form", ["jsonl", "csv", "json", "pretty", "parquet", "saved"])
    def test_every_row_has_its_place(self, form: str, tmp_path: Path) -> None:
        random, task = np.random.default_rng(0), {"name": "x", "text": "text", "held_out": 0.5}
        places = []
        for name in ("a",) if form == "saved" else ("a", "b"):
            path = tmp_path / f"{name}.{'json' if form == 'pretty' else form}"
            places += [f"{place} of {path}" for place in _written(path, form, random)]
        source = str(path) if form == "saved" else f"{tmp_path}/*{path.suffix}"
        rows = find(DataTask.decode({**task, "source": source})).rows("train")
        own = [text.split()[-1].replace("_", " ") for text in rows.texts[0]]
        assert own == [place.partition(" of ")[0] for place in places]
        assert [rows.place(k) for k in range(len(places))] == places
        assert rows.kept([3, 17]).kept([1]).place(0) == places[17]

    def test_rows_of_the_hub_count_from_one(self) -> None:
        table = find(DataTask.decode({"glue": "rte", "revision": "c" * 40}))
        assert table.place("train", 6) == "row 7 of 'train' of nyu-mll/glue"


def _written(path: Path, form: str, random: np.random.Generator) -> list[str]:
    """Write 20 rows, with blank lines and line breaks among them; return the place of each."""
    if form in ("parquet", "saved"):
        places = [f"row {k + 1}" for k in range(20)]
        texts = [f"t {place.replace(' ', '_')}" for place in places]
        made = datasets.Dataset.from_dict({"text": texts, "label": [0, 1] * 10})
        made.to_parquet(path) if form == "parquet" else made.save_to_disk(path)
        return places
    text, places = {"csv": "text,label\n", "json": "[\n"}.get(form, ""), []
    for k in range(20):
        text += "\n" * int(random.integers(3))
        places.append(f"line {len(text.splitlines()) + 1}")
        row = {"text": f"t, {places[-1].replace(' ', '_')}", "label": k % 2}
        if form == "csv":
            broken = "\n" * int(random.integers(3))
            text += f'"{broken}{row["text"]}",{row["label"]}\n'
        else:
            text += json.dumps(row, indent=1 if form == "pretty" else None)
            text += ",\n" if form == "json" and k < 19 else "\n"
    path.write_text(text + ("]\n" if form == "json" else ""), encoding="utf-8-sig")
    return places


ROW = '{"text": "a", "label": 0}\n'

#: Ending and content of a file, and what is said of it; FILE stands for its path.
BROKEN = {
    "a comma is missing": (
        "jsonl",
        ROW + '\n{"text": "b" "label": 1}\n',
        r"source: task 'x': line 3 of FILE is broken JSON: Expecting ',' delimiter at column 14; correct it",
    ),
    "the end is missing": (
        "jsonl",
        ROW + '{"text": "b", "la',
        r"source: task 'x': line 2 of FILE is broken JSON: Unterminated string starting at column 15",
    ),
    "a list": (
        "json",
        '[{"text": "a", "label": 0},\n\n{"text": "b" "label": 1}]',
        r"source: task 'x': line 3 of FILE is broken JSON: Expecting ',' delimiter at column 14",
    ),
    "a tab in a text": (
        "jsonl",
        ROW + '{"text": "b\tc", "label": 1}\n',
        r"source: task 'x': line 2 of FILE is broken JSON: Invalid control character at column 12",
    ),
    "a tab in a text that is read": (
        "json",
        '[{"text": "b\tc", "label": 1},\n{"text": "", "label": 0}]',
        r"text: task 'x': line 2 of FILE has an empty text: 'text' is ''; fill it in",
    ),
    "no object": (
        "jsonl",
        ROW + '"b"\n',
        r"source: task 'x': line 2 of FILE holds 'b', not an object; write each row as",
    ),
    "no UTF-8": (
        "jsonl",
        ROW + '{"text": "caf\xe9", "label": 1}\n',
        r"source: task 'x': line 2 of FILE is not UTF-8; save the file as UTF-8",
    ),
    "a comma in a text": (
        "csv",
        'text,label\n"a\nb",0\nc, d,1\n',
        r"source: task 'x': line 4 of FILE has 3 columns, and the header 2; .* in double quotes",
    ),
    "longer rows": (
        "csv",
        "text,label\na,0,x\nb,1,y\n",
        r"source: task 'x': line 2 of FILE has 3 columns, and the header 2; name all columns there",
    ),
    "an open quote": (
        "csv",
        'text,label\na,0\n"b,1\nc,0\n',
        r"source: task 'x': line 3 of FILE is broken: a quote that opens in it is never closed; correct it",
    ),
    "no UTF-8 in a table": (
        "csv",
        "text,label\na,0\ncaf\xe9,1\n",
        r"source: task 'x': line 3 of FILE is not UTF-8; save the file as UTF-8",
    ),
    "semicolons": (
        "csv",
        "text;label\na;0\n",
        r"text: task 'x': FILE has no column 'text', but text;label; separate the columns by commas",
    ),
    "nothing": ("csv", "", r"source: task 'x': FILE is no table that can be read: EmptyDataError"),
    "a header alone": ("csv", "text,label\n", r"source: task 'x': FILE has no rows; add some, or name"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_table_is_named_with_its_line(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ending, text, message = BROKEN[case]
    path = tmp_path / f"train.{ending}"
    path.write_bytes(text.encode("latin-1"))
    task = {"name": "x", "source": str(path), "text": "text", "held_out": 0.5}
    refused(corpus(task), message.replace("FILE", re.escape(str(path))))
    # The libraries' own notices would stand between the lines of `raysweep validate`.
    assert "Failed to" not in capfd.readouterr().err


def test_lines_behind_long_texts_are_counted_too(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    (tmp_path / "rows.csv").write_text(f"text,label\n{'a ' * 100_000},0\nb,\n")
    task = {"name": "x", "source": str(tmp_path / "rows.csv"), "text": "text", "held_out": 0.5}
    refused(corpus(task), "label: task 'x': line 3 of .*/rows.csv has no label: 'label' is ''; fill it in")
    assert csv.field_size_limit() == limit
