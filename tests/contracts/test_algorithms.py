"""What every algorithm keeps to, whatever its kind."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysweep.algorithms import AlgorithmConfig
from raysweep.models import EncoderConfig
from raysweep.registry import algorithms

LANGUAGE: Any = SimpleNamespace(vocabulary_size=9, pad_id=9, mask_id=10, cls_id=11, max_length=6)
TRAINING = [kind for kind in algorithms.kinds() if algorithms.get(kind).trains]


@pytest.mark.parametrize("kind", algorithms.kinds())
def test_a_configuration_survives_its_encoding(kind: str) -> None:
    config = algorithms.decode({"kind": kind})
    assert algorithms.decode(config.encode()) == config
    assert config.label


@pytest.mark.parametrize("kind", [k for k in algorithms.kinds() if k not in TRAINING])
def test_what_does_not_train_has_no_optimizer(kind: str) -> None:
    with pytest.raises(TypeError):
        algorithms.decode({"kind": kind}).build(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("kind", TRAINING)
def test_the_optimizer_moves_every_parameter_and_lowers_the_loss(kind: str) -> None:
    config: AlgorithmConfig = algorithms.decode({"kind": kind, "warmup_steps": 5})
    model = EncoderConfig(shape="8/2/2/12", dropout=0.0).build(LANGUAGE, seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = config.build(model)
    ids = torch.randint(0, 9, (64, 6), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(64) % 6
    targets = ids[torch.arange(64), positions]
    hidden = ids.scatter(1, positions[:, None], LANGUAGE.mask_id)
    losses = []
    for step in range(1, 61):
        loss = torch.nn.functional.cross_entropy(model(hidden, positions), targets)
        loss.backward()
        config.before_update(model)
        assert config.learning_rate(step, 60) > 0
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(step, 60)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []
    # A checkpoint holds nothing but tensors.
    assert all(isinstance(v, torch.Tensor) for state in optimizer.state.values() for v in state.values())
