"""Derivatives along directions of all parameters, against the same model written out at θ + εv."""

import logging

import pytest
import torch
from torch import nn
from torch.func import functional_call

from raysweep.flatness.directions import Directions, twice_differentiable
from raysweep.languages.hmm import HMM
from raysweep.models.lstm import LSTMConfig


@pytest.fixture(scope="module")
def inputs(make_ids):
    ids, positions = make_ids(6, 4)
    masked = ids.clone()
    masked[torch.arange(len(ids)), positions] = 6
    return masked, positions, torch.arange(10, 16)


@pytest.fixture(scope="module")
def lstm():
    language = HMM.random(states=4, vocabulary=5, length=4, blocks=1, tasks=(2,))
    return LSTMConfig(shape="6/2").build(language, seed=0).double().eval()


def truth(model, masked, position, direction):
    """Return z, ż and z̈ [C] of one input from the model written out at θ + εv."""
    values = {name: p.detach() for name, p in model.named_parameters()}
    length = int((masked != model.pad_id).sum())

    def logits(step):
        moved = {name: p + step * direction[name] if name in direction else p for name, p in values.items()}
        return functional_call(model, moved, (masked[None, :length], position[None]))[0]

    with twice_differentiable(model):
        step = torch.zeros((), dtype=torch.float64, requires_grad=True)
        z = logits(step)
        first = [torch.autograd.grad(value, step, create_graph=True)[0] for value in z]
    second = [torch.autograd.grad(slope, step, retain_graph=True)[0] for slope in first]
    return z.detach(), torch.stack(first).detach(), torch.stack(second)


@pytest.mark.parametrize(
    "options", [{}, {"scaled": True}, {"scaled": True, "random": False}, {"random": False}]
)
@pytest.mark.parametrize("form", ["pre", "post", "lstm"])
def test_first_and_second_derivatives(form, options, make_model, lstm, inputs):
    model = lstm if form == "lstm" else make_model(form).eval()
    masked, positions, index = inputs
    directions = Directions(model, seed=3, **options)
    logits, slopes = directions.first(masked, positions, index)
    weights = torch.randn(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    curvatures = directions.second(masked, positions, index, lambda z, rows: weights[rows])
    for row in range(len(masked)):
        direction = directions.at(int(index[row]))
        z, first, second = truth(model, masked[row], positions[row], direction)
        torch.testing.assert_close(logits[row], z, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(slopes[row], first, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(curvatures[row], weights[row] @ second, rtol=1e-8, atol=1e-8)


def test_second_derivatives_are_those_of_differences(make_model, inputs):
    # Forward mode twice is no oracle: it is wrong for layer_norm (PyTorch's issue 196700).
    model = make_model().eval()
    masked, positions, index = inputs
    directions = Directions(model, scaled=True, random=False)
    weights = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    curvatures = directions.second(masked, positions, index, lambda z, rows: weights[rows])
    values, step = [], 1e-3
    for offset in (-1, 0, 1):
        moved = {name: p.detach() * (1 + offset * step) for name, p in model.named_parameters()}
        values.append((functional_call(model, moved, (masked, positions)) * weights).sum(dim=1))
    differences = (values[0] - 2 * values[1] + values[2]) / step**2
    torch.testing.assert_close(curvatures, differences.detach(), rtol=1e-3, atol=1e-3)


def test_frozen_parameters_stand_still(make_model, inputs):
    model = make_model().eval()
    model.head_norm.weight.requires_grad_(False)
    model.layers[0].up.bias.requires_grad_(False)
    model.position_embedding.requires_grad_(False)
    directions = Directions(model)
    assert not {"head_norm.weight", "layers.0.up.bias", "position_embedding.weight"} & set(directions.at(0))
    _, slopes = directions.first(*inputs)
    for row in range(len(slopes)):
        _, first, _ = truth(model, inputs[0][row], inputs[1][row], directions.at(int(inputs[2][row])))
        torch.testing.assert_close(slopes[row], first, rtol=1e-9, atol=1e-9)


def test_directions_have_identity_covariance_and_are_uncorrelated(make_model):
    model = make_model()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.layers[0].query.weight.requires_grad_(True)
    directions = Directions(model)
    drawn = torch.stack([directions.at(i)["layers.0.query.weight"].flatten() for i in range(1500)])
    assert (drawn.abs() == 1).all()
    covariance = drawn.T @ drawn / len(drawn)
    off = covariance - torch.eye(len(covariance))
    assert off.abs().max() < 6 / len(drawn) ** 0.5
    # What one input's quadratic form is says nothing of the next input's.
    matrix = torch.randn(drawn.shape[1], drawn.shape[1], generator=torch.Generator().manual_seed(0)).double()
    forms = torch.einsum("ni,ij,nj->n", drawn, matrix + matrix.T, drawn)
    assert abs(torch.corrcoef(torch.stack([forms[:-1], forms[1:]]))[0, 1]) < 4 / len(drawn) ** 0.5


def test_a_direction_belongs_to_seed_and_input(make_model, inputs):
    model = make_model().eval()
    masked, positions, index = inputs
    _, together = Directions(model, seed=1).first(masked, positions, index)
    _, alone = Directions(model, seed=1).first(masked[2:4], positions[2:4], index[2:4])
    torch.testing.assert_close(together[2:4], alone, rtol=1e-12, atol=1e-12)
    _, other = Directions(model, seed=2).first(masked, positions, index)
    assert not torch.allclose(together, other)


class Shared(nn.Module):
    """Uses a weight otherwise than by calling its module."""

    pad_id = 5

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(7, 3)
        self.mix = nn.Linear(3, 7)

    def forward(self, ids, positions):
        hidden = self.token_embedding(ids)[torch.arange(len(ids)), positions]
        return self.mix(hidden) @ self.mix.weight @ self.mix.weight.T


def test_a_model_that_uses_its_modules_otherwise_is_worked_off_singly(inputs, caplog):
    torch.manual_seed(0)
    model = Shared().double()
    directions = Directions(model)
    with caplog.at_level(logging.INFO, logger="raysweep.flatness"):
        _, slopes = directions.first(*inputs)
    (record,) = caplog.records
    assert record.message.startswith(
        "Shared uses other modules than Linear, LayerNorm and Embedding, or these"
    )
    for row in range(len(slopes)):
        _, first, _ = truth(model, inputs[0][row], inputs[1][row], directions.at(int(inputs[2][row])))
        torch.testing.assert_close(slopes[row], first, rtol=1e-9, atol=1e-9)
