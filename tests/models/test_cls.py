"""Models that read the sentence-level token in front of every sentence."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.fused_oracle import LANGUAGE, assert_close, draw
from raysweep.algorithms import AdamWConfig
from raysweep.errors import ConfigError
from raysweep.evaluation import ModelSubject
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.evaluation.finetune import FinetuneConfig
from raysweep.evaluation.probe import ProbeConfig
from raysweep.evaluation.quantize import QuantizeConfig
from raysweep.evaluation.run import run_evaluation
from raysweep.evaluation.trace import TraceConfig
from raysweep.models import EncoderConfig, LSTMConfig, ModelConfig, representation, to_huggingface
from raysweep.models.cls import WithCLS
from raysweep.models.flops import training_flops
from raysweep.testing.training import FolderJournal, small_run
from raysweep.training import checkpoint_directory, load_model, pretrain

CONFIGS: dict[str, ModelConfig] = {
    "pre": EncoderConfig(shape="16/2/2/24", dropout=0.0, cls=True),
    "post": EncoderConfig(shape="16/2/2/24", dropout=0.0, norm="post", cls=True),
    "lstm": LSTMConfig(shape="16/2", dropout=0.0, cls=True),
}


def make(kind: str) -> WithCLS:
    model = CONFIGS[kind].build(LANGUAGE, seed=0)
    assert isinstance(model, WithCLS)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=noise) * 0.2)
    return model.train()


def gradients(loss: Tensor, model: WithCLS) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_states_are_those_inside_behind_the_token(kind: str) -> None:
    model, ids = make(kind).eval(), LANGUAGE.sample(20, seed=0)
    assert (model.max_length, model.inner.max_length) == (LANGUAGE.max_length, LANGUAGE.max_length + 1)
    read = torch.cat([torch.full((20, 1), LANGUAGE.cls_id), ids], dim=1)
    assert torch.equal(model.encode(ids), model.inner.encode(read)[:, 1:])
    changed = torch.cat([ids[:, :1], read[:, 1:]], dim=1)
    assert not torch.equal(model.encode(ids), model.inner.encode(changed)[:, 1:])


@pytest.mark.parametrize("mask", ["one", 0.4])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_the_fused_loss_is_that_of_the_modules(kind: str, mask: Any) -> None:
    model, words = make(kind), draw(mask)
    assert model.fused
    loss = model.masked_loss(words, seed=0, dtype=torch.float32)
    states = model.encode(words.ids).flatten(0, 1)[words.flat_index]
    wanted = F.cross_entropy(model.head(states), words.targets, reduction="sum") / words.count
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert_close(gradients(loss, model), gradients(wanted, model), 2e-5)


def test_a_batch_behind_a_word() -> None:
    for words in (draw("one", 9), draw(0.4, 9)):
        behind = words.after(7)
        assert behind.ids[:, 0].tolist() == [7] * 9
        assert torch.equal(behind.ids[:, 1:], words.ids)
        assert torch.equal(behind.lengths, words.lengths + 1)
        # The same words are masked.
        assert torch.equal(behind.ids.flatten()[behind.flat_index], words.ids.flatten()[words.flat_index])
        assert (behind.flat_index % behind.ids.shape[1] > 0).all()


def test_models_without_the_token_keep_their_identity() -> None:
    for plain, config in (
        (EncoderConfig(shape="8/1/1/8"), CONFIGS["pre"]),
        (LSTMConfig(shape="8/1"), CONFIGS["lstm"]),
    ):
        assert "cls" not in plain.content()
        assert config.content()["cls"] is True
        assert config.label.endswith("-cls")
        assert not plain.build(LANGUAGE, seed=0).reads_cls


@pytest.mark.parametrize("kind", ["pre", "lstm"])
def test_it_is_pre_trained_stopped_and_loaded(kind: str, tmp_path: Path) -> None:
    whole, first = (
        small_run(
            AdamWConfig(lr=1e-2, warmup_steps=2), model=CONFIGS[kind], pretrain={"steps": n, "milestones": m}
        )
        for n, m in ((20, [10, 20]), (10, [10]))
    )
    for name, runs in (("whole", [whole]), ("parts", [first, whole])):
        for arguments in runs:
            pretrain(journal=FolderJournal(tmp_path / name), **arguments)
    folders = [checkpoint_directory(tmp_path / name, 20) for name in ("whole", "parts")]
    one, other = (load_model(folder, CONFIGS[kind], whole["language"]) for folder in folders)
    assert isinstance(one, WithCLS)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_it_takes_the_work_of_a_longer_sentence() -> None:
    model, lengths, masked = make("pre"), torch.tensor([3, 5]), torch.tensor([1, 2])
    assert training_flops(model, lengths, masked) == training_flops(model.inner, lengths + 1, masked)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_evaluations_take_sentences_without_the_token(kind: str) -> None:
    model = make(kind)
    subject = ModelSubject(LANGUAGE, model)
    ids = LANGUAGE.sample(8, seed=3)
    positions = torch.zeros(8, dtype=torch.int64)
    read = F.pad(ids.scatter(1, positions[:, None], LANGUAGE.mask_id), (1, 0), value=LANGUAGE.cls_id)
    wanted = model.inner(read, positions + 1).double().log_softmax(dim=-1)[:, : LANGUAGE.vocabulary_size]
    torch.testing.assert_close(subject.log_probs(ids, positions), wanted, rtol=0, atol=1e-5)
    assert subject.features(ids).shape == (8, LANGUAGE.max_length * 16)
    trace = run_evaluation(TraceConfig(inputs=8), subject)
    assert trace.notes == {"method": "ghost norms"}
    found = {metric.name: metric.value for metric in trace.metrics}
    assert found["trace"] > 0
    for evaluation in (ExcessLossConfig(sentences=8), QuantizeConfig(sentences=8, noise=(), bits=(8,))):
        assert run_evaluation(evaluation, subject).metrics


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_representations_are_those_inside(kind: str) -> None:
    model, ids = make(kind).eval(), LANGUAGE.sample(8, seed=3)
    subject, read = ModelSubject(LANGUAGE, model), F.pad(ids, (1, 0), value=LANGUAGE.cls_id)
    with torch.no_grad():
        inside = model.inner.encode(read)
    torch.testing.assert_close(subject.features(ids, "cls"), inside[:, 0], rtol=1e-5, atol=1e-5)
    words = (ids != LANGUAGE.pad_id)[:, :, None]
    mean = (inside[:, 1:] * words).sum(dim=1) / words.sum(dim=1)
    torch.testing.assert_close(subject.features(ids, "mean"), mean, rtol=1e-5, atol=1e-5)
    every = subject.features(ids, "cls", "all")
    assert every.shape == (8, 3, 16)
    torch.testing.assert_close(every[:, -1], inside[:, 0], rtol=1e-5, atol=1e-5)
    layers = subject.features(ids, "mean", "all")
    assert layers.shape == (8, 3, 16)
    torch.testing.assert_close(layers[:, -1], mean, rtol=1e-5, atol=1e-5)
    # Concatenated states are those of each layer behind the token, and the token has no part in them.
    joined = subject.features(ids, "concatenated", "all").unflatten(2, (LANGUAGE.max_length, 16))
    with torch.no_grad():
        inner = representation.states(model.inner, read, "all")[:, :, 1:]
    torch.testing.assert_close(joined, inner * words[:, None], rtol=1e-5, atol=1e-5)
    assert ProbeConfig(layers="all").model_problems(CONFIGS[kind], LANGUAGE) == []


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_fine_tuning_reads_the_state_of_the_token(kind: str) -> None:
    subject = ModelSubject(LANGUAGE, make(kind))
    fields: dict[str, Any] = {
        "train": 64,
        "test": 32,
        "seeds": 1,
        "epochs": 1,
        "forgetting": 8,
        "warmup_steps": 0,
    }
    task = next(iter(LANGUAGE.tasks))
    auto = FinetuneConfig(tasks=(task,), **fields)
    found, given = (run_evaluation(auto.model_copy(update={"pooling": p}), subject) for p in ("auto", "cls"))
    assert found == given
    assert found.notes == {}
    assert auto.model_copy(update={"pooling": "cls"}).model_problems(CONFIGS[kind], LANGUAGE) == []
    mean = run_evaluation(auto.model_copy(update={"pooling": "mean"}), subject)
    assert mean.metrics != found.metrics


def test_a_folder_cannot_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"export `model\.inner`"):
        to_huggingface(make("post"), tmp_path)
