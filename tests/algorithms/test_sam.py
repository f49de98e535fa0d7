"""SAM against the two steps done by hand in float64."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from helpers import training_fakes as fakes
from raysweep.algorithms import SAMConfig
from raysweep.models.batch import Batch
from raysweep.training import World
from raysweep.training.data import batches
from raysweep.training.step import Stepper

Weights = dict[str, Tensor]


def setup(mask: Any, dropout: float = 0.0, **options: Any) -> tuple[Stepper, list[Batch]]:
    arguments = fakes.arguments(
        algorithm={"kind": "sam", "lr": 0.01, "warmup_steps": 0, **options},
        model={"dropout": dropout},
        pretrain={"mask": mask, "steps": 3, "milestones": [3]},
    )
    language = arguments["language"]
    model = arguments["model"].build(language, seed=1).double()
    stepper = Stepper(
        model, arguments["algorithm"], language=language, pretrain=arguments["pretrain"], seed=1,
        world=World(), device=torch.device("cpu"),
    )  # fmt: skip
    return stepper, list(batches(language, arguments["pretrain"], seed=1, first=1, last=3))


def mean_loss(model: nn.Module, weights: Weights, batch: Batch, keep: Callable[[int], bool]) -> Tensor:
    """Return the mean of -log f over the masked words of the sentences kept, one word at a time."""
    terms = []
    width = batch.ids.shape[1]
    for k, target in enumerate(batch.targets):
        row, at = (k, int(batch.index[k])) if batch.single else divmod(int(batch.index[k]), width)
        if keep(row):
            logits = functional_call(model, weights, (batch.ids[row : row + 1], torch.tensor([at])))
            terms.append(F.cross_entropy(logits[0], target))
    return torch.stack(terms).mean()


def gradient(model: nn.Module, weights: Weights, batch: Batch, keep: Callable[[int], bool]) -> Weights:
    loss = mean_loss(model, weights, batch, keep)
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


@pytest.mark.parametrize("mask", ["one", 0.4])
@pytest.mark.parametrize("ascent", ["half", "same"])
def test_the_update_is_two_steps(ascent: Literal["half", "same"], mask: Any) -> None:
    stepper, steps = setup(mask, ascent=ascent, rho=0.3, betas=[0.8, 0.9], eps=1e-3, weight_decay=0.5)
    model = stepper.model
    theta = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in theta.items()}
    v = {name: torch.zeros_like(p) for name, p in theta.items()}

    def first(row: int) -> bool:
        return ascent == "same" or row % 2 == 0

    def second(row: int) -> bool:
        return ascent == "same" or row % 2 == 1

    for step, batch in enumerate(steps, 1):
        loss = stepper.update(batch, step)
        torch.testing.assert_close(loss, mean_loss(model, theta, batch, first).detach(), rtol=0, atol=1e-12)
        up = gradient(model, theta, batch, first)
        norm = torch.sqrt(sum((g**2).sum() for g in up.values()))
        worst = {n: (p + 0.3 * up[n] / norm).detach().requires_grad_() for n, p in theta.items()}
        down = gradient(model, worst, batch, second)
        for name, p in theta.items():
            g = down[name]
            m[name], v[name] = 0.8 * m[name] + 0.2 * g, 0.9 * v[name] + 0.1 * g**2
            decay = 0.5 if p.ndim >= 2 else 0.0
            move = (m[name] / (1 - 0.8**step)) / ((v[name] / (1 - 0.9**step)).sqrt() + 1e-3)
            theta[name] = (p - 0.01 * (move + decay * p)).detach().requires_grad_()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), theta[name].detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("ascent", ["half", "same"])
def test_dropout_is_that_of_the_sentences_read(ascent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper, steps = setup("one", dropout=0.3, ascent=ascent)
    seeds: list[int] = []
    real = stepper._seed_dropout

    def seed(value: int) -> None:
        seeds.append(value)
        real(value)

    monkeypatch.setattr(stepper, "_seed_dropout", seed)
    for step in (1, 2):
        stepper.update(steps[step - 1], step)
    assert len(seeds) == 4
    assert len(set(seeds)) == (2 if ascent == "same" else 4)


def test_a_loss_that_is_not_finite_at_the_second_point_is_told() -> None:
    model = nn.Linear(1, 1)
    losses = iter([1.0, float("inf")])

    def backward(half: int | None = None) -> Tensor:
        model.weight.sum().backward()
        return torch.tensor(next(losses))

    assert not torch.isfinite(SAMConfig().gradient(model, backward))


def test_no_gradient_is_no_step_up() -> None:
    model = nn.Linear(1, 1, bias=False)
    seen = []

    def backward(half: int | None = None) -> Tensor:
        seen.append(model.weight.item())
        (0 * model.weight).sum().backward()
        return torch.tensor(0.0)

    SAMConfig().gradient(model, backward)
    assert seen[0] == seen[1]
