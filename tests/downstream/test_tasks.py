"""Examples of tasks: of a language itself, and of data sets."""

import hashlib
from typing import ClassVar

import pytest
import torch

from raysweep.downstream.tasks import task_groups, task_names
from raysweep.errors import DataError
from raysweep.evaluation.probe import ProbeConfig
from raysweep.languages.base import LabelledData, Task
from raysweep.languages.hmm import HMM
from raysweep.languages.splits import draw_split, in_validation

FIELDS = {"states": 4, "vocabulary": 6, "length": 5, "blocks": 2, "tasks": (2, 4)}


class Rows(LabelledData):
    """Rows 0 .. n-1 as sentences of their own number; the label is the number's parity."""

    sizes: ClassVar = {"train": 10, "test": 4}

    def __init__(self) -> None:
        self.prepared = False

    @property
    def task(self):
        return Task(name="parity", classes=("even", "odd"), description="")

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(b"parity").hexdigest()

    def prepare(self):
        self.prepared = True

    def size(self, split):
        return self.sizes[split] if self.prepared else None

    def take(self, split, rows):
        return rows[:, None].repeat(1, 5), rows % 2


class WithData(HMM):
    @property
    def data_tasks(self):
        return self.__dict__.setdefault("data", {"parity": Rows()})


@pytest.fixture
def language():
    plain = HMM.random(**FIELDS)
    return WithData(
        initial=plain.initial,
        transition=plain.transition,
        emission=plain.emission,
        length=plain.max_length,
        tasks=(2, 4),
    )


def test_own_tasks_share_the_sentences_of_the_splits(language):
    own, data = task_groups(language)
    assert (own.names, data.names, own.size("train")) == (("2", "4"), ("parity",), None)
    assert {name: task.classes for name, task in data.tasks.items()} == {"parity": ("even", "odd")}
    for split in ("train", "test"):
        sample = draw_split(language, split, 50, seed=3)
        batches = list(own.batches(split, 50, seed=3, size=20))
        assert [len(batch.ids) for batch in batches] == [20, 20, 10]
        assert torch.equal(torch.cat([batch.ids for batch in batches]), sample.ids)
        for name in own.tasks:
            found = torch.cat([batch.labels[name] for batch in batches])
            assert torch.equal(found, language.labels(name, sample))


def test_rows_come_in_a_keyed_order_without_repeats(language):
    (data,) = task_groups(language, ["parity"])
    assert data.size("train") is None
    whole = data.examples("train", 10, seed=0)
    assert sorted(whole.ids[:, 0].tolist()) == list(range(10))
    assert torch.equal(whole.labels["parity"], whole.ids[:, 0] % 2)
    parts = torch.cat([batch.ids for batch in data.batches("train", 7, seed=0, size=3)])
    assert torch.equal(parts, whole.ids[:7])
    assert not torch.equal(data.examples("train", 10, seed=1).ids, whole.ids)
    assert (data.size("train"), data.size("test")) == (10, 4)


def test_more_examples_than_there_are_is_an_error(language):
    (data,) = task_groups(language, ["parity"])
    with pytest.raises(DataError, match="task 'parity': 11 train examples are asked for, of 10"):
        data.examples("train", 11, seed=0)


def test_an_unknown_task_is_an_error(language):
    assert task_names(language) == ["2", "4", "parity"]
    with pytest.raises(DataError, match="no task 'party' — did you mean 'parity'"):
        task_groups(language, ["2", "party"])


def test_an_evaluation_names_what_is_short_once_it_is_known(language):
    config = ProbeConfig(train=20, test=4)
    assert config.problems(language) == []
    language.data_tasks["parity"].prepare()
    ((field, message),) = config.problems(language)
    assert field == "train"
    assert message.startswith(
        "20 examples are asked for, and task 'parity' has no more than 10 of 'train'; ask"
    )
    assert ProbeConfig(train=10, test=4).problems(language) == []


def test_the_share_for_choices_is_keyed_by_content():
    language = HMM.random(states=6, vocabulary=12, length=4, blocks=1, tasks=())
    ids = draw_split(language, "train", 20_000, seed=0).ids
    inside = in_validation(ids, language.pad_id, 0.2)
    assert inside.float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert torch.equal(in_validation(ids.flip(0), language.pad_id, 0.2), inside.flip(0))
    assert bool((in_validation(ids, language.pad_id, 0.5) >= inside).all())
    sides = {}
    for row, side in zip(ids.tolist(), inside.tolist(), strict=True):
        assert sides.setdefault(tuple(row), side) == side
    assert len(sides) < len(ids)  # some sentences occur twice
