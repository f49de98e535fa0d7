"""Enlarged models: the same logits, and gradients as the closed form has them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from raysweep.errors import ConfigError
from raysweep.models import LSTM, Encoder, EncoderConfig, LSTMConfig, Shape, enlarge

LANGUAGE: Any = SimpleNamespace(vocabulary_size=11, pad_id=11, max_length=7)
MASK = 12


def make(norm: str = "pre", shape: str = "12/3/2/20", scale: float = 0.3, **fields: Any) -> Encoder:
    """Return an encoder in evaluation mode none of whose parameters is special, in float64."""
    model = EncoderConfig(shape=shape, norm=norm, **fields).build(LANGUAGE, seed=4).eval().double()
    assert isinstance(model, Encoder)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def make_lstm(shape: str = "8/2", **fields: Any) -> LSTM:
    """Return an LSTM in evaluation mode with random weights and biases, in float64."""
    model = LSTMConfig(shape=shape, **fields).build(LANGUAGE, seed=4).eval().double()
    assert isinstance(model, LSTM)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        model.decoder.bias.normal_(generator=generator)
    return model


def sentences(n: int = 14) -> tuple[Tensor, Tensor]:
    """Return sentences [n, 7] of every length, padded, with a mask at a position [n] of each."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 11, (n, 7), generator=generator)
    lengths = torch.arange(n) % 7 + 1
    ids[torch.arange(7) >= lengths[:, None]] = LANGUAGE.pad_id
    positions = (torch.rand(n, generator=generator) * lengths).long()
    return ids.scatter(1, positions[:, None], MASK), positions


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        ("pre", "12/3/2/20"),
        ("pre", "24/6/2/40"),
        ("pre", "36/9/2/60"),
        ("pre", "12/3/5/20"),
        ("pre", "60/15/4/100"),
        ("pre", "12/3/2/27"),
        ("pre", "24/6/4/97"),
        ("post", "12/3/2/20"),
        ("post", "36/9/2/60"),
        ("post", "24/6/2/41"),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
# At 0.003 the embedding's variance is near its epsilon, which then decides.
@pytest.mark.parametrize("scale", [0.3, 0.003])
def test_logits_are_the_small_models(
    norm: str, shape: str, dtype: torch.dtype, tolerance: float, scale: float
) -> None:
    small = make(norm, scale=scale).to(dtype)
    large = enlarge(small, shape)
    assert (str(large.shape), large.norm, large.training) == (shape, norm, False)
    ids, positions = sentences()
    real = ids != LANGUAGE.pad_id
    expected = small.head(small.encode(ids))[real]
    found = large.head(large.encode(ids))[real]
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(large(ids, positions), small(ids, positions), rtol=0, atol=tolerance)
    # The hidden states are copies of the small model's.
    copies = small.encode(ids)[real].repeat(1, large.width // 12)
    torch.testing.assert_close(large.encode(ids)[real], copies, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", ["8/2", "16/2", "24/2"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_logits_of_an_lstm_are_the_small_ones(shape: str, dtype: torch.dtype, tolerance: float) -> None:
    small = make_lstm().to(dtype)
    large = enlarge(small, shape)
    assert (str(large.shape), large.training, large.decoder.weight is large.token_embedding.weight) == (
        shape,
        False,
        True,
    )
    ids, positions = sentences()
    real = ids != LANGUAGE.pad_id
    found = large.head(large.encode(ids))[real]
    assert found.dtype == dtype
    torch.testing.assert_close(found, small.head(small.encode(ids))[real], rtol=0, atol=tolerance)
    torch.testing.assert_close(large(ids, positions), small(ids, positions), rtol=0, atol=tolerance)
    # Each direction's half of a state is copied for itself.
    halves = small.encode(ids)[real].chunk(2, dim=-1)
    copies = torch.cat([half.repeat(1, large.width // 8) for half in halves], dim=1)
    torch.testing.assert_close(large.encode(ids)[real], copies, rtol=0, atol=tolerance)


def test_epsilon_counts() -> None:
    small = make(scale=0.003)
    large = enlarge(small, "36/9/2/60")
    large.embedding_norm.eps = small.embedding_norm.eps
    ids, positions = sentences()
    assert (large(ids, positions) - small(ids, positions)).abs().max() > 1e-6


def test_gradients_follow_the_closed_form() -> None:
    small = make()
    # 15 of the intermediate units are spare.
    large = enlarge(small, Shape(36, 9, 4, 75))
    ids, positions = sentences()
    hidden: dict[int, Tensor] = {}

    def squares(model: Encoder) -> dict[str, float]:
        for layer in list(model.layers)[2:]:
            for module in (layer.output, layer.down):
                module.register_full_backward_hook(
                    lambda module, _, grads: hidden.__setitem__(id(module), grads[0])
                )
        gradients = torch.autograd.grad(model(ids[3:4], positions[3:4])[0, 5], list(model.parameters()))
        names = [name for name, _ in model.named_parameters()]
        return {n: g.square().sum().item() for n, g in zip(names, gradients, strict=True)}

    before, after = squares(small), squares(large)
    r = 3
    for name, value in before.items():
        if name in ("token_embedding.weight", "position_embedding.weight"):
            expected = r * value
        elif name == "decoder.bias" or (name.endswith(".weight") and "norm" not in name):
            expected = value
        else:
            expected = value / r
        assert after[name] == pytest.approx(expected, rel=1e-9, abs=1e-18), name
    assert after["layers.2.output.bias"] > 0
    for name in set(after) - set(before):
        if name.endswith(("output.bias", "down.bias")):
            module = large.get_submodule(name.removesuffix(".bias"))
            delta = hidden[id(module)].sum((0, 1)).square().sum().item()
            assert after[name] == pytest.approx(delta, rel=1e-9), name
        else:
            assert after[name] == 0, name


def test_spare_intermediate_units_have_no_gradient() -> None:
    small = make()
    large = enlarge(small, "24/6/3/55")
    ids, positions = sentences()
    large(ids, positions).square().sum().backward()
    for layer in list(large.layers)[:2]:
        assert layer.up.weight.grad[:40].abs().min() > 0
        for gradient in (layer.up.weight.grad[40:], layer.up.bias.grad[40:], layer.down.weight.grad[:, 40:]):
            assert len(gradient) > 0
            assert not gradient.any()


def test_the_enlarged_model_is_a_model_of_its_own() -> None:
    small = make(dropout=0.25).train()
    large = enlarge(small, "24/6/3/40")
    assert large.training
    assert large.dropout.p == 0.25
    assert large.decoder.weight is large.token_embedding.weight
    assert (large.total_vocabulary, large.max_length, large.pad_id) == (16, 7, 11)
    assert all(p.requires_grad for p in large.parameters())
    config = EncoderConfig(shape="24/6/3/40")
    assert sum(p.numel() for p in large.parameters()) == config.parameters(LANGUAGE)
    with torch.no_grad():
        before = small.decoder.bias.clone()
        large.decoder.bias += 1
    assert torch.equal(small.decoder.bias, before)


@pytest.mark.parametrize(
    ("norm", "shape", "message"),
    [
        (
            "pre",
            "30/3/2/50",
            "12/3/2/20 cannot be enlarged .* the width 30 is no multiple of 12; use 24$",
        ),
        ("pre", "6/3/2/10", "the width 6 is no multiple of 12; use 12$"),
        ("pre", "36/6/2/60", "the width is 3 times as large, so heads must be 9, not 6; use 36/9/2/60$"),
        ("pre", "36/9/2/59", "so intermediate must be at least 60, not 59; use 36/9/2/60$"),
        ("pre", "36/6/2/70", "so heads must be 9, not 6; use 36/9/2/70$"),
        ("pre", "24/6/1/40", "it has 2 layers already; use 24/6/2/40$"),
        ("post", "24/6/3/40", "with post-norm an added layer normalises and is no identity; use 24/6/2/40"),
    ],
)
def test_what_cannot_be_exact_is_refused_with_the_remedy(norm: str, shape: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        enlarge(make(norm), shape)


def test_the_published_largest_shape_does_not_hold_the_published_small_ones() -> None:
    with torch.device("meta"):
        small = EncoderConfig(shape="table4-128").module(LANGUAGE)
    with pytest.raises(ConfigError, match="must be at least 7680, not 5120; use 1920/30/20/7680"):
        enlarge(small, "table4-1920")


def test_what_an_lstm_cannot_become_is_refused_with_the_remedy() -> None:
    for shape, message in (
        (
            "16/3",
            "8/2 cannot be .* to 16/3 exactly: an added layer of an LSTM is no identity; use 16/2$",
        ),
        ("12/2", "the width 12 is no multiple of 8; use 16$"),
        ("16/1", "it has 2 layers already; use 16/2$"),
        ("16/2/2/64", "shape: '16/2/2/64' is not two positive numbers"),
    ):
        with pytest.raises(ConfigError, match=message):
            enlarge(make_lstm(), shape)


def test_a_shape_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="shape: '24/6' is not four positive numbers"):
        enlarge(make(), "24/6")
