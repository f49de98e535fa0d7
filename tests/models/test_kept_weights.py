"""Weights that compiled training keeps from step to step, beside a fresh model's."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.fused_oracle import LANGUAGE, draw
from raysweep.models import EncoderConfig, LSTMConfig, MaskedLM
from raysweep.models.fused import products
from raysweep.models.fused import step as fused
from raysweep.models.fused.weights import Weights

CONFIGS: dict[str, Any] = {
    "post": EncoderConfig(shape="32/2/2/48", dropout=0.2, norm="post"),
    "pre": EncoderConfig(shape="32/2/2/48", dropout=0.2, norm="pre"),
    "lstm": LSTMConfig(shape="16/2", dropout=0.2),
    "cls": EncoderConfig(shape="32/2/2/48", dropout=0.2, cls=True),
}
OPTIONS: list[dict[str, Any]] = [{"seed": 3, "dtype": dtype} for dtype in (torch.float32, torch.bfloat16)]


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MaskedLM:
    """A model whose weights are laid out even for the few rows of a step of an LSTM."""
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    made: MaskedLM = CONFIGS[request.param].build(LANGUAGE, seed=0)
    return made.train()


def gradients(model: MaskedLM, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def fresh(model: MaskedLM, options: dict[str, Any]) -> list[Tensor]:
    """Return the gradients of a copy of the model, which has computed nothing before."""
    other = copy.deepcopy(model)
    return gradients(other, other.masked_loss(draw(), **options))


def move(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.1)


def assert_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.fixture(params=OPTIONS, ids=["float32", "bfloat16"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    given: dict[str, Any] = request.param
    return given


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_later_steps_see_the_weights_as_they_are_then(
    model: MaskedLM, options: dict[str, Any], threads: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[MaskedLM] = []
    begin = Weights.__init__

    def counted(self: Weights, given: MaskedLM, dtype: torch.dtype) -> None:
        made.append(given)
        begin(self, given, dtype)

    monkeypatch.setattr(Weights, "__init__", counted)
    if not kept:
        monkeypatch.setattr(fused, "_KEPT", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for step in range(3):
            move(model, step)
            assert_equal(gradients(model, model.masked_loss(draw(), **options)), fresh(model, options))
    finally:
        torch.set_num_threads(before)
    own = model.with_token()
    assert sum(given is own for given in made) == (threads if kept else 3 * threads)


def test_gradients_and_losses_that_wait_are_left_alone(model: MaskedLM, options: dict[str, Any]) -> None:
    first = fresh(model, options)
    given = gradients(model, model.masked_loss(draw(), **options))
    waiting = model.masked_loss(draw(), **options)
    with torch.no_grad():
        # A loss that nothing is learnt from.
        model.masked_loss(draw(), **options)
    move(model, 1)
    second = model.masked_loss(draw(), **options)
    assert_equal(gradients(model, second), fresh(model, options))
    assert_equal(gradients(model, waiting), first)
    assert_equal(given, first)


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_of_inference_is_not_kept(model: MaskedLM, options: dict[str, Any], threads: int) -> None:
    wanted = fresh(model, options)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            model.masked_loss(draw(), **options)
        found = gradients(model, model.masked_loss(draw(), **options))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_as_many_weights_are_kept_as_threads_need(model: MaskedLM, options: dict[str, Any]) -> None:
    losses = [model.masked_loss(draw(), **options) for _ in range(5)]
    torch.autograd.backward(losses)
    assert len(fused.known(model.with_token()).spare) == torch.get_num_threads()


@pytest.mark.parametrize("way", ["parameter", "module", "more", "less"])
def test_what_is_known_of_a_model_holds_until_a_part_is_replaced(way: str) -> None:
    model: Any = CONFIGS["post"].build(LANGUAGE, seed=0)
    before = fused.known(model)
    move(model, 0)
    assert fused.known(model) is before
    if way == "parameter":
        model.head_dense.weight = nn.Parameter(model.head_dense.weight.detach() * 1.5)
    elif way == "module":
        model.layers[0] = copy.deepcopy(model.layers[1])
    elif way == "more":
        model.more = nn.Linear(2, 2)
    else:
        del model.layers[1]
    now = fused.known(model)
    assert now is not before
    assert list(map(id, now.parameters)) == list(map(id, model.parameters()))


def test_what_is_known_of_a_model_does_not_keep_it(options: dict[str, Any]) -> None:
    model = CONFIGS["post"].build(LANGUAGE, seed=0).train()
    gradients(model, model.masked_loss(draw(), **options))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("way", ["data", "turned", "epsilon", "assign", "precision"])
def test_weights_are_made_anew_for_other_memory(model: MaskedLM, options: dict[str, Any], way: str) -> None:
    gradients(model, model.masked_loss(draw(), **options))
    if way == "data":
        for p in model.parameters():
            p.data = p.data * 1.5
    elif way == "turned":
        for p in model.parameters():
            if p.dim() == 2 and p.shape[0] == p.shape[1]:
                p.data = p.data.T
    elif way == "epsilon":
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 0.1
    elif way == "assign":
        state = {name: value * 1.5 for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        model.tie()
    else:
        [other] = [o["dtype"] for o in OPTIONS if o["dtype"] != options["dtype"]]
        options = {**options, "dtype": other}
    assert_equal(gradients(model, model.masked_loss(draw(), **options)), fresh(model, options))


def test_learning_is_the_loss_and_its_backward_pass(model: MaskedLM, options: dict[str, Any]) -> None:
    still = next(model.parameters())
    still.requires_grad_(False)
    wanted = copy.deepcopy(model)
    loss = wanted.masked_loss(draw(), **options)
    loss.backward()
    for times in (1, 2):
        found = model.learn(draw(), **options)
        assert not found.requires_grad
        assert torch.equal(found, loss)
        for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
            if one is still:
                assert one.grad is None
            else:
                assert one.grad is not None
                assert other.grad is not None
                assert torch.equal(one.grad, times * other.grad)


def test_sums_are_float32_whatever_the_default_is(model: MaskedLM, options: dict[str, Any]) -> None:
    wanted = fresh(model, options)
    torch.set_default_dtype(torch.float64)
    try:
        assert_equal(gradients(model, model.masked_loss(draw(), **options)), wanted)
    finally:
        torch.set_default_dtype(torch.float32)
