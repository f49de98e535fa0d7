"""AdamW against its equations, and which parameters decay."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from raysweep.algorithms import AdamWConfig
from raysweep.models import EncoderConfig

LANGUAGE: Any = SimpleNamespace(vocabulary_size=11, pad_id=11, max_length=7)


def test_the_update_is_the_equation() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    config = AdamWConfig(lr=0.1, warmup_steps=4, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.5)
    optimizer = config.build(model)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in expected.items()}
    v = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step in range(1, 8):
        rate = 0.1 * min(1, step / 4)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(step, 7)
        for name, p in model.named_parameters():
            p.grad = torch.randn_like(p)
            m[name] = 0.8 * m[name] + 0.2 * p.grad
            v[name] = 0.9 * v[name] + 0.1 * p.grad**2
            decay = 0.5 if name == "weight" else 0.0
            update = (m[name] / (1 - 0.8**step)) / ((v[name] / (1 - 0.9**step)).sqrt() + 1e-3)
            expected[name] = expected[name] - rate * (update + decay * expected[name])
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=1e-12)


def test_matrices_decay_and_vectors_do_not() -> None:
    model = EncoderConfig(shape="8/2/2/16").build(LANGUAGE, seed=0)
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, plain = AdamWConfig(weight_decay=0.2).build(model).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.2, 0.0)
    found = [names[id(p)] for p in decayed["params"]], [names[id(p)] for p in plain["params"]]
    assert sorted(found[0] + found[1]) == sorted(names.values())
    assert all(name.endswith("weight") and "norm" not in name for name in found[0])
    assert all(name.endswith("bias") or "norm" in name for name in found[1])


def test_warm_up_is_linear_and_the_rate_then_constant() -> None:
    config = AdamWConfig(lr=2.0, warmup_steps=10)
    assert [config.learning_rate(s, 10**6) for s in (1, 5, 10, 11, 10**6)] == [0.2, 1.0, 2.0, 2.0, 2.0]
    assert AdamWConfig(lr=2.0, warmup_steps=0).learning_rate(1, 2) == 2.0


@pytest.mark.parametrize(("clip", "expected"), [(None, 5.0), (1.0, 1.0), (7.0, 5.0)])
def test_clipping_bounds_the_norm_of_the_whole_gradient(clip: float | None, expected: float) -> None:
    model = nn.Linear(1, 1)
    model.weight.grad, model.bias.grad = torch.tensor([[3.0]]), torch.tensor([4.0])
    AdamWConfig(clip_norm=clip).before_update(model)
    assert torch.stack([p.grad.norm() for p in model.parameters()]).norm().item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [("lr", 0.0), ("lr", "1e-3"), ("warmup_steps", -1), ("betas", [0.9, 1.0]), ("betas", [0.9]),
     ("eps", 0.0), ("weight_decay", -0.1), ("clip_norm", 0.0), ("learning_rate", 1.0),
     ("warmup", 0.0), ("warmup", 1.5), ("schedule", "step"), ("ema", 1.0)],
)  # fmt: skip
def test_a_wrong_value_is_an_error_at_its_field(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        AdamWConfig.decode({"kind": "adamw", field: value})
    assert {error["loc"][0] for error in caught.value.errors()} == {field}
