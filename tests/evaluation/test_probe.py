"""The probe at a milestone: what it is given, what it reports, what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
import torch
from pydantic import ValidationError

from raysweep.algorithms import AdamWConfig, LookupTableConfig
from raysweep.downstream import AdamW
from raysweep.downstream.probe import Convex, ProbeResult
from raysweep.downstream.scores import sentence_error
from raysweep.evaluation import LookupTable
from raysweep.evaluation.probe import ProbeConfig
from raysweep.evaluation.probe_metrics import arrays_of, metrics_of
from raysweep.languages.base import Sample, Task
from raysweep.languages.hmm import HMM
from raysweep.languages.splits import draw_split
from raysweep.models.encoder import EncoderConfig

SMALL = {"train": 300, "test": 200, "projection": 32, "seeds": 3}


class Oracle:
    """Features that hold the label itself, and a record of what was asked for."""

    def __init__(self, language):
        self.language, self.seen = language, []

    def features(self, ids, representation, layers):
        assert (representation, layers) == ("concatenated", "last")
        self.seen.append(ids)
        tasks = [self.language.labels(task, Sample(ids=ids)) for task in self.language.tasks]
        return torch.nn.functional.one_hot(torch.stack(tasks, 1), 4).flatten(1).float()


def test_labels_belong_to_their_features(hmm, run):
    """Across chunks: a label held by the features is read off them without error."""
    config = ProbeConfig(train=5000, test=4500, projection=32, seeds=2)
    subject = Oracle(hmm)
    metrics = run(config, subject)
    for task in ("2", "4"):
        assert metrics[f"probe/{task}"].value == 1.0
        assert metrics[f"majority/{task}"].value < 0.9
    assert [len(ids) for ids in subject.seen] == [4096, 904, 4096, 404]


def test_sentences_are_those_of_the_task_splits(hmm, run):
    subject = Oracle(hmm)
    run(ProbeConfig(**SMALL, seed=6), subject)
    statistics, train, test = subject.seen
    assert torch.equal(statistics, draw_split(hmm, "train", 4096, seed=6).ids)
    assert torch.equal(train, draw_split(hmm, "train", 300, seed=6).ids)
    assert torch.equal(test, draw_split(hmm, "test", 200, seed=6).ids)


def test_sizes_are_those_of_the_paper_by_default():
    assert (ProbeConfig().train, ProbeConfig().test) == (100_000, 100_000)


NAMES = ("probe", "probe_std", "probe_sentence_error", "probe_gap", "best", "majority")


@pytest.mark.parametrize("solver", ["lbfgs", "adamw"])
def test_metrics(hmm, make_subject, run, solver):
    config = ProbeConfig(**SMALL, solver=solver, **({"steps": 500} if solver == "adamw" else {}))
    arrays = config.measure(make_subject(hmm), 0)
    metrics = {m.name: m for m in config.combine([arrays])}
    assert set(metrics) == {f"{name}/{task}" for name in NAMES for task in "24"}
    accuracy = arrays["accuracy.2"]
    assert accuracy.shape == (1, 1, 3)
    assert metrics["probe/2"].value == pytest.approx(accuracy.mean())
    assert metrics["probe_std/2"].value == pytest.approx(accuracy.std(ddof=1))
    assert metrics["probe/2"].standard_error == pytest.approx(accuracy.std(ddof=1) / math.sqrt(3))
    assert (metrics["probe/2"].n, metrics["majority/2"].n) == (3, 200)
    assert metrics["probe_gap/2"].value == arrays["gap.2"].max()
    assert metrics["probe/2"].reservations == ()
    share = metrics["majority/2"].value
    assert metrics["majority/2"].standard_error == pytest.approx(math.sqrt(share * (1 - share) / 200))


def test_the_best_possible_accuracy_stands_beside_the_guess(hmm, run):
    state = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,))
    metrics = run(ProbeConfig(**SMALL), LookupTable(state))
    best = metrics["best/2"]
    ids = draw_split(state, "test", 200, seed=0).ids
    values = state.label_posterior("2", ids).max(dim=1).values
    assert (best.value, best.n) == (pytest.approx(values.mean().item()), 200)
    assert best.standard_error == pytest.approx(values.std().item() / math.sqrt(200))
    assert metrics["majority/2"].value < best.value < 1
    assert (metrics["probe/2"].baseline, metrics["probe/2"].ceiling) == ("majority/2", "best/2")
    certain = run(ProbeConfig(**SMALL), LookupTable(hmm))["best/2"]
    assert (certain.value, certain.standard_error) == (1.0, 0.0)


def test_a_curve_has_an_area(hmm, make_subject, run):
    """Each size gives what it gives among other sizes, and names carry the number of labels."""
    curve = run(ProbeConfig(**SMALL | {"train": (30, 100, 300)}), make_subject(hmm))
    per_size = {f"{name}/{task}/{n}" for name in NAMES[:-2] for task in "24" for n in (30, 100, 300)}
    assert set(curve) == per_size | {
        f"{name}/{task}" for name in ("probe_area", "best", "majority") for task in "24"
    }
    y = [curve[f"probe/2/{n}"].value for n in (30, 100, 300)]
    x = [math.log(n) for n in (30, 100, 300)]
    area = sum((y[k] + y[k + 1]) / 2 * (x[k + 1] - x[k]) for k in range(2)) / (x[2] - x[0])
    assert curve["probe_area/2"].value == pytest.approx(area)
    assert curve["probe_area/2"].n == 3
    assert curve["probe/2/100"].of == {"task": "2", "labels": 100}
    assert not curve["probe/2/100"].live
    assert curve["probe_area/2"].live
    one = run(ProbeConfig(**SMALL), make_subject(hmm))
    # The products are batched otherwise, so a sentence on the boundary may fall to either side.
    assert one["probe/2"].value == pytest.approx(curve["probe/2/300"].value, abs=1 / 200)
    assert one["majority/2"] == curve["majority/2"]


@pytest.mark.parametrize("draws", ["shared", "own"])
def test_a_size_has_the_same_accuracy_alone_and_in_a_curve(hmm, make_subject, run, draws):
    """Sets of seeds that draw their own begin elsewhere in a curve, but for that of the first seed."""
    seeds = 1 if draws == "own" else 3
    subject, fields = make_subject(hmm), SMALL | {"draws": draws, "seeds": seeds, "tolerance": 1e-4}
    curve = run(ProbeConfig(**fields | {"train": (50, 300)}), subject)
    for size in (50, 300):
        alone = run(ProbeConfig(**fields | {"train": size}), subject)
        assert alone["probe/2"].value == pytest.approx(curve[f"probe/2/{size}"].value, abs=1 / 200)


def test_a_solve_that_was_stopped_is_not_trusted(hmm, make_subject):
    config = ProbeConfig(**SMALL)
    arrays = config.measure(make_subject(hmm), 0)
    arrays["gap.2"] = arrays["gap.2"] + 0.02
    metrics = {m.name: m for m in config.combine([arrays])}
    assert metrics["probe/2"].reservations == ("not converged",)
    assert metrics["probe/4"].reservations == ()


def test_each_layer_has_its_own_reservation(hmm, make_subject):
    config = ProbeConfig(**SMALL | {"train": (100, 300), "seeds": 2}, tasks=("2",), layers="all")
    arrays = config.measure(make_subject(hmm), 0)
    stopped = {key: array.copy() for key, array in arrays.items()}
    stopped["gap.2"][0, 1, 1] = 1.0
    metrics = {m.name: m for m in config.combine([stopped])}
    named = {name for name, metric in metrics.items() if metric.reservations}
    assert named == {"probe_layer/2/0/300"}
    assert (metrics["probe_gap/2/300"].value, metrics["probe_gap/2/300"].n) == (1.0, 6)
    stopped["gap.2"][2, 0, 0] = 1.0
    metrics = {m.name: m for m in config.combine([stopped])}
    named |= {"probe/2/100", "probe_layer/2/2/100", "probe_area/2"}
    assert {name for name, metric in metrics.items() if metric.reservations} == named


def test_the_headline_is_the_first_metric_of_the_task():
    """Against scikit-learn: the curve, its spread and its guess are of that metric."""
    draws = np.random.default_rng(0)
    labels = draws.random(200) < 0.3
    right = draws.random((1, 2, 3, 200)) < np.array([0.7, 0.9])[None, :, None, None]
    predicted = np.where(right, labels, ~labels).astype(int)
    result = ProbeResult(
        predicted=torch.as_tensor(predicted),
        labels=torch.as_tensor(labels.astype(int)),
        gap=torch.zeros(1, 2, 3),
        l2=torch.ones(1, 2, 3),
        code_length=None,
        most_frequent=0,
    )
    task = Task(name="cola", classes=("no", "yes"), description="", metrics=("matthews", "f1"))
    arrays = arrays_of(task, result, None, None, sizes=(50, 100), chosen=False)
    own = {name.removesuffix(".cola"): array for name, array in arrays.items()}
    metrics = {m.name: m for m in metrics_of("cola", own, solver=Convex())}
    for b, size in enumerate((50, 100)):
        truth = [sklearn.metrics.matthews_corrcoef(labels, one) for one in predicted[0, b]]
        of_f1 = [sklearn.metrics.f1_score(labels, one) for one in predicted[0, b]]
        found = metrics[f"probe/cola/{size}"]
        assert (found.value, found.unit) == (pytest.approx(np.mean(truth)), "matthews")
        assert (found.heading, found.ceiling) == ("probe matthews", None)
        assert metrics[f"probe_std/cola/{size}"].value == pytest.approx(np.std(truth, ddof=1))
        error = sentence_error("matthews", predicted[0, b], labels.astype(int), classes=2)
        assert metrics[f"probe_sentence_error/cola/{size}"].value == error
        accuracy, f1 = (metrics[f"probe_{name}/cola/{size}"] for name in ("accuracy", "f1"))
        assert accuracy.value == pytest.approx((predicted[0, b] == labels).mean())
        assert f1.value == pytest.approx(np.mean(of_f1))
        assert (accuracy.unit, f1.unit) == ("accuracy", "f1")
        assert f"probe_matthews/cola/{size}" not in metrics
    ends = [metrics[f"probe/cola/{size}"].value for size in (50, 100)]
    assert metrics["probe_area/cola"].value == pytest.approx(np.mean(ends))
    assert (metrics["majority/cola"].value, metrics["majority/cola"].unit) == (0.0, "matthews")


@pytest.mark.filterwarnings("error")
def test_one_test_sentence_has_no_error_over_sentences(hmm, run):
    metrics = run(ProbeConfig(**SMALL | {"test": 1, "train": 100, "seeds": 1}), Oracle(hmm))
    assert metrics["probe/2"].value in (0, 1)
    assert "probe_sentence_error/2" not in metrics


def wrong_tests(self, subject, group, controls, split, first, n, plain=ProbeConfig._chunks):
    """Yield the chunks of a probe, with the label 0 for every test sentence."""
    for chunk in plain(self, subject, group, controls, split, first, n):
        labels = {task: y * (split == "train") for task, y in chunk.labels.items()}
        yield replace(chunk, labels=labels)


def test_penalties_are_chosen_without_test_sentences(hmm, make_subject, run, monkeypatch):
    subject, penalties = make_subject(hmm), (1e-2, 1.0, 30.0, 1e3)
    metrics = run(ProbeConfig(**SMALL, l2=penalties), subject)
    for size in (200, 50):
        arrays = ProbeConfig(**SMALL | {"test": size}, l2=penalties).measure(subject, 0)
        chosen = arrays["l2.2"], arrays["l2.4"]
        # Other tests, and tests with wrong labels, choose the same.
        monkeypatch.setattr(ProbeConfig, "_chunks", wrong_tests)
        other = ProbeConfig(**SMALL, l2=penalties).measure(subject, 0)
        monkeypatch.undo()
        assert np.array_equal(chosen, (other["l2.2"], other["l2.4"]))
        assert (other["accuracy.2"] != arrays["accuracy.2"]).all()
    assert set(np.unique(chosen)) <= set(penalties)
    assert metrics["probe_l2/2"].value == np.median(chosen[0])
    one = metrics["probe_l2/2"].value
    fixed = run(ProbeConfig(**SMALL, l2=one), subject)
    assert "probe_l2/2" not in fixed


def test_every_layer_has_a_probe(hmm, make_subject, run):
    subject = make_subject(hmm)
    near = SMALL | {"tolerance": 1e-4, "test": 2000}
    metrics = run(ProbeConfig(**near, layers="all"), subject)
    layers = [metrics[f"probe_layer/2/{k}"].value for k in range(3)]
    assert "probe_layer/2/3" not in metrics
    assert layers[2] == metrics["probe/2"].value
    assert len(set(layers)) == 3
    last = run(ProbeConfig(**near), subject)
    assert last["probe/2"].value == pytest.approx(layers[2], abs=1 / 200)
    curve = run(ProbeConfig(**near | {"train": (100, 300)}, layers="all"), subject)
    assert curve["probe_layer/2/1/300"].of == {"task": "2", "layer": 1, "labels": 300}
    assert curve["probe_layer/2/1/300"].value == pytest.approx(layers[1], abs=1 / 200)


@pytest.mark.parametrize("representation", ["mean", "masked word"])
def test_other_representations(hmm, make_subject, run, representation):
    fields = SMALL | {"projection": None, "seeds": 1, "representation": representation}
    metrics = run(ProbeConfig(**fields), make_subject(hmm))
    assert metrics["probe/2"].value > metrics["majority/2"].value
    table = run(ProbeConfig(**fields), LookupTable(hmm))
    assert table["probe/2"].value > table["majority/2"].value


def test_control_tasks_and_code(hmm, make_subject, run):
    subject = make_subject(hmm)
    metrics = run(ProbeConfig(**SMALL, control=True, mdl=True), subject)
    plain = run(ProbeConfig(**SMALL), subject)
    for task in "24":
        accuracy, control = metrics[f"probe/{task}"], metrics[f"probe_control/{task}"]
        assert accuracy.value == pytest.approx(plain[f"probe/{task}"].value, abs=1 / 200)
        assert metrics[f"probe_selectivity/{task}"].value == pytest.approx(accuracy.value - control.value)
        length, compression = metrics[f"probe_code_length/{task}"], metrics[f"probe_compression/{task}"]
        uniform = 300 * math.log(len(hmm.tasks[task].classes))
        assert 0 < length.value < uniform
        assert compression.value == pytest.approx(uniform / length.value, rel=1e-2)
    # The first word is in the representation, so its label can be learned by heart.
    assert max(metrics[f"probe_control/{task}"].value for task in "24") > 0.9


def test_seeds_may_draw_their_own_training_sets(hmm, run):
    subject = Oracle(hmm)
    config = ProbeConfig(**SMALL, draws="own")
    run(config, subject)
    _, *train, test = subject.seen
    assert torch.equal(torch.cat(train), draw_split(hmm, "train", 900, seed=0).ids)
    assert torch.equal(test, draw_split(hmm, "test", 200, seed=0).ids)


def test_what_a_model_lacks_is_told_before_anything_starts(hmm):
    model = EncoderConfig(shape="8/2/2/16")
    assert ProbeConfig(layers="all").model_problems(model, hmm) == []
    ((field, message),) = ProbeConfig(representation="cls").model_problems(model, hmm)
    assert field == "representation"
    assert message == (
        "sentences of 5 words leave no place for the sentence-level token in a model of 5 positions; "
        "use mean or concatenated"
    )
    for fields in ({"representation": "cls"}, {"layers": "all"}):
        assert not ProbeConfig(**fields).applies_to(LookupTableConfig())
        assert ProbeConfig(**fields).applies_to(AdamWConfig())


def test_one_seed_has_no_spread(hmm, run):
    metrics = run(ProbeConfig(**{**SMALL, "seeds": 1}), LookupTable(hmm))
    assert metrics["probe/2"].standard_error is None
    assert "probe_std/2" not in metrics


def test_table_beats_guessing(hmm, run):
    metrics = run(ProbeConfig(**SMALL | {"train": 2000, "test": 1000}), LookupTable(hmm))
    for task in "24":
        assert metrics[f"probe/{task}"].value > metrics[f"majority/{task}"].value + 0.1


def test_tasks_can_be_chosen(hmm, run):
    """A task alone gives what it gives among others."""
    one = ProbeConfig.decode({**SMALL, "tasks": [4]})
    assert one.tasks == ("4",)
    assert one == ProbeConfig.decode({**SMALL, "tasks": ["4"]})
    alone, both = run(one, LookupTable(hmm)), run(ProbeConfig(**SMALL), LookupTable(hmm))
    assert set(alone) == {f"{name}/4" for name in NAMES}
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
        {"train": []},
        {"train": [512, 128]},
        {"train": [128, 128]},
        {"train": [0, 128]},
        {"train": None, "draws": "own"},
        {"l2": []},
        {"l2": [1.0, 1.0]},
        {"l2": 0.0},
        {"l2": [1.0, -1.0]},
        {"l2": [1.0, 10.0], "mdl": True},
        {"train": 31, "mdl": True},
        {"tolerance": 0.0},
        {"representation": "masked"},
        {"layers": 2},
        {"solver": "adam"},
    ],
)
def test_fields_must_make_sense(fields):
    with pytest.raises(ValidationError):
        ProbeConfig.decode(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 50}, "epochs: solver lbfgs does not use it; take adamw, or leave it out"),
        ({"solver": "adamw", "l2": 0.5}, "l2: solver adamw does not use it; take lbfgs, or leave it out"),
        ({"projection": None}, "seeds: 5 seeds have the same head without a projection"),
    ],
)
def test_fields_without_an_effect_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        ProbeConfig.decode(fields)


def test_what_the_paper_does_is_a_setting():
    paper = ProbeConfig.decode({"solver": "adamw", "projection": None, "steps": 0})
    assert (paper.seeds, paper.train, paper.projection) == (5, 100_000, None)
    assert paper._solver() == AdamW(epochs=100, steps=0, learning_rate=1e-3)
    assert paper._solver().epochs_of(100_000) == paper._solver().epochs_of(512) == 100
    assert ProbeConfig.decode({"train": [128, 512], "l2": [0.1, 1]}).train == (128, 512)
