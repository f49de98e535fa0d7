"""Quantised and disturbed weights beside slow loops and beside their definition."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysweep.downstream.quantize import disturbed, matrices, noisy, quantized, rounded
from raysweep.models import EncoderConfig, LSTMConfig

LANGUAGE: Any = SimpleNamespace(vocabulary_size=11, pad_id=11, mask_id=12, cls_id=13, max_length=7)
ENCODER = EncoderConfig(shape="8/2/2/12")
LSTM = LSTMConfig(shape="8/2")


def nearest(row: list[float], bits: int) -> list[float]:
    """Return a row whose numbers are each the nearest of all levels, found by looking at every one."""
    top = 2 ** (bits - 1) - 1
    step = max(map(abs, row)) / top
    levels = [k * step for k in range(-top, top + 1)]
    return [min(levels, key=lambda level: abs(level - x)) for x in row]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_every_number_goes_to_the_nearest_level_of_its_row(bits: int) -> None:
    weight = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight[2] *= 100
    expected = torch.tensor([nearest(row, bits) for row in weight.tolist()], dtype=torch.float64)
    torch.testing.assert_close(rounded(weight, bits), expected, rtol=1e-12, atol=1e-12)


def test_levels_are_kept_and_zeros_stay() -> None:
    weight = torch.tensor([[-7.0, 3.0, 0.0], [0.0, 0.0, 0.0], [1e-30, 0.0, -1e-30]])
    assert torch.equal(rounded(weight, 4), weight)
    once = rounded(torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), 4)
    torch.testing.assert_close(rounded(once, 4), once)


def test_a_broken_weight_stays_broken() -> None:
    assert rounded(torch.tensor([[float("nan"), 1.0]]), 8).isnan().all()


def test_noise_has_the_size_that_it_is_given() -> None:
    weight = torch.randn(300, 200, generator=torch.Generator().manual_seed(0)) * 3
    change = disturbed(weight, 0.05, torch.Generator().manual_seed(1)) - weight
    unit = change / (0.05 * math.sqrt(float(weight.double().square().mean())))
    draws = torch.randn(300, 200, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(unit, draws, rtol=1e-3, atol=1e-4)
    # Over 60,000 entries, the mean square of normal numbers has a standard deviation of 0.0058.
    assert (change.norm() / weight.norm()).item() == pytest.approx(0.05, rel=0.015)


def test_matrices_are_found_once() -> None:
    encoder = ENCODER.build(LANGUAGE, seed=0)
    found = matrices(encoder)
    assert {
        "token_embedding.weight",
        "position_embedding.weight",
        "head_dense.weight",
        "layers.1.up.weight",
    } <= set(found)
    assert all(p.ndim == 2 for p in found.values())
    # Six of each layer, the head's and two embeddings; the decoder is tied to one.
    assert len(found) == 2 * 6 + 1 + 2
    assert set(found) - set(matrices(encoder, embeddings=False)) == {
        "token_embedding.weight", "position_embedding.weight",
    }  # fmt: skip
    # Two matrices of each direction.
    assert len(matrices(LSTM.build(LANGUAGE, seed=0))) == 2 * 2 * 2 + 1


@pytest.mark.parametrize("embeddings", [True, False])
@pytest.mark.parametrize("config", [ENCODER, LSTM], ids=["encoder", "lstm"])
def test_a_model_is_changed_matrix_by_matrix(config: Any, embeddings: bool) -> None:
    model = config.build(LANGUAGE, seed=0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    wanted = set(matrices(model, embeddings=embeddings))
    for other in (
        quantized(model, 4, embeddings=embeddings),
        noisy(model, 0.1, seed=0, draw=0, embeddings=embeddings),
    ):
        changed = {n for n, p in other.named_parameters() if not torch.equal(p, before[n])}
        assert changed == wanted
        assert other.decoder.weight is other.token_embedding.weight
    small = quantized(model, 4, embeddings=embeddings)
    for name in wanted:
        assert torch.equal(small.get_parameter(name), rounded(before[name], 4))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_noise_is_common_to_sizes_and_models_and_new_with_each_draw() -> None:
    models = [ENCODER.build(LANGUAGE, seed=s) for s in (0, 1)]

    def unit(model: Any, size: float, draw: int, seed: int = 3) -> torch.Tensor:
        plain = model.layers[0].up.weight.detach()
        change = noisy(model, size, seed=seed, draw=draw).layers[0].up.weight.detach() - plain
        return change / (size * plain.square().mean().sqrt())

    first = unit(models[0], 0.1, 0)
    for same in (unit(models[1], 0.1, 0), unit(models[0], 0.5, 0)):
        torch.testing.assert_close(same, first, rtol=1e-3, atol=1e-4)
    for other in (unit(models[0], 0.1, 1), unit(models[0], 0.1, 0, seed=4)):
        assert (other - first).abs().max() > 0.5
    state = torch.get_rng_state()
    noisy(models[0], 0.1, seed=0, draw=0)
    assert torch.equal(torch.get_rng_state(), state)
