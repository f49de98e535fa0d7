"""Fine-tuning at a milestone: cells, what they report, what they forget, and cells that diverge."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raysweep.downstream.finetune import DivergedError, fine_tune
from raysweep.errors import ConfigError, DataError
from raysweep.evaluation import LookupTable, ModelSubject
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.evaluation.finetune import FinetuneConfig
from raysweep.evaluation.notes import remarks
from raysweep.evaluation.run import run_evaluation, stored_shards
from raysweep.languages.base import LabelledData, Task
from raysweep.languages.hmm import HMM
from raysweep.languages.splits import draw_split
from raysweep.models import EncoderConfig, LSTMConfig
from raysweep.seeding import derive
from raysweep.sweep import evaluation_identity

SMALL = {
    "train": 300, "test": 200, "seeds": 2, "epochs": 4, "lr": 1e-2, "warmup_steps": 4, "batch_size": 32,
    "forgetting": 60,
}  # fmt: skip


def config(**fields):
    return FinetuneConfig(**{**SMALL, **fields})


def measured(evaluation, subject):
    found = run_evaluation(evaluation, subject)
    return {metric.name: metric for metric in found.metrics}, found.notes


def test_a_cell_is_a_fine_tuning_on_the_task_splits(hmm, make_subject):
    evaluation, subject = config(seed=3), make_subject(hmm)
    train, test = (draw_split(hmm, split, n, seed=3) for split, n in (("train", 300), ("test", 200)))
    losses = ExcessLossConfig(sentences=60, shard_size=60, seed=3)
    before = losses.measure(subject, 0)["excess_loss"]
    for shard, (task, seed) in enumerate([("2", 0), ("2", 1), ("4", 0), ("4", 1)]):
        found = evaluation.measure(subject, shard)
        alone = fine_tune(
            subject.model, train.ids, hmm.labels(task, train), classes=4, recipe=evaluation, pooling="mean",
            seed=derive(3, "finetune", seed),
        )  # fmt: skip
        accuracy = (alone.scores(test.ids).argmax(dim=1) == hmm.labels(task, test)).double().mean()
        assert found["score.accuracy"][0] == pytest.approx(accuracy.item())
        assert found["train_loss"][0] == pytest.approx(alone.losses[-10:].mean().item())
        after = losses.measure(ModelSubject(hmm, alone.classifier.model), 0)["excess_loss"]
        assert found["rise"][0] == pytest.approx((after - before).mean(), rel=1e-6)
        assert found["after"][0] == pytest.approx(after.mean(), rel=1e-6)
        majority = hmm.labels(task, train).bincount().argmax()
        assert found["guess"][0] == pytest.approx((hmm.labels(task, test) == majority).double().mean().item())


def test_metrics_are_over_seeds(hmm, make_subject):
    evaluation, subject = config(seeds=3), make_subject(hmm)
    cells = [evaluation.measure(subject, k) for k in range(6)]
    metrics, notes = measured(evaluation, subject)
    names = ["", "_std", "_sentence_error", "_guess", "_best", "_train_loss", "_diverged", "_excess_loss"]
    expected = {f"finetune{name}/{task}" for name in names for task in "24"} | {
        "forgetting/2",
        "forgetting/4",
    }
    assert set(metrics) == expected
    for first, task in ((0, "2"), (3, "4")):
        scores = np.array([cell["score.accuracy"][0] for cell in cells[first : first + 3]])
        assert metrics[f"finetune/{task}"].value == pytest.approx(scores.mean())
        assert metrics[f"finetune/{task}"].standard_error == pytest.approx(scores.std(ddof=1) / math.sqrt(3))
        assert metrics[f"finetune_std/{task}"].value == pytest.approx(scores.std(ddof=1))
        rises = np.array([cell["rise"][0] for cell in cells[first : first + 3]])
        assert metrics[f"forgetting/{task}"].value == pytest.approx(rises.mean())
        assert metrics[f"finetune_diverged/{task}"].value == 0
        assert metrics[f"finetune/{task}"].n == 3
        assert metrics[f"finetune/{task}"].baseline in metrics
        right = [cell["answers"] == cell["labels"] for cell in cells[first : first + 3]]
        assert [hits.mean() for hits in right] == scores.tolist()
        error = np.mean(right, axis=0).std(ddof=1) / math.sqrt(200)
        assert metrics[f"finetune_sentence_error/{task}"].value == pytest.approx(error)
        assert metrics[f"finetune_sentence_error/{task}"].n == 200
    assert notes == {
        "method": "the mean state of the words",
        "reason": "the model was pre-trained without the sentence-level token",
    }


def test_the_best_possible_accuracy_is_on_the_same_examples(hmm, make_subject):
    language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,))
    metrics, _ = measured(config(seeds=1, forgetting=0, seed=3), make_subject(language))
    best = metrics["finetune_best/2"]
    values = language.label_posterior("2", draw_split(language, "test", 200, seed=3).ids).max(dim=1).values
    assert (best.value, best.n) == (pytest.approx(values.mean().item()), 200)
    assert best.standard_error == pytest.approx(values.std().item() / math.sqrt(200))
    assert metrics["finetune_guess/2"].value < best.value < 1
    assert metrics["finetune/2"].ceiling == best.name


def test_forgetting_can_be_left_out_and_one_seed_has_no_spread(hmm, make_subject):
    metrics, _ = measured(config(forgetting=0, seeds=1, tasks=("4",)), make_subject(hmm))
    names = ("", "_sentence_error", "_guess", "_best", "_train_loss", "_diverged")
    assert set(metrics) == {f"finetune{name}/4" for name in names}
    assert metrics["finetune/4"].standard_error is None


def test_a_model_learns_and_forgets(hmm):
    """From a model that has learnt nothing: labels are learnt, and the loss moves."""
    subject = ModelSubject(hmm, EncoderConfig(shape="16/2/1/32", dropout=0.0).build(hmm, seed=0))
    metrics, _ = measured(config(train=1500, test=500, epochs=8, tasks=("2",)), subject)
    assert metrics["finetune/2"].value > metrics["finetune_guess/2"].value + 0.1
    assert abs(metrics["forgetting/2"].value) > 1e-3


def test_an_lstm_too(hmm):
    subject = ModelSubject(hmm, LSTMConfig(shape="16/1").build(hmm, seed=0))
    metrics, _ = measured(config(tasks=("2",)), subject)
    assert metrics["finetune/2"].n == 2


class TestCells:
    def test_the_language_names_the_tasks(self, hmm, make_subject):
        named, unnamed, subject = config(tasks=("2", "4")), config(), make_subject(hmm)
        assert unnamed.fitted(hmm) == named.fitted(hmm) == named
        assert evaluation_identity(unnamed.fitted(hmm)) == evaluation_identity(named)
        assert (named.shards(), named.next_shards([])) == (4, 4)
        assert measured(named, subject) == measured(unnamed, subject)
        for evaluation in (named, unnamed):
            with pytest.raises(IndexError, match="shard 4 of 4"):
                evaluation.measure(subject, 4)
        with pytest.raises(ConfigError, match=r"finetune\.tasks: which ones is up to the language"):
            unnamed.shards()

    def test_finished_cells_are_not_measured_again(self, hmm, make_subject):
        evaluation, subject, kept = config().fitted(hmm), make_subject(hmm), {}
        kept[1] = evaluation.measure(subject, 1)
        asked = []
        while True:
            shards, missing = stored_shards(evaluation, kept.get)
            if not missing:
                break
            asked += missing
            kept |= {k: evaluation.measure(subject, k) for k in missing}
        assert asked == [0, 2, 3]
        assert evaluation.combine(shards) == run_evaluation(evaluation, subject).metrics

    def test_the_order_of_named_tasks_does_not_matter(self, hmm, make_subject):
        subject = make_subject(hmm)
        alone, _ = measured(config(tasks=("4",)), subject)
        both, _ = measured(config(tasks=("4", "2")), subject)
        assert all(both[name] == metric for name, metric in alone.items())


def test_cells_share_what_does_not_depend_on_them(hmm, make_subject, monkeypatch):
    """Exact conditionals are computed once, and the loss before once for each state of the weights."""
    asked = {"reference": 0, "measure": 0}

    def counted(name, plain):
        def call(*arguments):
            asked[name] += 1
            return plain(*arguments)

        return call

    for name in asked:
        monkeypatch.setattr(ExcessLossConfig, name, counted(name, getattr(ExcessLossConfig, name)))
    evaluation, subject = config(seed=31), make_subject(hmm)
    found = evaluation.measure(subject, 0)
    for shard in (1, 2):
        evaluation.measure(ModelSubject(hmm, subject.model), shard)
    assert asked == {"reference": 1, "measure": 4}
    with torch.no_grad():
        next(subject.model.parameters()).mul_(1.5)
    changed = evaluation.measure(subject, 0)
    assert asked == {"reference": 1, "measure": 6}
    assert changed["excess_loss"] != found["excess_loss"]


class TestDivergence:
    def test_a_cell_that_diverges_is_left_out_and_named(self, hmm, make_subject, monkeypatch):
        evaluation, subject = config(seeds=3, tasks=("2",)), make_subject(hmm)
        cells = [evaluation.measure(subject, k) for k in range(3)]
        hot = evaluation.model_copy(update={"lr": 1e38, "warmup_steps": 0})
        broken = hot.measure(subject, 1)
        assert 1 <= broken["diverged"][0] <= 40
        assert "score.accuracy" not in broken
        shards = [cells[0], broken, cells[2]]
        metrics = {m.name: m for m in evaluation.combine(shards)}
        sound = np.array([cells[k]["score.accuracy"][0] for k in (0, 2)])
        assert metrics["finetune/2"].value == pytest.approx(sound.mean())
        assert metrics["finetune/2"].n == 2
        assert metrics["finetune/2"].reservations == ("1 of 3 seeds diverged",)
        assert (metrics["finetune_diverged/2"].value, metrics["finetune_diverged/2"].n) == (1, 3)
        step = broken["diverged"][0]
        expected = f"finetune: diverged and left out: task 2, seed 1 at step {step} of 40"
        assert expected in remarks("finetune", evaluation.notes(shards))

    def test_all_cells_may_diverge(self, hmm, make_subject):
        metrics, notes = measured(config(lr=1e38, warmup_steps=0), make_subject(hmm))
        names = ("diverged", "guess", "best")
        assert set(metrics) == {f"finetune_{name}/{task}" for name in names for task in "24"}
        assert metrics["finetune_diverged/2"].value == 2
        assert notes["diverged"].count("seed") == 4

    def test_a_cell_that_diverges_in_forgetting_has_no_scores(self, hmm, make_subject, monkeypatch):
        def diverges(*_):
            raise DivergedError(40)

        monkeypatch.setattr(FinetuneConfig, "_forgetting", diverges)
        found = config(tasks=("2",)).measure(make_subject(hmm), 0)
        names = {name for name in found if not name.startswith("note/")}
        assert names == {"diverged", "examples", "guess", "classes", "best"}

    def test_a_warm_up_that_does_not_end_is_said(self, hmm, make_subject):
        _, notes = measured(config(warmup_steps=41, tasks=("2",)), make_subject(hmm))
        assert notes["warm_up"] == (
            "finetune: the rate never reaches lr, because warmup_steps is 41 and task 2 has 40 steps; "
            "take a shorter warm-up or more epochs"
        )


class Rows(LabelledData):
    """Sentences with the mean of their words' numbers: 40 to train on and 20 to test on."""

    task = Task(name="rows", classes=(), description="", metrics=("pearson", "spearman"))
    fingerprint = "rows"

    def __init__(self, language):
        draws = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, language.vocabulary_size, (60, language.max_length), generator=draws)

    def prepare(self):
        pass

    def size(self, split):
        return 40 if split == "train" else 20

    def take(self, split, rows):
        ids = self.ids[rows + (0 if split == "train" else 40)]
        return ids, ids.float().mean(dim=1)


class WithRows(HMM):
    @property
    def data_tasks(self):
        return {"rows": Rows(self)}


@pytest.fixture
def rows():
    language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2, 4))
    language.__class__ = WithRows
    return language


class TestDataSets:
    def test_a_regression_has_its_own_scores(self, rows, make_subject):
        evaluation = config(train=None, test=None, tasks=("rows",), epochs=60)
        metrics, _ = measured(evaluation, make_subject(rows))
        assert metrics["finetune/rows"].unit == "pearson"
        assert metrics["finetune/rows"].title == "pearson after fine-tuning, task rows"
        assert metrics["finetune/rows"].value > 0.8
        assert metrics["finetune_guess/rows"].value == 0
        assert {name: metric.unit for name, metric in metrics.items()} == {
            **{f"finetune{name}/rows": "pearson" for name in ("", "_std", "_sentence_error", "_guess")},
            "finetune_spearman/rows": "spearman",
            "finetune_train_loss/rows": "squared error",
            "finetune_diverged/rows": "seeds",
            "finetune_excess_loss/rows": "nats",
            "forgetting/rows": "nats",
        }
        assert metrics["finetune/rows"].ceiling is None
        assert 0 < metrics["finetune_sentence_error/rows"].value < 0.3
        assert 0.7 < metrics["finetune_spearman/rows"].value <= 1
        # All rows, where no number is given.
        assert evaluation.measure(make_subject(rows), 0)["examples"].tolist() == [40, 20]

    def test_more_rows_than_there_are_is_a_problem(self, rows):
        ((field, message),) = config(train=41, test=20, tasks=("rows",)).problems(rows)
        assert (field, "task 'rows' has no more than 40 of 'train'" in message) == ("train", True)
        assert config(train=40, test=20).problems(rows) == []

    def test_tasks_of_both_kinds_go_together(self, rows, make_subject):
        metrics, _ = measured(config(train=40, test=20, epochs=1), make_subject(rows))
        assert {"finetune/2", "finetune/4", "finetune/rows"} <= set(metrics)


class TestRepresentation:
    def test_the_token_where_pre_training_had_it(self, hmm):
        room = HMM.random(states=4, vocabulary=6, length=6, blocks=2, tasks=(2,))
        model = EncoderConfig(shape="8/2/2/16").build(room, seed=0)
        model.reads_cls = True
        subject = ModelSubject(hmm, model)
        auto, auto_notes = measured(config(tasks=("2",)), subject)
        given, given_notes = measured(config(tasks=("2",), pooling="cls"), subject)
        assert auto == given
        assert auto_notes == given_notes == {}
        mean, _ = measured(config(tasks=("2",), pooling="mean"), subject)
        assert mean["finetune_train_loss/2"].value != auto["finetune_train_loss/2"].value

    def test_the_token_without_a_place_is_a_problem(self, hmm, pcfg):
        model = EncoderConfig(shape="8/2/2/16")
        ((field, message),) = config(pooling="cls").model_problems(model, hmm)
        assert (field, "5 positions leave no place" in message) == ("pooling", True)
        assert config().model_problems(model, hmm) == []


def test_problems_name_their_fields(hmm, monkeypatch):
    ((field, message),) = config(tasks=("44",)).problems(hmm)
    assert (field, "unknown task '44'" in message) == ("tasks.0", True)
    bare = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=())
    ((field, message),) = config().problems(bare)
    assert (field, "leave the finetune out" in message) == ("tasks", True)
    with pytest.raises(ConfigError, match="finetune: LookupTable has no parameters"):
        config().measure(LookupTable(hmm), 0)
    monkeypatch.setattr(HMM, "stores_conditionals", True)
    monkeypatch.setattr(HMM, "distinct", 8)
    ((field, message),) = config().problems(hmm)
    assert (field, "60 are asked for, 8 are held out" in message) == ("forgetting", True)
    model = EncoderConfig(shape="8/2/2/16").build(hmm, seed=0)
    with pytest.raises(DataError, match="forgetting: 60 are asked for"):
        config().measure(ModelSubject(hmm, model), 0)


def test_the_default_is_the_recipe_of_the_paper():
    default = FinetuneConfig()
    assert (default.lr, default.warmup_steps, default.epochs, default.batch_size) == (1e-4, 200, 10, 128)
    assert (default.seeds, default.pooling, default.schedule) == (5, "auto", "linear")
    # Every hyper-parameter is part of the identity.
    assert {"lr", "warmup_steps", "schedule", "weight_decay", "betas", "eps", "dropout", "head"} <= set(
        default.encode()
    )


@pytest.mark.parametrize(
    "fields",
    [{"seeds": 0}, {"train": 0}, {"test": 0}, {"forgetting": -1}, {"tasks": []}, {"mask": 1.5}, {"lr": -1.0}],
)
def test_fields_must_make_sense(fields):
    with pytest.raises(ValidationError):
        FinetuneConfig.decode(fields)
