"""AdamW against its equations, and which parameters decay."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.optim import Optimizer

from raysweep.algorithms import AdamWConfig, adamw, eager, onepass
from raysweep.algorithms.onepass import OnePassAdamW
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


def in_both_ways(shape: str = "16/2/1/32") -> tuple[nn.Module, nn.Module, Optimizer, Optimizer]:
    """Return a model twice, with our optimizer and with torch's own."""
    models = [EncoderConfig(shape=shape).build(LANGUAGE, seed=0) for _ in range(2)]
    config = AdamWConfig(lr=0.02, eps=1e-3, weight_decay=0.3)
    ours = config.build(models[0])
    names = {id(p): name for name, p in models[0].named_parameters()}
    other = dict(models[1].named_parameters())
    groups = [
        {"params": [other[names[id(p)]] for p in group["params"]], "weight_decay": group["weight_decay"]}
        for group in ours.param_groups
    ]
    theirs = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    assert type(ours) is OnePassAdamW
    return models[0], models[1], ours, theirs


def same_step(
    models: tuple[nn.Module, nn.Module], optimizers: tuple[Optimizer, Optimizer], lacking: int | None = None
) -> None:
    """Take a step with the same random gradients; parameter number `lacking` has none."""
    for k, (p, q) in enumerate(zip(*(model.parameters() for model in models), strict=True)):
        p.grad = None if k == lacking else torch.randn_like(p)
        q.grad = None if p.grad is None else p.grad.clone()
    for optimizer in optimizers:
        optimizer.step()


def assert_same(models: tuple[nn.Module, nn.Module], optimizers: tuple[Optimizer, Optimizer]) -> None:
    for p, q in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        mine, yours = (optimizer.state[x] for optimizer, x in zip(optimizers, (p, q), strict=True))
        for key in ("exp_avg", "exp_avg_sq", "step"):
            torch.testing.assert_close(mine[key], yours[key], rtol=2e-6, atol=1e-9)


def test_one_pass_is_the_update_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    *two, ours, theirs = in_both_ways()
    models, optimizers = (two[0], two[1]), (ours, theirs)
    compiled = []
    update = onepass._update
    monkeypatch.setattr(onepass, "_update", lambda *a: (compiled.append(a), update(*a)))
    for lacking in (None, None, 3, None, None):
        same_step(models, optimizers, lacking)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
    # The first step makes the states, and torch leaves out the parameter without a gradient.
    assert len(compiled) == 3 * 2
    assert_same(models, optimizers)


def test_one_pass_finds_states_and_weights_that_are_other_tensors_now() -> None:
    torch.manual_seed(0)
    *two, ours, theirs = in_both_ways()
    models, optimizers = (two[0], two[1]), (ours, theirs)
    for _ in range(3):
        same_step(models, optimizers)
    for optimizer in optimizers:
        optimizer.load_state_dict(deepcopy(optimizer.state_dict()))
    for model in models:
        model.head_dense.weight.data = model.head_dense.weight.data * 0.5  # type: ignore[union-attr]
    for _ in range(3):
        same_step(models, optimizers)
    for key in ("exp_avg", "exp_avg_sq", "step"):
        for state in (optimizer.state for optimizer in optimizers):
            for own in state.values():
                own[key] = own[key] / 2
        for _ in range(2):
            same_step(models, optimizers)
        for state in (optimizer.state for optimizer in optimizers):
            for own in state.values():
                own[key].data = own[key] * 3
        same_step(models, optimizers)
    optimizers = deepcopy(optimizers[0]), optimizers[1]
    assert_same(models, (ours, theirs))
    before = [p.detach().clone() for p in models[0].parameters()]
    for group in optimizers[0].param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    optimizers[0].step()
    # The copy has weights of its own.
    assert all(map(torch.equal, before, models[0].parameters()))


def test_torch_knows_of_the_changes() -> None:
    model = EncoderConfig(shape="16/2/1/32").build(LANGUAGE, seed=0)
    optimizer = AdamWConfig(lr=0.02).build(model)
    for _ in range(3):
        versions = [p._version for p in model.parameters()]
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert all(p._version > old for p, old in zip(model.parameters(), versions, strict=True))


@pytest.mark.parametrize("option", ["maximize", "amsgrad", "differentiable", "strided", "closure"])
def test_what_the_compiled_step_does_not_know_is_left_to_torch(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(6, 6)
    optimizer = AdamWConfig(lr=0.02).build(model)
    for step in range(3):
        for p in model.parameters():
            p.grad = torch.randn_like(p).t() if option == "strided" and p.ndim == 2 else torch.randn_like(p)
        optimizer.step((lambda: 0.0) if option == "closure" and step else None)
        assert all(state["step"] == step + 1 for state in optimizer.state.values())
        # From the second step on the compiled one would fail.
        monkeypatch.setattr(onepass, "_update", None)
        for group in optimizer.param_groups:
            if option in group:
                group[option] = True
        for state in optimizer.state.values():
            state["max_exp_avg_sq"] = torch.zeros_like(state["exp_avg_sq"])
        if option == "differentiable":
            break


def test_large_models_and_other_numbers_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(64, 64)
    assert type(AdamWConfig().build(model)) is OnePassAdamW
    monkeypatch.setattr(adamw, "ONE_PASS", 64 * 64)
    assert type(AdamWConfig().build(model)) is eager.AdamW
    optimizer = AdamWConfig().build(nn.Linear(3, 2).double())
    monkeypatch.setattr(onepass, "_update", None)
    for _ in range(3):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        optimizer.step()


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
