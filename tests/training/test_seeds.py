"""Seeds of initial weights, data and dropout: each decides its own part alone.  Epochs over finite data."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import training_fakes as fakes
from raysweep.training import Seeds, pretrain
from raysweep.training.checkpoint import checkpoint_directory


def weights(folder: Path, seed: Any, *, steps: int = 3, dropout: float = 0.3, **options: Any) -> torch.Tensor:
    """Return the weights after some steps, as one vector."""
    settings = {
        "steps": steps,
        "milestones": [steps],
        "checkpoint_every": None,
        **options.pop("pretrain", {}),
    }
    run = fakes.arguments(pretrain=settings, model={"dropout": dropout}, seed=seed, **options)
    pretrain(journal=fakes.FolderJournal(folder), **run)
    return of(folder, steps)


def of(folder: Path, steps: int) -> torch.Tensor:
    """Return the weights of a checkpoint, as one vector."""
    tensors = load_file(checkpoint_directory(folder, steps) / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def test_one_seed_stands_for_all_three(tmp_path: Path) -> None:
    one = weights(tmp_path / "one", 5)
    assert torch.equal(one, weights(tmp_path / "three", Seeds(init=5, data=5, dropout=5)))
    for name in ("init", "data", "dropout"):
        other = Seeds.of(Seeds.of(5).encode() | {name: 6})
        assert not torch.equal(one, weights(tmp_path / name, other))


def test_the_seed_of_the_weights_decides_them_alone(tmp_path: Path) -> None:
    """With a rate of next to nothing, the weights stay the initial ones."""
    still = {"algorithm": {"lr": 1e-30, "weight_decay": 0.0}}
    first = weights(tmp_path / "a", Seeds(init=1, data=2, dropout=3), **still)
    for name, seed in (("b", Seeds(init=1, data=7, dropout=8)), ("c", 1)):
        torch.testing.assert_close(weights(tmp_path / name, seed, **still), first, rtol=0, atol=1e-20)
    assert (first - weights(tmp_path / "d", Seeds(init=0, data=2, dropout=3), **still)).abs().max() > 1e-3


def test_without_dropout_its_seed_decides_nothing(tmp_path: Path) -> None:
    found = [
        weights(tmp_path / str(k), Seeds(init=1, data=data, dropout=k), dropout=0.0)
        for k, data in enumerate((2, 2, 4))
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("stop_at", [4, 11])
def test_epochs_go_on_bitwise_after_a_stop(tmp_path: Path, stop_at: int) -> None:
    """20 sentences in batches of 13, stopped in the second epoch or a later one."""
    options = {"steps": 20, "sentences": 20}
    whole = weights(tmp_path / "whole", 5, steps=20, pretrain=options)
    calls: list[None] = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) == stop_at

    settings = {"milestones": [20], "checkpoint_every": None, **options}
    run = fakes.arguments(pretrain=settings, model={"dropout": 0.3}, seed=5)
    journal = fakes.FolderJournal(tmp_path / "stopped")
    assert pretrain(journal=journal, stop=stop, **run) < 20
    assert pretrain(journal=journal, **run) == 20
    assert torch.equal(of(tmp_path / "stopped", 20), whole)
    fresh = weights(tmp_path / "fresh", 5, steps=20)
    assert not torch.equal(whole, fresh)


def test_until_data_repeat_a_run_is_that_on_fresh_ones(tmp_path: Path) -> None:
    fresh = weights(tmp_path / "fresh", 5)
    assert torch.equal(fresh, weights(tmp_path / "finite", 5, pretrain={"sentences": 39}))
    assert not torch.equal(fresh, weights(tmp_path / "fewer", 5, pretrain={"sentences": 38}))
