"""Bad rows of labelled texts are refused with their place, value and a remedy, before anything is made."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import datasets
import pytest

from helpers import local_glue
from helpers.labelled import corpus, refused, sentences, write
from raysweep.errors import DataError

READER = "raysweep.languages.labelled.rows.local_rows"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
