"""The adversarial objective: its head against the normal equations, its gradient against differences."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from helpers import training_fakes as fakes
from raysweep.algorithms import AdversarialConfig
from raysweep.algorithms.adversarial import AdversarialLoss, representations, ridge_error
from raysweep.evaluation import ModelSubject
from raysweep.languages.base import Sample
from raysweep.languages.splits import in_test
from raysweep.training import World
from raysweep.training.data import batches
from raysweep.training.step import Stepper

CPU = torch.device("cpu")


class NoTasks(fakes.Walk):
    @property
    def tasks(self) -> dict[str, Any]:
        return {}


def problem(n: int, m: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    draw = [torch.randn(k, width, generator=generator, dtype=torch.float64) for k in (n, m)]
    labels = [torch.randint(0, 3, (k,), generator=generator) for k in (n, m)]
    return draw[0], draw[1], F.one_hot(labels[0], 3).double(), F.one_hot(labels[1], 3).double()


def explicit(a: Tensor, b: Tensor, wanted: Tensor, truth: Tensor, ridge: float) -> Tensor:
    """Ridge regression with a free intercept as one plain least-squares problem."""
    n, width = a.shape
    penalty = ridge * n * (a - a.mean(0)).square().mean()
    with_one = torch.cat([a, torch.ones(n, 1).double()], dim=1)
    rows = torch.cat([penalty.sqrt() * torch.eye(width).double(), torch.zeros(width, 1).double()], dim=1)
    system = torch.cat([with_one, rows])
    head = torch.linalg.lstsq(
        system, torch.cat([wanted, torch.zeros(width, wanted.shape[1]).double()])
    ).solution
    scores = torch.cat([b, torch.ones(len(b), 1).double()], dim=1) @ head
    return (scores - truth).square().sum(dim=1).mean()


@pytest.mark.parametrize("width", [5, 20, 40])
def test_the_head_solves_the_least_squares_problem(width: int) -> None:
    given = problem(20, 7, width)
    found = ridge_error(*given, ridge=0.3)
    torch.testing.assert_close(found, explicit(*given, 0.3), rtol=1e-9, atol=0)


@pytest.mark.parametrize("width", [4, 15])
def test_the_gradient_goes_through_the_solve(width: int) -> None:
    a, b, wanted, truth = problem(9, 5, width)
    a.requires_grad_(), b.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: ridge_error(x, y, wanted, truth, ridge=0.2), (a, b))


def test_the_scale_of_the_features_makes_no_difference() -> None:
    a, b, wanted, truth = problem(20, 7, 5)
    one, other = (ridge_error(k * a, k * b, wanted, truth, ridge=0.3) for k in (1.0, 1e-3))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=0)


def test_features_that_do_not_vary_leave_the_frequencies_of_the_labels() -> None:
    _, _, wanted, truth = problem(20, 7, 5)
    found = ridge_error(torch.ones(20, 5).double(), torch.ones(7, 5).double(), wanted, truth, ridge=0.3)
    torch.testing.assert_close(found, (wanted.mean(0) - truth).square().sum(1).mean(), rtol=1e-9, atol=0)


def test_features_that_are_not_finite_give_nan() -> None:
    a, b, wanted, truth = problem(20, 7, 5)
    a[3, 2] = torch.inf
    assert ridge_error(a, b, wanted, truth, ridge=0.3).isnan()


def term(**options: Any) -> tuple[AdversarialLoss, Any, Any]:
    language = fakes.Walk()
    settings = {"train": 12, "validation": 9, "examples": 100, **options}
    config = AdversarialConfig.decode({"kind": "adversarial", **settings})
    model = fakes.arguments()["model"].build(language, seed=2)
    return config.extra_loss(language, seed=3, device=CPU), model, language


def test_the_sets_are_disjoint_draws_of_the_training_split() -> None:
    loss, _, language = term()
    again, _, _ = term()
    assert not in_test(loss._ids, language.pad_id).any()
    drawn = []
    for step in range(1, 9):
        first, second = loss.rows(step)
        assert (len(first), len(second)) == (12, 9)
        drawn.append(torch.cat([first, second]).tolist())
        assert len(set(drawn[-1])) == 21
    # Four steps use up the hundred examples, and the next ones see them in another order.
    assert len({row for rows in drawn[:4] for row in rows}) == 84
    assert drawn[:4] != drawn[4:]
    # Whatever was asked before, a step has its draws.
    assert torch.cat(again.rows(7)).tolist() == drawn[6]
    assert torch.cat(again.rows(2)).tolist() == drawn[1]


def test_the_term_is_the_definition() -> None:
    loss, model, language = term(strength=2.5, ridge=0.3)
    model.double()
    first, second = loss.rows(5)
    ids = loss._ids
    with torch.no_grad():
        features = ModelSubject(language, model).features(ids).double()
    total = 0.0
    for name, task in language.tasks.items():
        labels = F.one_hot(language.labels(name, Sample(ids=ids)), len(task.classes)).double()
        sets = (features[first], features[second], labels[first], labels[second])
        total += explicit(*sets, 0.3).item()
    model.train()
    torch.testing.assert_close(loss(model, 5).item(), -2.5 / 2 * total, rtol=1e-9, atol=0)
    assert model.training


def test_the_gradient_of_the_objective_is_its_difference_quotient() -> None:
    """The whole gradient of a step along random directions, in float64."""
    arguments = fakes.arguments(
        algorithm={"kind": "adversarial", "train": 12, "validation": 9, "examples": 50, "strength": 3.0},
        model={"dropout": 0.0},
    )
    language, config = arguments["language"], arguments["algorithm"]
    model = arguments["model"].build(language, seed=1).double()
    stepper = Stepper(
        model, config, language=language, pretrain=arguments["pretrain"], seed=1, world=World(), device=CPU
    )
    batch = next(batches(language, arguments["pretrain"], seed=1, first=4, last=4))
    loss = stepper._backward(batch, 4, None)
    parameters = list(model.parameters())
    slopes = [p.grad.clone() for p in parameters]

    def objective() -> float:
        with torch.no_grad():
            return stepper._loss(batch, 4, 0)[0].item()

    plain = F.cross_entropy(model(batch.ids, batch.index), batch.targets)
    torch.testing.assert_close(loss, plain.detach(), rtol=0, atol=1e-12)
    assert abs(objective() - loss.item()) > 0.1
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        way = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        values = []
        for h in (1e-6, -2e-6):
            with torch.no_grad():
                for p, w in zip(parameters, way, strict=True):
                    p.add_(h * w)
            values.append(objective())
        with torch.no_grad():
            for p, w in zip(parameters, way, strict=True):
                p.add_(1e-6 * w)
        expected = sum((g * w).sum().item() for g, w in zip(slopes, way, strict=True))
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(expected, rel=1e-5)


def test_dropout_is_off_where_representations_are_read() -> None:
    loss, model, _ = term()
    model.train()
    assert torch.equal(loss(model, 1), loss(model, 1))


def test_representations_are_those_that_a_probe_reads() -> None:
    language = fakes.Walk()
    model = fakes.arguments()["model"].build(language, seed=2).eval()
    ids = language.sample(8, seed=0)
    with torch.no_grad():
        found = representations(model, ids, language.max_length)
        short = representations(model, ids[::3, :4], language.max_length)
    torch.testing.assert_close(found, ModelSubject(language, model).features(ids), rtol=0, atol=1e-6)
    torch.testing.assert_close(short, found[::3], rtol=0, atol=1e-6)


def test_unknown_tasks_and_languages_without_any_are_refused() -> None:
    language = fakes.Walk()
    config = AdversarialConfig(tasks=("start", "wya"))
    assert config.problems(language) == [
        ("tasks.1", "unknown task 'wya' — did you mean 'way'?; the language has way, start")
    ]
    assert AdversarialConfig().problems(language) == []
    [(field, message)] = AdversarialConfig().problems(NoTasks())
    assert field == "kind"
    assert "the language has none" in message


@pytest.mark.parametrize(
    ("field", "value"),
    [("tasks", []), ("tasks", ["A", "A"]), ("strength", 0.0), ("ridge", 0.0), ("train", 1),
     ("validation", 0), ("examples", 500)],
)  # fmt: skip
def test_a_wrong_value_is_an_error(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        AdversarialConfig.decode({"kind": "adversarial", field: value})
    assert field in str(caught.value)


def test_tasks_may_be_numbers() -> None:
    assert AdversarialConfig.decode({"kind": "adversarial", "tasks": [6, "10"]}).tasks == ("6", "10")
