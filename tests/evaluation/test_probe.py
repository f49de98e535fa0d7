"""The probe at a milestone: what it is given, what it reports, what it refuses."""

import math

import pytest
import torch
from pydantic import ValidationError

from raysweep.evaluation import LookupTable
from raysweep.evaluation.probe import ProbeConfig
from raysweep.languages.base import Sample
from raysweep.languages.hmm import HMM
from raysweep.languages.splits import draw_split

SMALL = {"train": 300, "test": 200, "projection": 32, "epochs": 20, "seeds": 3}


class Oracle:
    """Features that hold the label itself, and a record of what was asked for."""

    def __init__(self, language):
        self.language, self.seen = language, []

    def features(self, ids):
        self.seen.append(ids)
        tasks = [self.language.labels(task, Sample(ids=ids)) for task in self.language.tasks]
        return torch.nn.functional.one_hot(torch.stack(tasks, 1), 4).flatten(1).float()


def test_labels_belong_to_their_features(hmm, run):
    """Across chunks: a label held by the features is read off them without error."""
    config = ProbeConfig(train=5000, test=4500, projection=32, epochs=10, seeds=2, lr=1e-2)
    subject = Oracle(hmm)
    metrics = run(config, subject)
    for task in ("2", "4"):
        assert metrics[f"probe/{task}"].value == 1.0
        assert metrics[f"majority/{task}"].value < 0.9
    assert [len(ids) for ids in subject.seen] == [4096, 904, 4096, 404]


def test_sentences_are_those_of_the_task_splits(hmm, run):
    subject = Oracle(hmm)
    run(ProbeConfig(**SMALL, seed=6), subject)
    train, test = subject.seen
    assert torch.equal(train, draw_split(hmm, "train", 300, seed=6).ids)
    assert torch.equal(test, draw_split(hmm, "test", 200, seed=6).ids)


def test_sizes_are_those_of_the_paper_by_default():
    assert (ProbeConfig().train, ProbeConfig().test) == (100_000, 100_000)


def test_metrics(hmm, make_subject, run):
    config = ProbeConfig(**SMALL)
    arrays = config.measure(make_subject(hmm), 0)
    metrics = {m.name: m for m in config.combine([arrays])}
    assert set(metrics) == {f"{name}/{task}" for name in ("probe", "probe_std", "majority") for task in "24"}
    accuracy = arrays["accuracy.2"]
    assert accuracy.shape == (3,)
    assert metrics["probe/2"].value == pytest.approx(accuracy.mean())
    assert metrics["probe_std/2"].value == pytest.approx(accuracy.std(ddof=1))
    assert metrics["probe/2"].standard_error == pytest.approx(accuracy.std(ddof=1) / math.sqrt(3))
    assert (metrics["probe/2"].n, metrics["majority/2"].n) == (3, 200)
    share = metrics["majority/2"].value
    assert metrics["majority/2"].standard_error == pytest.approx(math.sqrt(share * (1 - share) / 200))


def test_one_seed_has_no_spread(hmm, run):
    metrics = run(ProbeConfig(**{**SMALL, "seeds": 1}), LookupTable(hmm))
    assert metrics["probe/2"].standard_error is None
    assert "probe_std/2" not in metrics


def test_table_beats_guessing(hmm, run):
    metrics = run(ProbeConfig(**{**SMALL, "train": 2000, "test": 1000, "epochs": 40}), LookupTable(hmm))
    for task in "24":
        assert metrics[f"probe/{task}"].value > metrics[f"majority/{task}"].value + 0.1


def test_tasks_can_be_chosen(hmm, run):
    """A task alone gives what it gives among others."""
    one = ProbeConfig.decode({**SMALL, "tasks": [4]})
    assert one.tasks == ("4",)
    assert one == ProbeConfig.decode({**SMALL, "tasks": ["4"]})
    alone, both = run(one, LookupTable(hmm)), run(ProbeConfig(**SMALL), LookupTable(hmm))
    assert set(alone) == {"probe/4", "probe_std/4", "majority/4"}
    assert alone["probe/4"].value == pytest.approx(both["probe/4"].value, abs=2 / 200)
    assert alone["majority/4"] == both["majority/4"]


def test_problems_name_the_task_and_the_nearest(pcfg, hmm):
    assert ProbeConfig(tasks=("A", "C")).problems(pcfg) == []
    ((field, message),) = ProbeConfig(tasks=("2", "44")).problems(hmm)
    assert field == "tasks.1"
    assert message == "unknown task '44' — did you mean '4'?; the language has 2, 4"
    bare = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=())
    ((field, message),) = ProbeConfig().problems(bare)
    assert (field, "no downstream tasks" in message) == ("tasks", True)


@pytest.mark.parametrize(
    "fields",
    [
        *({name: 0} for name in ("seeds", "train", "test", "projection", "epochs", "batch_size", "lr")),
        {"lr": -1.0},
        {"weight_decay": -0.1},
        {"tasks": []},
        {"tasks": ["A", "A"]},
        {"tasks": [6, "6"]},
        {"tasks": [True]},
        {"tasks": "A"},
        {"standardize": 1},
    ],
)
def test_fields_must_make_sense(fields):
    with pytest.raises(ValidationError):
        ProbeConfig.decode(fields)
