"""Optimizers without torch's compiler: the same numbers as torch's, and nothing imports the compiler."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from raysweep.algorithms import eager
from raysweep.algorithms.onepass import OnePassAdamW

#: Trains with each of some algorithms, writes a checkpoint and goes on from it.
TRAINS = """
import sys
from pathlib import Path
from raysweep.registry import algorithms
from raysweep.testing.training import FolderJournal, small_run
from raysweep.training import pretrain
for kind in sys.argv[2:]:
    algorithm = algorithms.decode({"kind": kind})
    for steps in (6, 12):
        arguments = small_run(algorithm, pretrain={"steps": steps, "milestones": [steps]})
        pretrain(journal=FolderJournal(Path(sys.argv[1], kind)), **arguments)
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW", {"weight_decay": 0.3}),
        ("AdamW", {"weight_decay": 0.3, "fused": True}),
        ("SGD", {"momentum": 0.7, "weight_decay": 0.3}),
        ("Muon", {"weight_decay": 0.3}),
    ],
)
def test_numbers_are_those_of_torch(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ours = nn.Linear(5, 4, bias=False)
    theirs = copy.deepcopy(ours)
    optimizers: list[tuple[nn.Module, Optimizer]] = [
        (model, getattr(home, name)(model.parameters(), lr=0.1, **options))
        for home, model in ((eager, ours), (torch.optim, theirs))
    ]
    for step in range(4):
        gradient = torch.randn(4, 5)
        for k, (model, optimizer) in enumerate(optimizers):
            optimizer.zero_grad()
            assert all(p.grad is None for p in model.parameters())
            model.weight.grad = gradient.clone()
            optimizer.step()
            if step == 1:  # a new one goes on from the states
                states = copy.deepcopy(optimizer.state_dict())
                again = type(optimizer)(model.parameters(), lr=3.0)
                again.load_state_dict(states)
                optimizers[k] = model, again
    assert torch.equal(ours.weight, theirs.weight)


def test_hooks_are_called_once() -> None:
    """torch puts them around the step of a class as soon as it has an instance, and of a subclass too."""
    model = nn.Linear(2, 2)
    for kind in (eager.AdamW, OnePassAdamW):
        calls: list[int] = []
        optimizer = kind(model.parameters())
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        optimizer.step()
        assert calls == [1]


def test_training_needs_no_compiler(tmp_path: Path) -> None:
    """To import it takes as long as to import torch."""
    kinds = "adamw", "sgd", "muon", "sam", "adversarial"
    subprocess.run([sys.executable, "-c", TRAINS, str(tmp_path), *kinds], check=True, timeout=600)
