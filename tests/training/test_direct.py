"""Steps that go from the sums of gradients to the weights at once, against those by way of `.grad`."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers import training_fakes as fakes
from raysweep.algorithms import AdamWConfig
from raysweep.algorithms.adamw import ONE_PASS
from raysweep.models.batch import Batch
from raysweep.models.fused import step as fused_step
from raysweep.models.precision import multiplies_bfloat16
from raysweep.training import World, checkpoint
from raysweep.training.data import batches
from raysweep.training.step import Stepper

STEPS = 6
LSTM, CLS = {"kind": "lstm", "shape": "8/2"}, {"cls": True}

needs_bfloat16 = pytest.mark.skipif(
    not multiplies_bfloat16(torch.device("cpu")), reason="this processor has no instructions for bfloat16"
)


def make(world: World = World(), **options: Any) -> tuple[Stepper, list[Batch]]:  # noqa: B008
    """Return a stepper and its batches."""
    given = fakes.arguments(**options)
    stepper = Stepper(
        given["model"].build(given["language"], seed=0),
        given["algorithm"],
        language=given["language"],
        pretrain=given["pretrain"],
        seed=0,
        world=world,
        device=torch.device("cpu"),
    )
    return stepper, list(batches(given["language"], given["pretrain"], seed=0, first=1, last=STEPS))


@pytest.fixture
def handed_out(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Return the models of all steps whose gradients are handed out, a list that grows."""
    found: list[nn.Module] = []
    give = fused_step.Step.give
    monkeypatch.setattr(fused_step.Step, "give", lambda self, w: (found.append(self.model), give(self, w))[1])
    return found


def both(**options: Any) -> tuple[Stepper, Stepper, list[Batch]]:
    """Return a stepper with direct steps, one without, and their batches."""
    (ours, words), (plain, _) = make(**options), make(**options)
    assert ours._direct is not None
    plain._direct = None
    return ours, plain, words


def same(ours: Stepper, plain: Stepper) -> None:
    for mine, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert mine.grad is None
        assert other.grad is None
        for name, state in plain.optimizer.state[other].items():
            assert torch.equal(ours.optimizer.state[mine][name], state)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
@pytest.mark.parametrize("options", [{}, {"model": CLS}, {"model": LSTM}, {"algorithm": {"ema": 0.9}}])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_weights_are_bitwise_the_same(
    precision: str, options: dict[str, Any], threads: int, handed_out: list[nn.Module]
) -> None:
    ours, plain, words = both(pretrain={"precision": precision}, **options)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for step, batch in enumerate(words, start=1):
            assert torch.equal(ours.update(batch, step), plain.update(batch, step))
            same(ours, plain)
    finally:
        torch.set_num_threads(before)
    # Without states there is no direct step, and the sums of an LSTM's weights lie side by side.
    inner = ours.model.with_token()
    assert sum(model is inner for model in handed_out) == (STEPS if options.get("model") is LSTM else 1)
    if ours.average is not None and plain.average is not None:
        for mine, other in zip(ours.average.tensors.values(), plain.average.tensors.values(), strict=True):
            assert torch.equal(mine, other)


def test_weights_that_are_not_trained_stay(handed_out: list[nn.Module]) -> None:
    ours, plain, words = both()
    for stepper in (ours, plain):
        next(stepper.model.parameters()).requires_grad_(False)
        stepper.optimizer = stepper.algorithm.build(stepper.model)
    assert ours._direct is not None
    ours._direct.optimizer = ours.optimizer
    first = next(ours.model.parameters()).clone()
    for step, batch in enumerate(words, start=1):
        assert torch.equal(ours.update(batch, step), plain.update(batch, step))
        for mine, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(mine, other)
    assert torch.equal(next(ours.model.parameters()), first)
    assert handed_out.count(ours.model) == 1


def by_torch(stepper: Stepper, folder: Path) -> None:
    """Double the averages of squares by `load_state_dict`."""
    state = deepcopy(stepper.optimizer.state_dict())
    for own in state["state"].values():
        own["exp_avg_sq"] *= 2
    stepper.optimizer.load_state_dict(state)


def by_checkpoint(stepper: Stepper, folder: Path) -> None:
    """Double the averages of squares by way of a checkpoint."""
    kept = deepcopy(stepper.optimizer.state_dict())
    for own in stepper.optimizer.state.values():
        own["exp_avg_sq"] *= 2
    state = checkpoint.LoopState(
        step=3, train_seconds=0.0, train_cpu_seconds=0.0, losses=(), precision="float32"
    )
    files = checkpoint.write_checkpoint(folder, stepper.model, stepper.optimizer, state, None, World())
    stepper.optimizer.load_state_dict(kept)
    place = checkpoint.checkpoint_directory(folder, 3)
    checkpoint.restore(place, files, stepper.model, stepper.optimizer, None, World())


@pytest.mark.parametrize("load", [by_torch, by_checkpoint])
def test_states_may_be_loaded_in_between(load: Callable[[Stepper, Path], None], tmp_path: Path) -> None:
    ours, plain, words = both()
    for step, batch in enumerate(words, start=1):
        if step == 4:
            load(ours, tmp_path / "ours")
            load(plain, tmp_path / "plain")
        ours.update(batch, step)
        plain.update(batch, step)
        same(ours, plain)


def test_options_may_change_in_between() -> None:
    ours, plain, words = both()
    for step, batch in enumerate(words, start=1):
        for stepper in (ours, plain):
            for group in stepper.optimizer.param_groups:
                group["maximize"] = step > 3
        ours.update(batch, step)
        plain.update(batch, step)
        same(ours, plain)


def test_torch_hears_of_the_change() -> None:
    ours, words = make()
    for step, batch in enumerate(words, start=1):
        before = [parameter._version for parameter in ours.model.parameters()]
        ours.update(batch, step)
        assert all(p._version > v for p, v in zip(ours.model.parameters(), before, strict=True))


def test_the_parts_of_a_step_are_told() -> None:
    ours, words = make()
    for step, batch in enumerate(words, start=1):
        told: list[str] = []
        ours.mark = told.append
        ours.update(batch, step)
        assert told == ["forward+backward", "optimizer"]


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": {"clip_norm": 1.0}},
        {"algorithm": {"kind": "sam"}},
        {"algorithm": {"kind": "sgd"}},
        {"algorithm": {"kind": "adversarial"}},
    ],
)
def test_other_algorithms_take_steps_by_way_of_gradients(options: dict[str, Any]) -> None:
    stepper, words = make(**options)
    assert stepper._direct is None
    stepper.update(words[0], 1)


def test_an_algorithm_of_ones_own_keeps_its_say() -> None:
    class Doubled(AdamWConfig):
        def before_update(self, model: nn.Module) -> None:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= 2

    assert AdamWConfig().keeps_gradient
    assert not Doubled().keeps_gradient
    assert not AdamWConfig(clip_norm=1.0).keeps_gradient


def test_several_workers_take_steps_by_way_of_gradients() -> None:
    stepper, _ = make(World(0, 2))
    assert stepper._direct is None


def test_weights_are_kept_for_each_model_that_is_updated_in_one_pass() -> None:
    assert ONE_PASS <= fused_step._KEPT


def test_parts_of_a_batch_take_steps_by_way_of_gradients() -> None:
    ours, plain, words = both(pretrain={"micro_batch": 3})
    for step, batch in enumerate(words, start=1):
        ours.update(batch, step)
        plain.update(batch, step)
        same(ours, plain)
    assert ours._direct is not None
    assert len(ours._direct._steps) == 0
