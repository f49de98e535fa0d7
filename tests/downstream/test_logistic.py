"""Objectives and their minimum, against autograd and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from raysweep.downstream import logistic
from raysweep.downstream.absent import Ranking
from raysweep.downstream.curvature import Curvature
from raysweep.downstream.lbfgs import principal_axes, solve
from raysweep.downstream.logistic import Inputs, Objective, Problem

PROBLEMS = [
    Problem(task=task, classes=classes, rows=rows)
    for rows in (400, 150, 30)
    for task, classes in ((0, 2), (1, 5))
]


@pytest.fixture(scope="module")
def inputs():
    """Inputs of two groups with correlated columns of different scales."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 400, 20, generator=generator) @ torch.randn(20, 20, generator=generator)
    x = x * torch.logspace(-1.5, 0.5, 20)
    x[:, :, 19] = 1
    logits = x @ torch.randn(2, 20, 5, generator=generator)
    drawn = torch.distributions.Gumbel(0.0, 1.0)
    torch.manual_seed(0)
    five = (logits + drawn.sample(logits.shape)).argmax(2)
    return Inputs(x=x, y=torch.stack([(five > 2).long(), five], 2))


@pytest.fixture(scope="module")
def l2():
    return torch.tensor([[1.0, 2.0, 0.5, 1.0, 3.0, 0.1], [1.0, 1.0, 2.0, 0.3, 0.2, 10.0]])


def plain(inputs, problem, head, l2, group, counts=None):
    """Return the objective of one head [C, K+1] in float64."""
    rows = slice(0, problem.rows)
    scores = inputs.x[group, rows].double() @ head.T
    losses = torch.nn.functional.cross_entropy(scores, inputs.y[group, rows, problem.task], reduction="none")
    weights = torch.ones(problem.rows) if counts is None else counts[group, rows]
    return (losses * weights).sum() / weights.sum() + 0.5 * l2 / weights.sum() * head.square().sum()


def farthest(gap, problem, l2):
    """Return how far heads can be from the minimum of a strongly convex objective, given their gap."""
    return (2 * gap * problem.rows / l2) ** 0.5


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("block", [1 << 20, 1 << 10])
def test_objectives_are_those_of_autograd(inputs, l2, counted, block, monkeypatch):
    monkeypatch.setattr(logistic, "_SCORES", block)
    counts = (torch.rand(2, 400, generator=torch.Generator().manual_seed(1)) < 0.7).float()
    given = Inputs(x=inputs.x, y=inputs.y, counts=counts if counted else None)
    objective = Objective(given, PROBLEMS, l2)
    heads = 0.3 * torch.randn(2, 6, 5, 20, generator=torch.Generator().manual_seed(2))
    heads[:, ::2, 2:] = 0
    value, gradient = objective(heads)
    for group in range(2):
        for k, problem in enumerate(PROBLEMS):
            head = heads[group, k, : problem.classes].double().requires_grad_()
            expected = plain(inputs, problem, head, l2[group, k], group, given.counts)
            expected.backward()
            assert value[group, k].item() == pytest.approx(expected.item(), rel=1e-5)
            torch.testing.assert_close(
                gradient[group, k, : problem.classes].double(), head.grad, rtol=1e-4, atol=1e-5
            )
            assert (gradient[group, k, problem.classes :] == 0).all()


@pytest.mark.parametrize("counted", [False, True])
def test_the_curvature_is_the_diagonal_of_the_dense_hessian(inputs, l2, counted):
    """In the classes that it turns to; and their mean Hessian is diagonal there."""
    counts = (torch.rand(2, 400, generator=torch.Generator().manual_seed(1)) < 0.7).float()
    given = Inputs(x=inputs.x, y=inputs.y, counts=counts if counted else None)
    heads = 0.3 * torch.randn(2, 6, 5, 20, generator=torch.Generator().manual_seed(2))
    heads[:, ::2, 2:] = 0
    found = Curvature.of(Objective(given, PROBLEMS, l2), heads)
    for group in range(2):
        for k, problem in enumerate(PROBLEMS):
            classes = problem.classes
            hessian = torch.autograd.functional.hessian(
                lambda head, group=group, k=k, problem=problem: plain(
                    inputs, problem, head, l2[group, k], group, given.counts
                ),
                heads[group, k, :classes].double(),
            )
            u = found.turn[group, k, :classes, :classes].double()
            torch.testing.assert_close(u.T @ u, torch.eye(classes).double(), rtol=0, atol=1e-5)
            turned = torch.einsum("ck,cidj,dl->kilj", u, hessian, u)
            diagonal = torch.einsum("kiki->ki", turned)
            torch.testing.assert_close(
                1 / found.inverse[group, k, :classes].double(), diagonal, rtol=1e-3, atol=1e-5
            )
            of_ones = turned[:, 19, :, 19]
            torch.testing.assert_close(of_ones, of_ones.diagonal().diag(), rtol=0, atol=1e-6)
    slopes = torch.randn(2, 6, 5, 20, generator=torch.Generator().manual_seed(4))
    slopes[:, ::2, 2:] = 0
    back = found.turn @ ((found.turn.mT @ found.solve(slopes)) / found.inverse)
    torch.testing.assert_close(back, slopes, rtol=0, atol=1e-3)
    assert (found.solve(slopes)[:, ::2, 2:] == 0).all()


def test_the_curvature_of_one_class_for_several(inputs):
    short = [Problem(task=1, classes=6, rows=400, copies=4)]
    l2 = torch.tensor([[1.0], [2.0]])
    heads = 0.3 * torch.randn(2, 1, 6, 20, generator=torch.Generator().manual_seed(2))
    objective = Objective(inputs, short, l2)
    found = Curvature.of(objective, heads)
    # Slopes of neighbours of the heads, on either side: the change of the gradient is that of the Hessian.
    u, step = found.turn[:, :, :, 2], 1e-2
    for axis in (0, 7, 19):
        aside = torch.zeros_like(heads)
        aside[:, :, :, axis] = step * u
        change = (objective(heads + aside)[1] - objective(heads - aside)[1]) / (2 * step)
        bend = (change[:, :, :, axis] * u).sum(dim=2)
        torch.testing.assert_close(1 / found.inverse[:, :, 2, axis], bend, rtol=1e-2, atol=0)


def test_the_minimum_is_that_of_scikit_learn(inputs, l2):
    found = solve(inputs, PROBLEMS, l2, tolerance=1e-6)
    assert (found.gap <= 1e-6).all()
    for group in range(2):
        for k, problem in enumerate(PROBLEMS):
            if problem.classes == 2:
                continue
            x = inputs.x[group, : problem.rows].double().numpy()
            y = inputs.y[group, : problem.rows, problem.task].numpy()
            assert len(set(y)) == problem.classes
            peer = LogisticRegression(
                C=1 / l2[group, k].item(), fit_intercept=False, max_iter=10_000, tol=1e-9
            ).fit(x, y)
            ours = found.heads[group, k, : problem.classes].double()
            theirs = torch.from_numpy(np.ascontiguousarray(peer.coef_))
            best = plain(inputs, problem, theirs, l2[group, k], group).item()
            assert found.value[group, k].item() == pytest.approx(best, abs=2e-6)
            assert (ours - theirs).norm() <= farthest(2e-6, problem, l2[group, k])


def test_two_classes_are_those_of_scikit_learn_with_half_the_penalty(inputs):
    """One row w of two classes stands for rows ±w/2, whose squares add up to half of its own."""
    problem = Problem(task=0, classes=2, rows=400)
    found = solve(inputs, [problem], torch.full((2, 1), 2.0), tolerance=1e-7)
    for group in range(2):
        peer = LogisticRegression(C=1.0, fit_intercept=False, max_iter=10_000, tol=1e-9)
        peer.fit(inputs.x[group].double().numpy(), inputs.y[group, :, 0].numpy())
        row = (found.heads[group, 0, 1] - found.heads[group, 0, 0]).numpy()
        np.testing.assert_allclose(row, peer.coef_[0], atol=2e-3)


def test_the_gap_bounds_the_distance_from_the_minimum(inputs, l2):
    least = solve(inputs, PROBLEMS, l2, tolerance=1e-6).value
    for tolerance in (10.0, 0.1, 1e-3):
        found = solve(inputs, PROBLEMS, l2, tolerance=tolerance)
        assert (found.gap <= tolerance).all()
        assert (found.value - least <= found.gap + 1e-6).all()
    objective = Objective(inputs, PROBLEMS, l2)
    for scale in (0.01, 0.3):
        heads = scale * torch.randn(2, 6, 5, 20, generator=torch.Generator().manual_seed(3))
        heads[:, ::2, 2:] = 0
        value, gradient = objective(heads)
        assert (value - least <= objective.gap(gradient)).all()


def test_problems_are_solved_as_if_alone(inputs, l2):
    together = solve(inputs, PROBLEMS, l2, tolerance=1e-6)
    for k, problem in enumerate(PROBLEMS):
        alone = solve(inputs.first(problem.rows), [problem], l2[:, k : k + 1], tolerance=1e-6)
        apart = (together.heads[:, k, : problem.classes] - alone.heads[:, 0]).flatten(1).norm(dim=1)
        assert (apart <= 2 * farthest(1e-6, problem, l2[:, k])).all()
        torch.testing.assert_close(together.value[:, k], alone.value[:, 0], rtol=0, atol=2e-6)


def test_a_limit_ends_the_solve_and_the_gap_says_so(inputs, l2):
    found = solve(inputs, PROBLEMS, l2, tolerance=1e-6, passes=3)
    assert found.passes == 3
    assert (found.gap > 1e-3).all()


def test_more_inputs_than_sentences():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 40, 300, generator=generator)
    y = torch.randint(0, 3, (1, 40, 1), generator=generator)
    problem = Problem(task=0, classes=3, rows=40)
    found = solve(Inputs(x=x, y=y), [problem], torch.ones(1, 1), tolerance=1e-7)
    peer = LogisticRegression(fit_intercept=False, max_iter=10_000, tol=1e-9).fit(x[0].double(), y[0, :, 0])
    np.testing.assert_allclose(found.heads[0, 0].numpy(), peer.coef_, atol=1e-3)


def test_principal_axes_keep_all_that_varies():
    generator = torch.Generator().manual_seed(0)
    span = torch.randn(2, 40, 6, generator=generator)
    rank = torch.randn(2, 60, 6, generator=generator) @ span.mT
    y = torch.zeros(2, 60, 1, dtype=torch.long)
    given = ((rank, None), (rank[:, :35], None), (rank[:, :20], None), (rank, span), (rank[:, :5], span))
    for x, known in given:
        axes, turned = principal_axes(Inputs(x=x, y=y, span=known))
        r = min(6, x.shape[1])
        torch.testing.assert_close(turned, x @ axes, rtol=0, atol=1e-4)
        assert axes.shape == (2, 40, r)
        torch.testing.assert_close(x @ axes @ axes.mT, x, rtol=0, atol=1e-4)
        torch.testing.assert_close(axes.mT @ axes, torch.eye(r).expand(2, -1, -1), rtol=0, atol=1e-5)


def test_problems_come_in_order(inputs):
    with pytest.raises(ValueError, match="most rows first"):
        Objective(inputs, PROBLEMS[::-1], torch.ones(2, 6))


def test_one_class_stands_for_all_that_no_row_has(inputs):
    """The objective and its gradient are those of all classes, and a problem's minimum is scikit-learn's."""
    whole = [Problem(task=1, classes=9, rows=rows) for rows in (400, 30)]
    short = [Problem(task=1, classes=6, rows=rows, copies=4) for rows in (400, 30)]
    l2 = torch.tensor([[1.0, 0.3], [2.0, 1.0]])
    heads = 0.3 * torch.randn(2, 2, 6, 20, generator=torch.Generator().manual_seed(2))
    every = torch.cat([heads[:, :, :5], heads[:, :, 5:].expand(-1, -1, 4, -1) / 2], dim=2)
    value, gradient = Objective(inputs, short, l2)(heads)
    expected, slopes = Objective(inputs, whole, l2)(every)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient[:, :, :5], slopes[:, :, :5], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient[:, :, 5], slopes[:, :, 5:].sum(dim=2) / 2, rtol=1e-4, atol=1e-6)
    found = solve(inputs, whole, l2, tolerance=1e-6)
    assert (found.gap <= 1e-6).all()
    value, gradient = Objective(inputs, whole, l2)(found.heads)
    torch.testing.assert_close(value, found.value, rtol=0, atol=1e-6)
    assert (Objective(inputs, whole, l2).gap(gradient) <= 1e-5).all()
    assert torch.equal(found.heads[:, :, 5], found.heads[:, :, 8])
    assert (found.heads[:, :, 5].norm(dim=2) > 0.01).all()


def test_classes_are_absent_by_rows():
    y = torch.tensor([[2, 2, 0, 4], [2, 2, 2, 0]])
    ranking = Ranking.of(y, 5)
    assert ranking.first.tolist() == [2, 4, 0, 4, 3]
    found = [ranking.merged(Problem(task=0, classes=5, rows=rows)) for rows in (1, 3, 4)]
    assert [(problem.classes, problem.copies) for problem in found] == [(2, 4), (3, 3), (4, 2)]
    heads = torch.tensor([[[3.0], [5.0], [6.0], [0.0]]])
    assert ranking.of_all_classes(heads, found[0])[0, :, 0].tolist() == [2.5, 2.5, 3.0, 2.5, 2.5]
    full = Ranking.of(torch.tensor([[1, 0]]), 2)
    assert full.merged(Problem(task=0, classes=2, rows=2)) == Problem(task=0, classes=2, rows=2)
