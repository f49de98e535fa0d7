"""`raysweep bench downstream`: fine-tuning with equal losses, on the same sentences."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from raysweep.bench import suites
from raysweep.bench.downstream import finetuning
from raysweep.bench.downstream.finetuning import Work
from raysweep.bench.harness import UnavailableError, run_case
from raysweep.bench.peers import peer
from raysweep.bench.peers.sequence_classifier import SequenceClassifier
from raysweep.bench.peers.trainer import WithTrainer
from raysweep.bench.record import Peak
from raysweep.downstream.finetune import Recipe
from raysweep.models.precision import multiplies_bfloat16


@pytest.fixture(scope="module")
def small() -> Work:
    return Work(shape="32/2/2/64", sentences=300)


def test_losses_are_equal(small: Work) -> None:
    found = finetuning.loss_difference(small, steps=3)
    assert found.value < 1e-5
    assert found.quantity == "largest difference of the losses of 3 steps (nats)"


@pytest.fixture
def accelerate() -> None:
    try:
        peer("accelerate")
    except UnavailableError as error:
        pytest.skip(f"of the bench extra: {error}")


@pytest.mark.usefixtures("accelerate")
def test_the_trainer_takes_the_same_steps(small: Work) -> None:
    assert finetuning.loss_difference(small, WithTrainer, steps=3).value < 1e-5
    recipe = small.recipe.model_copy(update={"epochs": 2, "precision": "float32", "warmup_steps": 3})
    work = replace(small, sentences=256, recipe=recipe)
    other = WithTrainer(SequenceClassifier(work.classifier(0.0), recipe, torch.float32))
    ours = work.fine_tune(work.model(0.0))
    assert (other.train(work.batches()) - ours.losses).abs().max() < 1e-5
    answers = ours.classifier.scores(work.ids).argmax(dim=1)
    assert (other.inner.answers(work.ids) == answers).double().mean() > 0.99


def test_without_accelerate_the_trainer_is_absent(small: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    other = SequenceClassifier(small.classifier(0.0), small.recipe, torch.float32)
    with pytest.raises(UnavailableError, match=r"accelerate cannot .*'raysweep\[bench\]' installs it"):
        WithTrainer(other)


def test_accuracies_are_of_the_same_task(small: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "LEARNING_RATE", 1e-2)
    ours, theirs, apart = finetuning.accuracies(replace(small, sentences=2560))
    assert min(ours.value, theirs.value) > 0.5
    assert apart.met


def test_another_training_is_not_equal(small: Work) -> None:
    recipe = Recipe(epochs=1, warmup_steps=0, lr=1e-2, batch_size=32, precision="float32")
    work = replace(small, recipe=recipe)
    ours = work.fine_tune(work.model(0.0)).losses
    same: dict[str, Any] = {}
    for fields, equal in ((same, True), ({"lr": 1.1e-2}, False), ({"betas": (0.9, 0.98)}, False)):
        other = SequenceClassifier(work.classifier(0.0), recipe.model_copy(update=fields), torch.float32)
        apart = (other.train(work.batches()).double() - ours).abs().max().item()
        assert (apart < 1e-4) == equal


def test_batches_are_those_of_the_fine_tuning(small: Work) -> None:
    given = list(small.batches())
    assert [len(ids) for ids, _ in given] == [128, 128, 44]
    assert torch.equal(torch.cat([ids for ids, _ in given]).sort(dim=0).values, small.ids.sort(dim=0).values)
    assert small.tokens == int((small.ids != small.language.pad_id).sum())


def test_a_peer_drops_out_as_we_do(small: Work) -> None:
    other = SequenceClassifier(small.classifier(0.1), small.recipe, torch.float32)
    found = [m.p for m in other.model.modules() if isinstance(m, torch.nn.Dropout)]
    # After the embedding, in each layer on the attention's weights and after both sublayers, and in the head.
    assert found == [0.1] * (1 + 3 * 2 + 1)
    linear = small.classifier(0.1)
    linear.dense = None
    with pytest.raises(ValueError, match="has the head 'bert'"):
        SequenceClassifier(linear, small.recipe, torch.float32)


@pytest.mark.parametrize("has_them", [False, True])
def test_peers_in_bfloat16_take_part_where_the_processor_has_instructions_for_it(
    has_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetuning, "multiplies_bfloat16", lambda device: has_them)
    names = [peer.name for peer in finetuning.fine_tuning("32/2/2/64", quick=True, rounds=3).peers]
    halves = [name for name in names if "bfloat16" in name]
    assert len(names) - len(halves) == 2
    assert len(halves) == (2 if has_them else 0)


def test_a_quick_run() -> None:
    (entry,) = suites.entries("downstream", ["finetune-64"])
    peak = Peak(gemm_float32_gflops=1.0, gemm_float64_gflops=1.0, copy_gbytes=1.0)
    record = run_case(entry, peak, quick=True, say=lambda text: None)
    trainer = "absent" if importlib.util.find_spec("accelerate") is None else "equal"
    precisions = 2 if multiplies_bfloat16(torch.device("cpu")) else 1
    assert [row.status for row in record.comparisons] == [trainer, "equal"] * precisions
    contestants = 2 if trainer == "absent" else 3
    assert [figure.unit for figure in record.figures] == ["GiB"] * contestants + ["", "", ""]
