"""The bracket model and its two solutions, against dense Hessians and the paper's claims."""

import math

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from raysweep.errors import ConfigError, DataError
from raysweep.languages.dyck import Dyck
from raysweep.models.dyck import (
    DyckAttention,
    bound,
    hessian_trace,
    least_output,
    masked_sentences,
    random_features,
    two_neurons,
)


@pytest.fixture(scope="module", params=[6, 8])
def language(request) -> Dyck:
    return Dyck(length=request.param)


def pretraining(language: Dyck) -> tuple[Tensor, Tensor]:
    population = language.population()
    return language.encode(population.ids, population.mask_signs), population.targets


def test_the_model_is_that_of_the_definition() -> None:
    language, model = Dyck(length=6), DyckAttention(6, 5, keys=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    x, _ = pretraining(language)
    Q, K, V, u = model.query, model.key, model.value, model.output
    for row in range(0, len(x), 37):
        scores = torch.stack([(Q @ x[row, 0]) @ (K @ x[row, j]) for j in range(6)])
        weights = scores.exp() / scores.exp().sum()
        neurons = sum(weights[j] * (V @ x[row, j]) for j in range(6)).clamp(min=0)
        torch.testing.assert_close(model(x[row : row + 1])[0], u @ neurons / 5, rtol=1e-12, atol=1e-14)


def test_the_trace_is_that_of_the_dense_hessian() -> None:
    """All second derivatives, attention included: T = 6, two neurons."""
    model = two_neurons(6)
    x, targets = pretraining(Dyck(length=6))
    shapes = {name: p.shape for name, p in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]

    def loss(theta: Tensor) -> Tensor:
        parts = zip(shapes, theta.split(sizes), strict=True)
        values = {name: part.view(shapes[name]) for name, part in parts}
        return (functional_call(model, values, (x,)) - targets).square().mean()

    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    dense = torch.autograd.functional.hessian(loss, theta).trace()
    assert hessian_trace(model, x, targets=targets) == pytest.approx(float(dense), rel=1e-12)


def test_two_neurons_count_brackets_and_meet_the_bound(language) -> None:
    T = language.max_length
    x, targets = pretraining(language)
    strings = language.downstream_population()
    for neurons in (2, 7):
        model = two_neurons(T, neurons=neurons)
        torch.testing.assert_close(model(x), targets, rtol=0, atol=1e-12)
        torch.testing.assert_close(model(language.encode(strings.ids)), strings.targets, rtol=0, atol=1e-12)
        assert hessian_trace(model, x, targets=targets) == pytest.approx(bound(T, neurons), abs=1e-12)
    assert bound(T, 2) == pytest.approx(math.sqrt(4 / T), abs=1e-15)


def test_no_solution_nearby_is_below_the_bound() -> None:
    """Solutions of two neurons that differ in scale, in attention, and by splitting a neuron."""
    x, targets = pretraining(Dyck(length=6))
    for scale in (0.5, 0.9, 1.1, 2.0):
        model = two_neurons(6)
        with torch.no_grad():
            model.value *= scale
            model.output /= scale
        assert hessian_trace(model, x, targets=targets) > 1.001 * bound(6, 2)
    model = two_neurons(6, neurons=4)
    with torch.no_grad():
        model.value[2:] = 0.5 * model.value[:2]
        model.value[:2] *= 0.5
        model.output[2:] = model.output[:2]
    assert hessian_trace(model, x, targets=targets) > 1.001 * bound(6, 4)
    with torch.no_grad():
        model.value /= math.sqrt(0.5)
        model.output *= math.sqrt(0.5)
    assert hessian_trace(model, x, targets=targets) == pytest.approx(bound(6, 4), abs=1e-12)


def test_random_features_are_without_loss_and_far_from_flat(language) -> None:
    x, targets = pretraining(language)
    assert len(x) == masked_sentences(language.max_length)
    model = random_features(language.max_length, neurons=len(x) + 60, seed=1)
    assert float((model(x).detach() - targets).abs().max()) < 1e-9
    assert hessian_trace(model, x, targets=targets) > 5 * bound(language.max_length, model.neurons)
    again = random_features(language.max_length, neurons=len(x) + 60, seed=1)
    other = random_features(language.max_length, neurons=len(x) + 60, seed=2)
    assert torch.equal(model.value, again.value)
    assert not torch.equal(model.value, other.value)
    spread = float(model.value.detach().std())
    assert spread == pytest.approx(math.sqrt(language.max_length), rel=0.05)


def test_the_output_is_the_least_that_fits() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(3, 8, dtype=torch.float64, generator=generator)
    features = torch.cat([features, features[:1]])  # an example twice
    targets = torch.tensor([1.0, -2.0, 3.0, 1.0], dtype=torch.float64)
    u = least_output(features, targets)
    torch.testing.assert_close(features @ u / 8, targets, rtol=1e-10, atol=1e-12)
    expected = 8 * torch.linalg.pinv(features) @ targets
    torch.testing.assert_close(u, expected, rtol=1e-9, atol=1e-11)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="239 random features cannot fit the 240 masked sentences"):
        random_features(6, neurons=239)
    with pytest.raises(ConfigError, match="take shorter sentences"):
        random_features(12, neurons=masked_sentences(12))
    with pytest.raises(ConfigError, match="fewer than the two"):
        two_neurons(6, neurons=1)
    with pytest.raises(ConfigError, match="length must be even"):
        DyckAttention(5, 2)
    model = two_neurons(6)
    x, targets = pretraining(Dyck(length=6))
    with pytest.raises(DataError, match="only where the loss is zero"):
        hessian_trace(model, x, targets=-targets)
