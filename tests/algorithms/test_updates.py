"""SGD and Muon against their equations, averaged weights against the sum."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysweep.algorithms import MuonConfig, SGDConfig, WeightAverage
from raysweep.models import EncoderConfig

LANGUAGE: Any = SimpleNamespace(vocabulary_size=11, pad_id=11, max_length=7)


def test_sgd_is_the_equation() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    config = SGDConfig(lr=0.1, warmup_steps=4, momentum=0.7, weight_decay=0.5)
    optimizer = config.build(model)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    b = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step in range(1, 8):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(step, 7)
        for name, p in model.named_parameters():
            p.grad = torch.randn_like(p)
            decay = 0.5 if name == "weight" else 0.0
            b[name] = 0.7 * b[name] + p.grad + decay * expected[name]
            expected[name] = expected[name] - 0.1 * min(1, step / 4) * b[name]
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=1e-12)


def test_plain_sgd_keeps_nothing() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGDConfig().build(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert all(value is None for state in optimizer.state.values() for value in state.values())


def orthogonalised(matrix: Tensor) -> Tensor:
    """Five times σ → 3.4445 σ - 4.7750 σ³ + 2.0315 σ⁵, on singular values over their root mean square sum."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ vh


def test_muon_is_the_equation_up_to_bfloat16() -> None:
    torch.manual_seed(0)
    model = nn.Linear(12, 5).double()
    config = MuonConfig(lr=0.1, warmup_steps=0, momentum=0.8, weight_decay=0.3, betas=(0.8, 0.9))
    optimizer = config.build(model)
    weight, bias = (p.detach().clone() for p in (model.weight, model.bias))
    start = weight.clone()
    b, m, v = torch.zeros_like(weight), torch.zeros_like(bias), torch.zeros_like(bias)
    for step in range(1, 6):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(step, 5)
        g, h = torch.randn_like(weight), torch.randn_like(bias)
        model.weight.grad, model.bias.grad = g.clone(), h.clone()
        optimizer.step()
        b = 0.8 * b + 0.2 * g
        weight = weight - 0.1 * (0.2 * 12**0.5 * orthogonalised(0.2 * g + 0.8 * b) + 0.3 * weight)
        m, v = 0.8 * m + 0.2 * h, 0.9 * v + 0.1 * h**2
        bias = bias - 0.1 * (m / (1 - 0.8**step)) / ((v / (1 - 0.9**step)).sqrt() + 1e-6)
    assert (model.weight - weight).norm() < 0.02 * (weight - start).norm()
    torch.testing.assert_close(model.bias.detach(), bias, rtol=0, atol=1e-12)


def test_muon_takes_the_matrices_and_leaves_embeddings_to_adamw() -> None:
    model = EncoderConfig(shape="8/2/1/16").build(LANGUAGE, seed=0)
    names = {id(p): name for name, p in model.named_parameters()}
    matrices, embeddings, vectors = MuonConfig().build(model).param_groups
    found = [{names[id(p)] for p in group["params"]} for group in (matrices, embeddings, vectors)]
    layer = {f"layers.0.{n}.weight" for n in ("query", "key", "value", "output", "up", "down")}
    assert found[0] == layer | {"head_dense.weight"}
    assert found[1] == {"token_embedding.weight", "position_embedding.weight"}
    assert found[0] | found[1] | found[2] == set(names.values())
    assert (embeddings["weight_decay"], vectors["weight_decay"]) == (0.01, 0.0)


@pytest.mark.parametrize("decay", [0.3, 0.998])
def test_the_average_in_one_pass_is_that_of_torch(decay: float) -> None:
    """Of small numbers in many tensors, wherever they are moved on the way."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 37), nn.Linear(37, 3), nn.LayerNorm(3))
    average = WeightAverage(model, decay)
    other = copy.deepcopy(average.tensors)
    for step in range(1, 8):
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(generator=generator)
                if step == 5:
                    p.data = p.data.clone()
            if step == 3:
                # A copy has memory of its own, and moves no other.
                model, average = copy.deepcopy((model, average))
            average.update(step)
            share = (1 - decay) / (1 - decay**step)
            torch._foreach_lerp_(list(other.values()), list(model.parameters()), share)
        for name, wanted in other.items():
            torch.testing.assert_close(average.tensors[name], wanted.detach(), rtol=1e-6, atol=1e-7)
        if step == 1:
            # Torch knows of the change.
            assert all(t._version > 0 for t in average.tensors.values())
            assert all(torch.equal(average.tensors[name], p) for name, p in model.named_parameters())


def test_the_average_is_the_sum() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    average = WeightAverage(model, decay=0.9)
    seen: list[Tensor] = []
    for step in range(1, 13):
        nn.init.normal_(model.weight)
        seen.append(model.weight.detach().clone())
        average.update(step)
    shares = torch.tensor([0.1 * 0.9 ** (12 - s) for s in range(1, 13)], dtype=torch.float64)
    expected = sum(share * weight for share, weight in zip(shares / shares.sum(), seen, strict=True))
    torch.testing.assert_close(average.tensors["weight"], expected, rtol=0, atol=1e-12)
