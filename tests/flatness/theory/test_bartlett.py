"""Bartlett's identity against dense gradients and Hessians, off saturation and exactly at it."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from raysweep.errors import DataError
from raysweep.flatness.directions import Directions
from raysweep.flatness.pool import Pool
from raysweep.flatness.theory.bartlett import BLOCK, BartlettTerms, bartlett_terms


@pytest.fixture
def model(make_model):
    return make_model().eval()


@pytest.fixture
def pool(model, make_ids):
    ids, positions = make_ids(BLOCK, 4)
    truth = torch.rand(BLOCK, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return Pool.of(model, ids, positions, log_probs=(truth / truth.sum(1, keepdim=True)).log())


def saturated(model, pool) -> Pool:
    """The same inputs in a language that is the model itself, ids that are no words left out."""
    with torch.no_grad():
        model.decoder.bias[5:] = -1e4
        own = model(pool.masked, pool.positions)[:, :5].softmax(dim=-1)
    return Pool(masked=pool.masked, positions=pool.positions, labels=own, pad_id=pool.pad_id)


def forms(model, pool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Second moment, Gauss-Newton and residual [n] along the inputs' directions, mean gradients [n, p]."""
    directions = Directions(model, seed=4)
    parameters = dict(model.named_parameters())
    names = list(parameters)
    values = torch.cat([p.detach().flatten() for p in parameters.values()])
    sizes = [p.numel() for p in parameters.values()]
    out, gradients = [], []
    for row in range(len(pool)):

        def log_f(theta: Tensor, row: int = row) -> Tensor:
            parts = zip(names, theta.split(sizes), strict=True)
            state = {n: part.view_as(parameters[n]) for n, part in parts}
            kept = int((pool.masked[row] != pool.pad_id).sum())
            logits = functional_call(model, state, (pool.masked[None, row, :kept], pool.positions[None, row]))
            return logits[0].log_softmax(dim=-1)

        direction = directions.at(row + 7)
        v = torch.cat([direction[n].flatten() for n in names])
        theta = values.clone().requires_grad_()
        f = log_f(theta)
        slopes = torch.stack([torch.autograd.grad(x, theta, retain_graph=True)[0] for x in f])
        q = torch.zeros(len(f), dtype=torch.float64)
        q[:5] = pool.labels[row]
        second = (q * (slopes @ v).square()).sum()
        gauss_newton = (f.exp() * (slopes @ v).square()).sum()

        def loss(theta: Tensor, q: Tensor = q, log_f=log_f) -> Tensor:
            return -(q * log_f(theta)).sum()

        (slope,) = torch.autograd.grad(loss(theta), theta, create_graph=True)
        (curved,) = torch.autograd.grad(slope @ v, theta)
        gradients.append(slope.detach())
        out.append(torch.stack([second, gauss_newton, curved @ v - gauss_newton]).detach())
    return *torch.stack(out).T, torch.stack(gradients)


def test_terms_are_those_of_dense_gradients_and_hessians(model, pool) -> None:
    terms = bartlett_terms(model, pool, seed=4, start=7, batch=5)
    second, gauss_newton, residual, gradients = forms(model, pool)
    torch.testing.assert_close(terms.second_moment, second, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(terms.gauss_newton, gauss_newton, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(terms.residual, residual, rtol=1e-8, atol=1e-9)
    halves = gradients[: BLOCK // 2].mean(0) @ gradients[BLOCK // 2 :].mean(0)
    torch.testing.assert_close(terms.squared_gradient, halves[None], rtol=1e-10, atol=1e-12)
    log_f = model(pool.masked, pool.positions).log_softmax(dim=-1)[:, :5]
    divergence = (pool.labels * (pool.labels.log() - log_f)).sum(dim=1)
    torch.testing.assert_close(terms.loss, divergence, rtol=1e-10, atol=1e-12)


def test_the_identity_holds_at_every_input_of_a_saturated_model(model, pool) -> None:
    away = bartlett_terms(model, pool)
    assert (away.second_moment - away.gauss_newton - away.residual).abs().min() > 1e-4
    terms = bartlett_terms(model, saturated(model, pool))
    assert terms.gauss_newton.min() > 0.1
    torch.testing.assert_close(terms.second_moment, terms.gauss_newton, rtol=1e-12, atol=0)
    assert terms.residual.abs().max() < 1e-10 * terms.gauss_newton.max()
    assert terms.squared_gradient.abs().max() < 1e-20
    assert terms.loss.abs().max() < 1e-14


def test_words_as_labels_are_unbiased(model, pool) -> None:
    """The mean over all words, weighted by their conditionals, is the value with soft labels."""
    soft = bartlett_terms(model, pool)
    total = {name: torch.zeros(BLOCK, dtype=torch.float64) for name in ("second_moment", "residual", "loss")}
    for word in range(5):
        labels = torch.full((BLOCK,), word)
        hard = Pool(masked=pool.masked, positions=pool.positions, labels=labels, pad_id=pool.pad_id)
        terms = bartlett_terms(model, hard)
        for name in total:
            total[name] += pool.labels[:, word] * getattr(terms, name)
    torch.testing.assert_close(total["second_moment"], soft.second_moment)
    torch.testing.assert_close(total["residual"], soft.residual, rtol=1e-8, atol=1e-9)
    entropy = torch.special.entr(pool.labels).sum(dim=1)
    torch.testing.assert_close(total["loss"], soft.loss + entropy)


def test_parameters_that_no_logit_depends_on_change_nothing(make_model, model, pool) -> None:
    other = make_model().eval()
    other.spare = torch.nn.Linear(3, 2, dtype=torch.float64)
    found, expected = bartlett_terms(other, pool, seed=4), bartlett_terms(model, pool, seed=4)
    for name, values in vars(expected).items():
        torch.testing.assert_close(getattr(found, name), values, rtol=1e-12, atol=1e-12)


def test_blocks_must_be_whole(model, pool) -> None:
    part = Pool(
        masked=pool.masked[:5], positions=pool.positions[:5], labels=pool.labels[:5], pad_id=pool.pad_id
    )
    with pytest.raises(DataError, match="5 inputs: give a multiple of 16"):
        bartlett_terms(model, part)
    assert isinstance(bartlett_terms(model, pool), BartlettTerms)
