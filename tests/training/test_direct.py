"""Steps that go from the sums of gradients to the weights at once, against those by way of `.grad`."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from helpers import training_fakes as fakes
from raysweep.models.batch import Batch
from raysweep.training import World
from raysweep.training.data import batches
from raysweep.training.step import Stepper

STEPS = 6
LSTM, CLS = {"kind": "lstm", "shape": "8/2"}, {"cls": True}


def make(**options: Any) -> tuple[Stepper, list[Batch]]:
    """Return a stepper and its batches."""
    given = fakes.arguments(**options)
    stepper = Stepper(
        given["model"].build(given["language"], seed=0),
        given["algorithm"],
        language=given["language"],
        pretrain=given["pretrain"],
        seed=0,
        world=World(),
        device=torch.device("cpu"),
    )
    return stepper, list(batches(given["language"], given["pretrain"], seed=0, first=1, last=STEPS))


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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"model": LSTM}, {"model": CLS}, {"algorithm": {"ema": 0.9}}])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_weights_are_bitwise_the_same(
    precision: str, options: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, plain, words = both(pretrain={"precision": precision}, **options)
    given = []
    give = type(ours.model).learn
    monkeypatch.setattr(type(ours.model), "learn", lambda *a, **k: (given.append(a[0]), give(*a, **k))[1])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for step, batch in enumerate(words, start=1):
            assert torch.equal(ours.update(batch, step), plain.update(batch, step))
            same(ours, plain)
    finally:
        torch.set_num_threads(before)
    assert given == [plain.model] * STEPS
    if ours.average is not None and plain.average is not None:
        for mine, other in zip(ours.average.tensors.values(), plain.average.tensors.values(), strict=True):
            assert torch.equal(mine, other)


def test_most_steps_hand_out_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, words = make()
    stepped = []
    step = type(ours.optimizer).step
    monkeypatch.setattr(type(ours.optimizer), "step", lambda self: (stepped.append(1), step(self))[1])
    for number, batch in enumerate(words, start=1):
        ours.update(batch, number)
    # Without states there is no step from sums yet, and then the first one is made ready.
    assert len(stepped) == 2


def test_states_may_be_loaded_in_between() -> None:
    ours, plain, words = both()
    for step, batch in enumerate(words, start=1):
        if step == 4:
            for stepper in (ours, plain):
                state = deepcopy(stepper.optimizer.state_dict())
                for own in state["state"].values():
                    own["exp_avg_sq"] *= 2
                stepper.optimizer.load_state_dict(state)
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


def test_a_model_that_is_not_trained_whole_takes_no_direct_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    given = fakes.arguments()
    model = given["model"].build(given["language"], seed=0)
    next(model.parameters()).requires_grad_(False)
    monkeypatch.setattr(type(given["model"]), "build", lambda *a, **k: model)
    stepper, _ = make()
    assert stepper._direct is None


def test_parts_of_a_batch_take_steps_by_way_of_gradients() -> None:
    ours, plain, words = both(pretrain={"micro_batch": 3})
    for step, batch in enumerate(words, start=1):
        ours.update(batch, step)
        plain.update(batch, step)
        same(ours, plain)
    assert ours._direct is not None
    assert len(ours._direct._steps) == 0
