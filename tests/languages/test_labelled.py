"""Labelled texts as tasks: real columns of GLUE in local files, read by the real loaders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch

from helpers import local_glue, local_models
from helpers.labelled import corpus, sentences, write
from raysweep.downstream.tasks import task_groups
from raysweep.errors import ConfigError, DataError
from raysweep.languages.causal_lm import CausalLM
from raysweep.languages.labelled.glue import GLUE
from raysweep.languages.labelled.sentences import OUTSIDE, Encoding, Tally, _sizes, sentences_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def bert(words, texts: list[str], length: int) -> list[int]:
    """The ids of one or two texts as BERT's released code joins and cuts them, without [CLS]."""
    tokens = [words._tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    while sum(map(len, tokens)) > length - len(tokens):
        (tokens[0] if len(tokens) == 1 or len(tokens[0]) > len(tokens[1]) else tokens[1]).pop()
    return [token for part in tokens for token in [*part, words.separator]]


@pytest.mark.parametrize("name", list(GLUE))
@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv", "saved"])
def test_every_task_of_glue_is_read_from_every_kind_of_file(name: str, form: str, tmp_path: Path) -> None:
    folder = local_glue.write(tmp_path / name, name, form=form)
    language = corpus({"glue": name, "source": str(folder)})
    task, glue = language.data_tasks[name].task, GLUE[name]
    assert (task.name, task.classes, task.metrics) == (name, glue.classes, glue.metrics)
    assert (task.segments, task.regression) == (len(glue.text), not glue.classes)
    for split, rows in (("train", local_glue.rows(name, 40)), ("test", local_glue.rows(name, 16, seed=1))):
        ids, labels = sentences(language, name, split)
        wanted = [bert(language.words, [row[column] for column in glue.text], 24) for row in rows]
        assert [row[row != language.pad_id].tolist() for row in ids] == wanted
        assert labels.tolist() == pytest.approx([row["label"] for row in rows])
        assert labels.dtype == (torch.int64 if glue.classes else torch.float32)


def test_texts_are_cut_as_bert_cuts_them() -> None:
    def slow(first: int, second: int, room: int) -> list[int]:
        while first + second > room:
            if first > second:
                first -= 1
            else:
                second -= 1
        return [first, second]

    for first in range(1, 9):
        for second in range(1, 9):
            for room in range(2, 12):
                assert _sizes([first, second], room) == slow(first, second, room)


def test_a_causal_lm_leaves_out_or_masks_what_it_does_not_keep(tmp_path: Path) -> None:
    folder = local_glue.write(tmp_path / "qnli", "qnli")
    tasks = [
        {"glue": "qnli", "source": str(folder)},
        {"glue": "qnli", "source": str(folder), "name": "masked", "outside": "mask"},
    ]
    fields = {"keep": 60, "length": 12}
    language = CausalLM.load(str(local_models.trained_opt()), **fields, tasks=tasks)
    assert language.fingerprint == CausalLM.load(str(local_models.trained_opt()), **fields).fingerprint
    word = {token: k for k, token in enumerate(language.kept.tolist())}
    tokenizer, outside, total = language._source.tokenizer, 0, 0
    dropped, masked = (sentences(language, name, "test")[0] for name in ("qnli", "masked"))
    for k, row in enumerate(local_glue.rows("qnli", 16, seed=1)):
        both = [tokenizer(row[column])["input_ids"] for column in ("question", "sentence")]
        total += sum(map(len, both))
        outside += sum(token not in word for part in both for token in part)
        first, second = ([word[token] for token in part if token in word] for part in both)
        kept = _sizes([len(first), len(second)], 11)
        want = [*first[: kept[0]], language.cls_id, *second[: kept[1]]]
        assert dropped[k][dropped[k] != language.pad_id].tolist() == want
        first, second = ([word.get(token, language.mask_id) for token in part] for part in both)
        kept = _sizes([len(first), len(second)], 11)
        want = [*first[: kept[0]], language.cls_id, *second[: kept[1]]]
        assert masked[k][masked[k] != language.pad_id].tolist() == want
    facts = language.data_tasks["qnli"].facts
    for row in local_glue.rows("qnli", 40):
        both = [tokenizer(row[column])["input_ids"] for column in ("question", "sentence")]
        total += sum(map(len, both))
        outside += sum(token not in word for part in both for token in part)
    assert facts["rule"] == "drop"
    assert facts["outside"] == pytest.approx(outside / total)
    assert 0.05 < facts["outside"] < 0.95


def test_text_without_a_word_left_is_one_mask() -> None:
    encoding = Encoding(
        encode=lambda texts: [np.array([OUTSIDE if c == "?" else ord(c) - 97 for c in t]) for t in texts],
        outside="drop",
        unknown=7,
        mask_id=9,
        separator=8,
        closed=True,
        length=5,
    )
    for rule, want in (("drop", [9, 8, 0, 1, 8]), ("mask", [9, 8, 9, 0, 8]), ("keep", [7, 8, 7, 0, 8])):
        tally = Tally()
        (row,) = sentences_of([["?"], ["?ab"]], encoding, rule, tally)
        assert row.tolist() == want
        assert (tally.tokens, tally.outside, tally.cut) == (4, 2, rule != "drop")
        assert tally.blank == (rule == "drop")


def test_unknown_words_of_a_corpus_are_kept_or_masked(tmp_path: Path) -> None:
    write(
        tmp_path / "x", {"text": ["the ☃ object", "a value"] * 2, "y": [0, 1, 0, 1]}, ["the string", "a name"]
    )
    source = {"source": str(tmp_path / "x"), "text": "text", "label": "y"}
    language = corpus({"name": "kept", **source}, {"name": "masked", "outside": "mask", **source})
    kept, masked = (sentences(language, name, "train")[0][0] for name in ("kept", "masked"))
    unknown = language.words._tokenizer.token_to_id("[UNK]")
    assert unknown in kept.tolist()
    assert torch.equal(torch.where(kept == unknown, language.mask_id, kept), masked)
    facts = language.data_tasks["kept"].facts
    assert facts["rule"] == "keep"
    assert 0 < facts["outside"] < 0.5


def test_classes_are_named_by_the_source_or_by_the_labels_that_occur(tmp_path: Path) -> None:
    texts = [f"the value of {k}" for k in range(6)]
    for labels, classes in (
        ([10, 9, 10, 9, 9, 9], ("9", "10")),
        (["ham", "spam", "ham", "ham", "spam", "ham"], ("ham", "spam")),
        ([True, False, True, False, True, True], ("False", "True")),
        ([1.0, 0.0, 1.0, 0.0, 1.0, 1.0], ("0", "1")),
    ):
        folder = tmp_path / f"{labels[0]}"
        write(folder, {"text": texts, "y": labels}, ["a", "b"], y=labels[:2])
        language = corpus({"name": "x", "source": str(folder), "text": "text", "label": "y"})
        assert language.data_tasks["x"].task.classes == classes
        numbers = sentences(language, "x", "train")[1].tolist()
        assert len(set(zip(numbers, labels, strict=True))) == 2


def test_a_share_is_held_out_where_there_is_one_split(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    table = local_glue.rows("sst2", 200)
    repeated = table + [row | {"sentence": row["sentence"].upper()} for row in table[:100]]
    local_glue.write_splits(tmp_path, {"rows": repeated}, "csv")
    task = {"name": "x", "source": str(path), "text": "sentence", "held_out": 0.25}
    language = corpus(task)
    train, test = (
        set(map(tuple, sentences(language, "x", split)[0].tolist())) for split in ("train", "test")
    )
    facts = language.data_tasks["x"].facts
    assert not train & test
    # Copies are on the same side, so nothing had to be taken out.
    assert (facts["train"] + facts["test"], facts["repeated"]) == (300, 0)
    assert 0.1 < facts["test"] / 300 < 0.4
    other = corpus(task | {"seed": 1})
    assert other.data_tasks["x"].fingerprint != language.data_tasks["x"].fingerprint


def test_training_rows_that_are_in_the_test_are_left_out(tmp_path: Path) -> None:
    write(
        tmp_path / "x",
        {"text": ["one", "two", "the value", "a string", "three"], "y": [0, 1, 0, 1, 0]},
        ["one", "The VALUE"],
    )
    language = corpus({"name": "x", "source": str(tmp_path / "x"), "text": "text", "label": "y"})
    train, labels = sentences(language, "x", "train")
    assert (len(train), labels.tolist()) == (3, [1, 1, 0])
    assert language.data_tasks["x"].facts["repeated"] == 2


def test_empty_rows_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "x", {"text": ["a", "", "b", "c"], "y": [0, 1, 1, None]}, ["d"])
    task = {"name": "x", "source": str(tmp_path / "x"), "text": "text", "label": "y", "skip_empty": True}
    language = corpus(task)
    assert sentences(language, "x", "train")[1].tolist() == [0, 1]
    assert language.data_tasks["x"].facts["empty"] == 2


def test_exchanged_texts_are_another_sentence(tmp_path: Path) -> None:
    """No embedding of segments says which text a word belongs to, but the place of the separator does."""
    task = {"source": str(local_glue.write(tmp_path / "rte", "rte"))}
    orders = {"ab": ["sentence1", "sentence2"], "ba": ["sentence2", "sentence1"]}
    language = corpus(*({**task, "name": name, "text": columns} for name, columns in orders.items()))
    found = {}
    for name, columns in orders.items():
        ids = sentences(language, name, "train")[0]
        found[name] = [row[row != language.pad_id].tolist() for row in ids]
        rows = local_glue.rows("rte", 40)
        assert found[name] == [bert(language.words, [row[column] for column in columns], 24) for row in rows]
    assert all(one != other for one, other in zip(found["ab"], found["ba"], strict=True))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({}, "tasks.0.source: missing; name a data set"),
        ({"source": "x.csv", "text": "a"}, "tasks.0.name: missing; evaluations call the task by it"),
        ({"source": "x.csv", "name": "x"}, "tasks.0.text: missing; name the column"),
        ({"glue": "sst3"}, "tasks.0.glue: Input should be 'cola', 'sst2'"),
        ({"glue": "stsb", "regression": True}, "tasks.0.regression: belongs to a table of your own"),
        ({"glue": "stsb", "metrics": ["accuracy"]}, "metrics: 'accuracy' is no score of a regression"),
        ({"glue": "rte", "metrics": ["pearson"]}, "metrics: 'pearson' is no score of a classification"),
        ({"glue": "rte", "test": "x", "held_out": 0.5}, "held_out: 0.5 of the rows, but `test`"),
    ],
)
def test_wrong_settings_are_refused(task: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        corpus(task)


def test_two_tasks_need_two_names(tmp_path: Path) -> None:
    folder = str(local_glue.write(tmp_path, "rte"))
    with pytest.raises(ConfigError, match="two tasks are called 'rte'; give one of them another name"):
        corpus({"glue": "rte", "source": folder}, {"glue": "rte", "source": folder})


def test_the_corpus_is_the_same_with_and_without_tasks(tmp_path: Path) -> None:
    folder = local_glue.write(tmp_path / "rte", "rte")
    plain, more = corpus(), corpus({"glue": "rte", "source": str(folder)})
    assert plain.fingerprint == more.fingerprint
    assert (list(plain.data_tasks), list(more.data_tasks), dict(more.tasks)) == ([], ["rte"], {})
    assert torch.equal(plain.sample(4, seed=0), more.sample(4, seed=0))


def test_sentences_are_made_once_and_known_by_content(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = local_glue.write(tmp_path / "a", "rte")
    first = corpus({"glue": "rte", "source": str(folder)})
    data = first.data_tasks["rte"]
    assert (data.size("train"), data.size("test")) == (None, None)
    ids, labels = sentences(first, "rte", "train")
    assert (data.size("train"), data.size("test")) == (40, 16)
    (stored,) = (cache / "tasks").iterdir()
    # A copy elsewhere, under another name, is the same task; nothing is read again.
    folder.rename(tmp_path / "b")
    second = corpus({"glue": "rte", "source": str(tmp_path / "b"), "name": "other"})
    monkeypatch.setattr("raysweep.languages.labelled.rows.local_rows", None)
    assert second.data_tasks["other"].fingerprint == data.fingerprint
    assert second.data_tasks["other"].size("train") == 40
    found = sentences(second, "other", "train")
    assert torch.equal(found[0], ids)
    assert torch.equal(found[1], labels)
    assert (
        corpus({"glue": "rte", "source": str(tmp_path / "b")}, length=20).data_tasks["rte"].size("test")
        is None
    )
    stored.write_bytes(b"damaged")
    third = corpus({"glue": "rte", "source": str(tmp_path / "b")})
    with pytest.raises(DataError, match="is damaged; remove it, and it is made again"):
        third.data_tasks["rte"].prepare()


def test_other_rows_are_another_task(tmp_path: Path) -> None:
    one = corpus({"glue": "rte", "source": str(local_glue.write(tmp_path / "a", "rte"))})
    two = corpus({"glue": "rte", "source": str(local_glue.write(tmp_path / "b", "rte", seed=5))})
    assert one.data_tasks["rte"].fingerprint != two.data_tasks["rte"].fingerprint
    assert one.fingerprint == two.fingerprint


def test_a_saved_folder_is_known_by_what_is_read(tmp_path: Path) -> None:
    def fingerprint() -> str:
        return corpus({"glue": "rte", "source": str(folder)}).data_tasks["rte"].fingerprint

    folder = local_glue.write(tmp_path / "rte", "rte", form="saved")
    first = fingerprint()
    # A file that is left over from an earlier save is not read.
    shards = sorted((folder / "train").glob("*.arrow"))
    shutil.copy(shards[0], folder / "train" / "data-00007-of-00009.arrow")
    assert fingerprint() == first
    info = folder / "train" / "dataset_info.json"
    names = json.loads(info.read_text())
    names["description"] = "other words about the same rows"
    info.write_text(json.dumps(names))
    assert fingerprint() == first
    names["features"]["label"]["names"].reverse()
    info.write_text(json.dumps(names))
    assert fingerprint() != first


def test_examples_are_in_a_keyed_order(tmp_path: Path) -> None:
    folder = local_glue.write(tmp_path, "sst2")
    language = corpus({"glue": "sst2", "source": str(folder)})
    (group,) = task_groups(language)
    examples = group.examples("train", 40, seed=3)
    ids, labels = sentences(language, "sst2", "train")
    found = sorted(zip(examples.ids.tolist(), examples.labels["sst2"].tolist(), strict=True))
    assert found == sorted(zip(ids.tolist(), labels.tolist(), strict=True))
    assert not torch.equal(examples.ids, ids)
    few = group.examples("train", 8, seed=3)
    assert torch.equal(few.ids, examples.ids[:8])


def test_a_task_of_the_hub_is_known_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Info:
        sha = "c" * 40

    def load(name: str, subset: str, *, split: str, revision: str, streaming: bool):
        asked.append((name, subset, split, revision, streaming))
        return datasets.Dataset.from_list(local_glue.rows("mnli", 9, seed=split != "train"))

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: Info)
    monkeypatch.setattr(datasets, "load_dataset", load)
    language = corpus({"glue": "mnli"})
    data = language.data_tasks["mnli"]
    rows = data._table.rows("validation_matched")
    assert rows.texts[0] == [row["premise"] for row in local_glue.rows("mnli", 9, seed=1)]
    assert asked == [("nyu-mll/glue", "mnli", "validation_matched", "c" * 40, True)]
    other = corpus({"glue": "mnli", "revision": "d" * 40})
    assert other.data_tasks["mnli"].fingerprint != data.fingerprint
