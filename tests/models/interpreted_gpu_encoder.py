"""The compiled passes of a GPU, run by Triton's interpreter on a processor, beside the model's modules.

`test_gpu_encoder.py` runs these tests in a process of their own: the interpreter serves where it was chosen
before anything imported Triton, and torch imports it.
"""

import gc
import math
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from raysweep.languages import PCFG
from raysweep.models import encoder as encoders
from raysweep.models import gpu
from raysweep.models.base import mean_loss
from raysweep.models.batch import Batch
from raysweep.models.dropout import Dropout
from raysweep.models.encoder import Encoder
from raysweep.models.gpu.encoder import states
from raysweep.models.gpu.head import loss
from raysweep.models.gpu.parts import Site, cross_entropy, spread
from raysweep.registry import models
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, batches
from raysweep.training.step import Stepper

LANGUAGE = PCFG.random(seed=3)
KEY = torch.tensor(5)
MASKS = ["one", 0.4]
NORMS = ["pre", "post"]


def make(norm: str = "pre", dropout: float = 0.0, shape: str = "24/3/2/40", **options: Any) -> Encoder:
    """Return an encoder whose weights are large, so that no term of a gradient is hidden by others."""
    config = models.decode({"kind": "encoder", "shape": shape, "norm": norm, "dropout": dropout, **options})
    model = config.build(LANGUAGE, seed=0)
    assert isinstance(model, Encoder)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.train()


def draw(mask: Any = "one", size: int = 24) -> Batch:
    config = PretrainConfig(steps=1, batch_size=size, mask=mask)
    return next(batches(LANGUAGE, config, seed=0, first=1, last=1))


def gradients(model: Encoder, found: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a weighted sum of states."""
    model.zero_grad()
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    torch.autograd.backward((found * weights).sum())
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_alike(model: Encoder, batch: Batch, wanted: Callable[[Any], Tensor], key: int = 0) -> None:
    """Compare states and gradients of the compiled passes, in float32, with those that `wanted` computes."""
    rows = model._rows(batch)
    expected = wanted(rows)
    slopes = gradients(model, expected)
    found = states(model, rows, torch.tensor(key), torch.float32)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert_slopes_alike(gradients(model, found), slopes)


def assert_slopes_alike(mine: dict[str, Tensor], slopes: dict[str, Tensor]) -> None:
    assert mine.keys() == slopes.keys()
    whole = math.sqrt(sum(float(g.square().sum()) for g in slopes.values()))
    for name, slope in slopes.items():
        # The gradient of the keys' biases is zero, so its rounding is measured by that of all others.
        scale = whole if name.endswith("key.bias") else float(slope.norm())
        assert float((mine[name] - slope).norm()) <= 2e-5 * scale, name


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm", NORMS)
def test_states_and_gradients_are_those_of_the_modules(norm: str, mask: Any) -> None:
    model = make(norm)
    assert_alike(model, draw(mask), model.encode_rows)


@pytest.mark.parametrize("shape", ["16/1/1/16", "40/2/1/136", "64/1/3/256"])
def test_all_shapes_are_served(shape: str) -> None:
    model = make("post", shape=shape)
    assert_alike(model, draw(size=9), model.encode_rows)


def test_norms_may_differ_in_their_epsilon() -> None:
    model = make("post")
    for number, module in enumerate(m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)):
        module.eps = 0.01 * (1 + number)
    assert_alike(model, draw(), model.encode_rows)


def kept(shape: torch.Size, p: float, key: int, site: int) -> Tensor:
    """Return the mask of dropout, from the formula in the kernels' docstring, word by word."""

    def mixed(x: int) -> int:
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ (x >> 16)

    low = mixed(((key & 0xFFFFFFFF) + site * 0x9E3779B9) & 0xFFFFFFFF)
    high = mixed((key >> 32) ^ low)
    draws = [mixed(mixed((i + low) & 0xFFFFFFFF) ^ high) for i in range(shape.numel())]
    return (torch.tensor(draws) >= round(p * 2**32)).view(shape)


@pytest.mark.parametrize("norm", NORMS)
def test_dropout_acts_where_the_modules_have_it(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p, key = 0.25, 0x7EDC_BA98_F654_3210
    model, batch = make(norm, dropout=p, shape="16/2/2/16"), draw(size=8)
    shares = []

    def masked(x: Tensor, site: int) -> Tensor:
        mask = kept(x.shape, p, key, site)
        shares.append(mask.float().mean().item())
        return x * mask / (1 - p)

    def wanted(rows: Any) -> Tensor:
        # Embedding; attention, its output, feed-forward block of each layer.
        order, layers = iter([0, 2, 3, 5, 6]), iter([1, 4])

        def attention(
            q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, scale: float, **_: Any
        ) -> Tensor:
            scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~attn_mask, -math.inf)
            return masked(scores.softmax(dim=-1), next(layers)) @ v

        with monkeypatch.context() as patch:
            patch.setattr(Dropout, "forward", lambda _, x: masked(x, next(order)))
            patch.setattr(encoders.F, "scaled_dot_product_attention", attention)
            return model.encode_rows(rows)

    assert_alike(model, batch, wanted, key)
    assert all(share == pytest.approx(1 - p, abs=0.05) for share in shares)


def test_no_two_seeds_and_no_two_parts_of_a_batch_share_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "packs", True)
    monkeypatch.setattr(Encoder, "fused", False)
    model, batch = make(dropout=0.3), draw(size=16)

    def loss(words: Batch, seed: int) -> float:
        return model.masked_loss(words, seed=seed, dtype=torch.bfloat16).item()

    assert loss(batch, 1) == loss(batch, 1)
    assert loss(batch, 1) != loss(batch, 2)
    other = Batch(**{**vars(batch), "rows": range(16, 32)})
    half = Batch(**{**vars(batch), "rows": range(0, 32, 2)})
    assert len({loss(words, 1) for words in (batch, other, half)}) == 3


@pytest.mark.parametrize("norm", NORMS)
def test_low_precision_is_near_float32(norm: str) -> None:
    # The interpreter has no products of bfloat16.
    model, batch = make(norm), draw()
    exact, low = (states(model, model._rows(batch), KEY, d) for d in (torch.float32, torch.float16))
    assert float((low - exact).detach().norm()) <= 2e-3 * float(exact.detach().norm())
    slopes, mine = gradients(model, exact), gradients(model, low)
    for name, slope in slopes.items():
        if not name.endswith("key.bias"):
            assert float((mine[name] - slope).norm()) <= 1e-2 * float(slope.norm()), name


def test_gradients_of_a_layer_are_there_before_those_of_the_layer_below() -> None:
    model = make(shape="16/2/3/16")
    found = states(model, model._rows(draw(size=8)), KEY, torch.float32)
    order: list[int] = []
    named = dict(model.named_parameters())
    for number in range(3):
        weight = named[f"layers.{number}.down.weight"]
        weight.register_post_accumulate_grad_hook(lambda _, number=number: order.append(number))
    model.token_embedding.weight.register_post_accumulate_grad_hook(lambda _: order.append(-1))
    torch.autograd.backward(found.sum())
    assert order == [2, 1, 0, -1]


def test_some_models_keep_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    assert model._compiled_on_gpu(torch.bfloat16, 128)
    assert not model._compiled_on_gpu(torch.bfloat16, 192)
    assert not model._compiled_on_gpu(torch.float32, 64)
    assert not make(checkpointing=True)._compiled_on_gpu(torch.bfloat16, 64)
    wide = make(shape="128/1/1/16")
    assert wide._compiled_on_gpu(torch.bfloat16, 64)
    assert not wide._compiled_on_gpu(torch.bfloat16, 128)
    monkeypatch.setattr(gpu, "available", lambda: False)
    assert not model._compiled_on_gpu(torch.bfloat16, 64)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1 - 2**-40])
def test_a_site_holds_32_bits_as_int32(p: float) -> None:
    site = Site.of(4, p)
    assert -(2**31) <= site.cut < 2**31
    assert site.drops
    assert site.scale == pytest.approx(1 / (1 - (site.cut % 2**32) / 2**32))
    assert not Site.of(4, 0.0).drops


def test_states_that_are_not_differentiated_leave_no_memory_behind() -> None:
    model = make()
    found = states(model, model._rows(draw()), KEY, torch.float32)
    node: Any = found.grad_fn
    kept = [weakref.ref(tensor) for tensor in (node, *node.saved_tensors[1:5])]
    gc.disable()
    try:
        del found, node
        assert [one() for one in kept] == [None] * 5
    finally:
        gc.enable()


def test_a_large_vocabulary_has_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.models.gpu.parts._FEW", 10)
    model = make()
    assert_alike(model, draw(), model.encode_rows)


@pytest.mark.parametrize(("shape", "vocabulary"), [("24/3/2/40", "own"), ("40/2/1/136", "faithful")])
def test_the_loss_of_states_and_its_gradients_are_those_of_the_head(shape: str, vocabulary: str) -> None:
    model = make(shape=shape, vocabulary=vocabulary)
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(45, model.width, generator=generator).requires_grad_()
    targets = torch.randint(model.total_vocabulary, (45,), generator=generator)
    found = []
    for value in (
        mean_loss(model.head(hidden), targets, 7),
        loss(model, hidden, targets, torch.tensor(7.0), torch.float32),
    ):
        model.zero_grad()
        hidden.grad = None
        torch.autograd.backward(3 * value)
        slopes = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append({"loss": value.detach(), "hidden": hidden.grad, **slopes})
    wanted, mine = found
    assert mine.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5 * float(value.norm()), msg=name)


@pytest.mark.parametrize("mask", MASKS)
def test_the_loss_of_rows_and_its_gradients_are_those_of_the_modules(mask: Any) -> None:
    model, batch = make("post"), draw(mask)
    config = PretrainConfig(steps=1, batch_size=24, mask=mask)
    step: Any = SimpleNamespace(pretrain=config, world=World(), device=torch.device("cpu"))
    # The tensors of a half of a batch have gaps.
    for words in (batch, Stepper._half(step, batch, 0), Stepper._half(step, batch, 1)):
        rows = model._rows(words)
        assert all(tensor.is_contiguous() for tensor in rows.tensors)
        expected = model.plain_loss(words, dtype=torch.float32)
        slopes = gradients(model, expected)
        hidden = states(model, rows, KEY, torch.float32)
        found = loss(model, hidden, rows.targets, torch.tensor(float(words.count)), torch.float32)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)
        assert_slopes_alike(gradients(model, found), slopes)


def test_the_loss_in_low_precision_is_near_that_in_float32() -> None:
    model, generator = make(), torch.Generator().manual_seed(4)
    hidden = torch.randn(45, model.width, generator=generator)
    targets = torch.randint(LANGUAGE.vocabulary_size, (45,), generator=generator)
    values, slopes = [], []
    for dtype in (torch.float32, torch.float16):
        value = loss(model, hidden, targets, torch.tensor(1.0), dtype)
        values.append(value.item())
        slopes.append(gradients(model, value))
    assert values[1] == pytest.approx(values[0], rel=1e-3)
    assert values[1] != values[0]
    for name, slope in slopes[0].items():
        assert slopes[1][name].dtype == torch.float32
        assert float((slopes[1][name] - slope).norm()) <= 5e-3 * float(slope.norm()), name


def test_no_masked_word_has_no_loss_and_no_gradient() -> None:
    model = make()
    found = loss(
        model, torch.zeros(0, 24), torch.zeros(0, dtype=torch.int64), torch.tensor(1.0), torch.float32
    )
    assert found.item() == 0
    assert all(not slope.any() for slope in gradients(model, found).values())


def test_logits_far_apart_have_a_finite_loss() -> None:
    logits = torch.tensor([[-3e4, 3e4, 0.0], [3e4, -3e4, 3e4]])
    whole, losses = cross_entropy(logits, torch.tensor([0, 2]))
    torch.testing.assert_close(whole, torch.tensor([3e4, 3e4 + math.log(2.0)]))
    torch.testing.assert_close(losses, torch.tensor([6e4, math.log(2.0)]))


def test_rows_are_spread_to_their_places() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype, count in ((torch.float32, 150), (torch.float16, 150), (torch.float32, 1), (torch.float32, 0)):
        x = torch.randn(count, 24, generator=generator).to(dtype)
        places = torch.randperm(400, generator=generator)[:count]
        wanted = torch.zeros(400, 24, dtype=dtype)
        wanted[places] = x
        assert torch.equal(spread(x, places, 400), wanted)
