"""Hidden states at chosen words: the fused path beside autograd and beside the masked-LM loss."""

import weakref
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.fused_oracle import LANGUAGE, SMALL, assert_close, draw
from raysweep.errors import DataError
from raysweep.languages import PCFG
from raysweep.models import EncoderConfig, LSTMConfig, MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.fused import encoder as fused_encoder
from raysweep.models.fused import kernels

CONFIGS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "pre": (EncoderConfig, {"shape": "32/2/3/48"}),
    "post": (EncoderConfig, {"shape": "32/2/2/48", "norm": "post"}),
    "lstm": (LSTMConfig, {"shape": "24/3"}),
}


def make(kind: str, dropout: float = 0.0, language: PCFG = LANGUAGE) -> MaskedLM:
    cls, fields = CONFIGS[kind]
    model: MaskedLM = cls(dropout=dropout, **fields).build(language, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    return model.train()


def gradients(loss: Tensor, model: MaskedLM) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: torch.zeros(()) if g is None else g for name, g in zip(names, found, strict=True)}


def weighted(states: Tensor) -> Tensor:
    """Return a loss that depends on every number of the states."""
    return (states * torch.randn(states.shape, generator=torch.Generator().manual_seed(3))).sin().mean()


def first_words(size: int) -> Batch:
    """Return a batch that asks for the first word of each sentence."""
    words = draw(size=size)
    return replace(words, index=torch.zeros(size, dtype=torch.int64))


@pytest.mark.parametrize(
    "words", [draw("one", 20), draw(0.4, 20), first_words(20)], ids=["one", "some", "first"]
)
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_states_and_gradients_are_those_of_the_modules(kind: str, words: Batch) -> None:
    model = make(kind)
    found = model.hidden_at(words, seed=0, dtype=torch.float32)
    assert found.grad_fn is not None
    assert found.grad_fn.name() == "_StatesBackward"
    wanted = model.encode(words.ids).flatten(0, 1)[words.flat_index]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert_close(gradients(weighted(found), model), gradients(weighted(wanted), model), 2e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", ["one", 0.4])
@pytest.mark.parametrize("kind", ["pre", "post"])
def test_few_words_in_few_places_enter_once(
    kind: str, mask: Any, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = draw(mask, 120, language=SMALL)
    model = make(kind, 0.0 if training else 0.3, language=SMALL).train(training)
    embedded, embed = [], kernels.embed
    monkeypatch.setattr(kernels, "embed", lambda *a: (embedded.append(len(a[0])), embed(*a)))
    found = model.hidden_at(words, seed=0, dtype=torch.float32)
    assert embedded == [model.total_vocabulary * int(words.lengths.max())]
    wanted = model.encode(words.ids).flatten(0, 1)[words.flat_index]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert_close(gradients(weighted(found), model), gradients(weighted(wanted), model), 2e-5)


@pytest.mark.parametrize("mask", ["one", 0.4])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_dropout_is_that_of_the_masked_loss(kind: str, mask: Any) -> None:
    """The head on top of the states gives the masked-LM loss, with the same masks for the same seed."""
    model, words = make(kind, dropout=0.3), draw(mask)
    logits = model.head(model.hidden_at(words, seed=7, dtype=torch.float32))
    loss = F.cross_entropy(logits, words.targets, reduction="sum") / words.count
    whole = model.masked_loss(words, seed=7, dtype=torch.float32)
    assert loss.item() == pytest.approx(whole.item(), rel=1e-5)
    assert_close(gradients(loss, model), gradients(whole, model), 2e-5)
    other = model.hidden_at(words, seed=8, dtype=torch.float32)
    assert not torch.equal(other, model.hidden_at(words, seed=7, dtype=torch.float32))


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_chunks_and_threads_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, words = make(kind, dropout=0.2), draw(0.3)
    states = model.hidden_at(words, seed=7, dtype=torch.float32)
    wanted = gradients(weighted(states), model)
    monkeypatch.setattr(fused_encoder, "CHUNK", 40)
    torch.set_num_threads(3)
    try:
        again = model.hidden_at(words, seed=7, dtype=torch.float32)
        found = gradients(weighted(again), model)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(again, states, rtol=1e-4, atol=1e-5)
    assert_close(found, wanted, 2e-5)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_threads_read_in_inference_mode(kind: str) -> None:
    model, words = make(kind).eval(), draw(0.3)
    wanted = model.hidden_at(words, seed=0, dtype=torch.float32).detach()
    torch.set_num_threads(2)
    try:
        with torch.inference_mode():
            found = model.hidden_at(words, seed=0, dtype=torch.float32)
    finally:
        torch.set_num_threads(1)
    assert found.is_inference()
    torch.testing.assert_close(found.clone(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_the_head_has_no_part(kind: str) -> None:
    model, words = make(kind), draw()
    loss = weighted(model.hidden_at(words, seed=0, dtype=torch.float32))
    torch.autograd.backward(loss)
    head = model.head_parameters()
    assert head
    assert [p.grad for p in head] == [None] * len(head)
    body = {name for name, p in model.named_parameters() if p.grad is not None}
    assert len(body) + len(head) == len(list(model.parameters()))


def test_evaluation_mode_has_no_dropout_and_no_graph() -> None:
    model, words = make("pre", dropout=0.5).eval(), draw()
    with torch.no_grad():
        found = model.hidden_at(words, seed=1, dtype=torch.float32)
        wanted = model.encode(words.ids).flatten(0, 1)[words.flat_index]
    assert not found.requires_grad
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_are_given_out_once() -> None:
    model = make("pre")
    loss = weighted(model.hidden_at(draw(), seed=0, dtype=torch.float32))
    torch.autograd.backward(loss, retain_graph=True)
    with pytest.raises(RuntimeError, match="compute the states again"):
        torch.autograd.backward(loss)


def test_words_that_the_model_does_not_have_are_refused() -> None:
    model, words = make("pre"), draw()
    ids = words.ids.clone()
    ids[0, 0] = model.total_vocabulary
    with pytest.raises(DataError, match="none of the model's"):
        model.hidden_at(replace(words, ids=ids), seed=0, dtype=torch.float32)


def test_float64_goes_through_the_modules() -> None:
    model, words = make("post").double(), draw(0.4)
    found = model.hidden_at(words, seed=0, dtype=torch.float32)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, model.encode(words.ids).flatten(0, 1)[words.index])


@pytest.mark.parametrize("mask", ["one", 0.4])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_evaluation_reads_the_states_of_the_modules_and_keeps_nothing(
    kind: str, mask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, words = make(kind, dropout=0.3).eval(), draw(mask, 20)
    module = import_module(str(type(model).compiled))
    begun = []

    class Watched(module.Pass):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            begun.append(weakref.ref(self))

    monkeypatch.setattr(module, "Pass", Watched)
    with torch.no_grad():
        wanted = model.encode(words.ids).flatten(0, 1)[words.flat_index]
    at_once = model.read_at(words.ids, words.flat_index)
    if kind != "lstm":
        # An encoder's passes in one call; test_whole.py looks at their memory.
        monkeypatch.setattr(module.EncoderWeights, "whole_for", lambda self, chunk: None)
    for found in (at_once, model.read_at(words.ids, words.flat_index)):
        assert found.grad_fn is None
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert begun
    assert not any(pass_() for pass_ in begun)
    assert len(model.read_at(words.ids, torch.zeros(0, dtype=torch.int64))) == 0
