"""Bad rows of labelled texts are refused with their place, value and a remedy, before anything is made."""

from __future__ import annotations

import csv
import json
import re
import socket
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from helpers import local_glue
from helpers.labelled import corpus, sentences, write
from raysweep.errors import ConfigError, DataError
from raysweep.languages.corpus import Corpus
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.rows import find

READER = "raysweep.languages.labelled.rows.local_rows"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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


@pytest.mark.parametrize(
    ("train", "test", "labels", "message"),
    [
        (
            {"text": ["a", "b"], "z": [0, 1]},
            ["c"],
            None,
            "label: task 'x': .*/train.jsonl has no column 'y', but text, z; set label to one of them$",
        ),
        (
            {"txt": ["a", "b"], "y": [0, 1]},
            ["c"],
            None,
            "text: task 'x': .*/train.jsonl has no column 'text', but txt, y; .* did you mean 'txt'",
        ),
        (
            {"text": ["a", "b"], "y": [1, 1]},
            ["c"],
            [1],
            "label: task 'x': all 2 rows of .*/train.jsonl have the label '1'; .* add rows of another one",
        ),
        (
            {"text": ["a", " "], "y": [0, 1]},
            ["c"],
            None,
            "text: task 'x': line 2 of .*/train.jsonl has an empty text: 'text' is ' '; .* skip_empty: true",
        ),
        (
            {"text": ["a", "b", "c", "d"], "y": [0, None, 1, " "]},
            ["e"],
            None,
            r"label: task 'x': line 2 of .*/train.jsonl has no label: 'y' is null \(the first of 2 such",
        ),
        (
            {"text": ["a", "b"], "y": [0, 1]},
            ["c", "d"],
            [0, 2],
            "label: task 'x': line 2 of .*/validation.jsonl holds '2', and the classes of .*/train.jsonl are "
            "0, 1; correct the label, remove the row, or add training rows of that class$",
        ),
        (
            {"text": ["a", 3], "y": [0, 1]},
            ["c"],
            None,
            "text: task 'x': line 2 of .*/train.jsonl has 3 in 'text', not text; write it in quotes",
        ),
        ({"text": [], "y": []}, ["c"], None, "source: task 'x': .*/train.jsonl has no rows; add some"),
        (
            {"text": ["a", "b"], "y": [0, 1]},
            ["a", "b"],
            None,
            "source: task 'x': every text of .*/train.jsonl is also one of .*/validation.jsonl; learn from",
        ),
        (
            {"text": ["a", "b", "c"], "y": [0, 1, 2]},
            ["d", "c"],
            [1, 2],
            "label: task 'x': line 2 of .*/validation.jsonl has the class '2', and no row of .*/train.jsonl "
            "that .*/validation.jsonl does not have too has; add training rows of it, or remove those of the "
            "test$",
        ),
        (
            {"text": ["a", "b", "c"], "y": [0, 1, 1]},
            ["c", "b"],
            None,
            "label: task 'x': all 1 rows of .*/train.jsonl that .* does not have too have the label '0'",
        ),
    ],
)
def test_bad_rows_are_refused(
    train: dict[str, list[Any]], test: list[str], labels: Any, message: str, tmp_path: Path
) -> None:
    write(tmp_path / "x", train, test, y=labels)
    refused(corpus({"name": "x", "source": str(tmp_path / "x"), "text": "text", "label": "y"}), message)


def test_a_row_without_a_number_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x", {"text": ["a", "b", "c"], "y": ["0.5", "1e0", "high"]}, ["d"], y=[2])
    task = {"name": "x", "source": str(tmp_path / "x"), "text": "text", "label": "y", "regression": True}
    refused(
        corpus(task),
        "label: task 'x': line 3 of .*/train.jsonl holds 'high', not a number; .* leave out regression",
    )


def test_only_sentences_tell_texts_that_a_tokenizer_takes_for_one(tmp_path: Path) -> None:
    write(tmp_path / "x", {"text": ["a", "b"], "y": [0, 1]}, ["A", "B"])
    language = corpus({"name": "x", "source": str(tmp_path / "x"), "text": "text", "label": "y"})
    assert language.problems() == []
    assert language.data_tasks["x"].most("train") == 2
    with pytest.raises(DataError, match=r"source: task 'x': every text of .* is also one of"):
        language.prepare()


def test_rows_are_looked_at_once_and_bound_the_examples(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, task = tmp_path / "x", {"name": "x", "source": str(tmp_path / "x"), "text": "text", "label": "y"}
    write(folder, {"text": ["a", "b", "c", "C", "d"], "y": [0, 1, 0, 1, 1]}, ["c", "e"])
    language = corpus(task)
    assert language.problems() == []
    data = language.data_tasks["x"]
    # The row "c" is in the test; that "C" is the same sentence is seen later.
    assert [(data.size(split), data.most(split)) for split in ("train", "test")] == [(None, 4), (None, 2)]
    assert not (cache / "corpus").exists()
    (record,) = (cache / "tasks").iterdir()
    monkeypatch.setattr(READER, None)
    # Neither another length nor another process reads the tables again.
    for fields in ({}, {"length": 16}):
        again = corpus(task, **fields)
        assert again.problems() == []
        assert again.data_tasks["x"].most("train") == 4
    record.write_bytes(b"damaged")
    monkeypatch.undo()
    monkeypatch.setenv("RAYSWEEP_CACHE", str(cache))
    again = corpus(task)
    assert again.problems() == []
    again.prepare()
    assert [again.data_tasks["x"].most(split) for split in ("train", "test")] == [3, 2]
    write(folder, {"text": ["a", "b"], "y": [0, 0]}, ["c", "e"])
    assert len(corpus(task).problems()) == 1


def test_bad_tables_are_refused_before_a_corpus_is_made(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "x", {"text": ["a", ""], "y": [0, 1]}, ["c"])
    task = {"source": str(tmp_path / "x"), "text": "text", "label": "y"}
    language = corpus({**task, "name": "x"}, {**task, "name": "z", "label": "k"})
    assert [field for field, _ in language.problems()] == ["tasks.0.text", "tasks.1.label"]
    with pytest.raises(DataError, match=r"tasks.0.text: task 'x': line 2 of"):
        language.prepare()
    assert not (cache / "corpus").exists()


def test_the_rows_of_the_hub_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", None)
    language = corpus({"glue": "rte", "revision": "c" * 40})
    assert language.problems() == []
    assert language.data_tasks["rte"].most("train") is None


def test_reading_local_tables_asks_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: Any, **__: Any) -> None:
        pytest.fail("a server is asked")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setattr(socket.socket, "connect", connect)
    for form in ("parquet", "jsonl", "csv", "saved"):
        folder = local_glue.write(tmp_path / form, "rte", form=form)
        assert corpus({"glue": "rte", "source": str(folder)}).problems() == []


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_a_file_that_is_no_table_is_refused(ending: str, tmp_path: Path) -> None:
    for name in ("train", "validation"):
        (tmp_path / f"{name}.{ending}").write_bytes(b"\x00\xff\xfe no table \x80")
    fault = "/train.parquet is no table that can be read" if ending == "parquet" else "line 1 .* is not UTF-8"
    refused(corpus({"glue": "sst2", "source": str(tmp_path)}), f"source: task 'sst2': .*{fault}")


def test_hidden_labels_are_refused(tmp_path: Path) -> None:
    local_glue.write(tmp_path, "rte")
    rows = [row | {"label": -1} for row in local_glue.rows("rte", 3)]
    local_glue.write_splits(tmp_path, {"test": rows}, "jsonl")
    (tmp_path / "test.jsonl").rename(tmp_path / "hidden.jsonl")
    task = {"glue": "rte", "source": str(tmp_path), "test": "hidden.jsonl"}
    refused(corpus(task), "source: task 'rte': .* files of one kind are read")
    local_glue.write_splits(tmp_path, {"train": local_glue.rows("rte", 9)}, "jsonl")
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    refused(
        corpus(task),
        r"label: task 'rte': line 1 of .*/hidden.jsonl holds '-1' \(the first of 3 such rows\), and the "
        "classes are entailment, not_entailment; a label of -1 is hidden, as in GLUE's test sets; report on",
    )


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"source": "{folder}/none.csv"},
            r"source: .*no file, folder or pattern '.*/none.csv'; .*language text G",
        ),
        (
            {"source": "{folder}"},
            r"source: .* holds no tables, such as train.csv, .*`raysweep language text G",
        ),
        ({"source": "{folder}", "train": "a"}, r"source: .* holds no tables, such as a.csv"),
        ({"test": "train"}, "test: .*'train' is what is learnt from"),
        ({"source": "{folder}/..", "subset": "x"}, "subset: .*belongs to a data set on the hub"),
    ],
)
def test_sources_that_are_not_there_are_refused(task: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    local_glue.write(tmp_path, "rte")
    task = {key: value.replace("{folder}", f"{tmp_path}/empty") for key, value in task.items()}
    refused(corpus({"glue": "rte", **task}), message)


def test_a_damaged_saved_folder_is_refused(tmp_path: Path) -> None:
    folder = local_glue.write(tmp_path / "rte", "rte", form="saved")
    (folder / "train" / "state.json").write_text("{}")
    message = r"source: task 'rte': .*/train/state.json is damaged \(KeyError: .*; save the data set again"
    refused(corpus({"glue": "rte", "source": str(folder)}), message)


def test_the_remedy_for_the_empty_questions_of_qqp_works(tmp_path: Path) -> None:
    """Some pairs of the real QQP have an empty question."""
    rows = local_glue.rows("qqp", 40)
    rows[7]["question2"] = ""
    local_glue.write_splits(tmp_path, {"train": rows, "validation": local_glue.rows("qqp", 8, seed=1)}, "csv")
    task = {"glue": "qqp", "source": str(tmp_path)}
    refused(
        corpus(task),
        r"text: task 'qqp': line 9 of .*/train.csv has an empty text: 'question2' is ''; .* skip_empty: true",
    )
    ids, labels = sentences(corpus({**task, "skip_empty": True}), "qqp", "train")
    assert (len(ids), len(labels)) == (39, 39)


def test_a_table_of_one_split_asks_for_a_share(tmp_path: Path) -> None:
    local_glue.write_splits(tmp_path, {"rows": local_glue.rows("sst2", 20)}, "csv")
    task = {"name": "x", "source": str(tmp_path / "rows.csv"), "text": "sentence"}
    refused(corpus(task), r"test: task 'x': .*/rows.csv holds the rows of one split; .* held_out: 0.1")
    refused(corpus({**task, "held_out": 1e-9}), r"held_out: task 'x': 1e-09 of the 20 rows of .* are 0; take")


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
        r"source: task 'x': line 2 of FILE is broken JSON: Unterminated string .* at column 15",
    ),
    "a list": (
        "json",
        '[{"text": "a", "label": 0},\n\n{"text": "b" "label": 1}]',
        r"source: task 'x': line 3 of FILE is broken JSON: Expecting ',' delimiter at column 14",
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
