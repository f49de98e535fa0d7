"""A language as text: lines of sentences, and tables of its tasks in the columns of GLUE."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysweep.errors import ConfigError
from raysweep.languages import HMMConfig, Language, PCFGConfig
from raysweep.languages.dyck import DyckConfig
from raysweep.languages.pcfg import PCFG
from raysweep.languages.spelled import made_up, word_names, write_text
from raysweep.languages.splits import draw_split

SIZES = {"sentences": 5000, "train": 60, "test": 40}


@pytest.fixture(scope="module")
def language() -> Language:
    return PCFGConfig(roots=2, layers=2, symbols=3, rules=4, words=6, vocabulary=12, stop=0.4).build()


def numbers(language: Language, text: str) -> list[int]:
    names = word_names(language)
    return [names.index(word) for word in text.split(" ")]


def test_lines_are_the_sentences_of_the_seed(language: Language, tmp_path: Path) -> None:
    text, *tables = write_text(language, tmp_path, **SIZES, seed=3)
    assert text == tmp_path / "text.txt"
    assert {path.relative_to(tmp_path).as_posix() for path in tables} == {
        f"{task}/{name}.jsonl" for task in "ABC" for name in ("train", "validation")
    }
    ids = language.sample(5000, seed=3)
    lines = text.read_text().splitlines()
    assert [numbers(language, line) for line in lines] == [row[row != 12].tolist() for row in ids]
    first = {path: path.read_bytes() for path in [text, *tables]}
    assert {path: path.read_bytes() for path in write_text(language, tmp_path, **SIZES, seed=3)} == first


@pytest.mark.parametrize("task", ["A", "B", "C"])
def test_tables_are_the_task_splits(language: Language, task: str, tmp_path: Path) -> None:
    write_text(language, tmp_path, **SIZES, seed=3)
    sides = []
    for name, split, n in (("train", "train", 60), ("validation", "test", 40)):
        sample = draw_split(language, split, n, seed=3)
        rows = [json.loads(line) for line in (tmp_path / task / f"{name}.jsonl").read_text().splitlines()]
        assert [row["idx"] for row in rows] == list(range(n))
        found = [numbers(language, row["sentence"]) for row in rows]
        assert found == [ids[ids != 12].tolist() for ids in sample.ids]
        classes = language.tasks[task].classes
        assert [classes.index(row["label"]) for row in rows] == language.labels(task, sample).tolist()
        sides.append({row["sentence"] for row in rows})
    assert not sides[0] & sides[1]


def test_words_of_letters_keep_their_names() -> None:
    dogs = PCFG.from_rules(Path(__file__).parent / "grammars" / "dogs.pcfg")
    assert set(word_names(dogs)) == {"dogs", "saw", "near", "the", "some", "not"}


def test_made_up_words_are_different_and_of_letters() -> None:
    for words in (1, 24, 9_999, 10_001):
        names = {made_up(word, words) for word in range(words)}
        assert len(names) == words
        assert all(name.isalpha() and name.islower() for name in names)
    hmm = HMMConfig(states=4, vocabulary=6, length=3, blocks=2, tasks=(2,)).build()
    assert word_names(hmm) == tuple(made_up(word, 6) for word in range(6))


def test_a_language_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"brackets have no classification task.*; name the file of a pcfg"):
        write_text(DyckConfig(length=4).build(), tmp_path, **SIZES)
    assert list(tmp_path.iterdir()) == []
