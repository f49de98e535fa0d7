"""Scaled trace, Fisher-Rao norm, geometric complexity, norms and sharpness against dense derivatives."""

import copy
import math

import pytest
import torch
from torch import nn

from helpers.dense_oracle import flat, gauss_newton, hessians, tiny_model
from raysweep.errors import ConfigError, RunFailedError
from raysweep.flatness.curvature.complexity import geometric_complexities
from raysweep.flatness.curvature.loss import gradient_norm, losses_at, norm, trainable, weight_norm
from raysweep.flatness.curvature.relative import fisher_rao_norms, scaled_traces
from raysweep.flatness.curvature.sharpness import sharpness
from raysweep.flatness.pool import Pool
from raysweep.flatness.trace.fisher import input_traces

N = 4


@pytest.fixture(scope="module")
def world(make_ids):
    model = tiny_model()
    ids, positions = make_ids(N, 3, seed=5)
    pool = Pool.of(model, ids, positions)
    theta = flat(p.detach() for p in model.parameters())
    return model, pool, theta, gauss_newton(model, pool.masked, positions)


def repeated(pool, times):
    """Return a pool that holds every input `times` times, all in turn."""
    return Pool(
        masked=pool.masked.repeat(times, 1),
        positions=pool.positions.repeat(times),
        labels=pool.labels.repeat(times),
        pad_id=pool.pad_id,
    )


def z_scores(values, truth):
    return (values.mean(dim=0) - truth) / (values.std(dim=0) / math.sqrt(len(values)))


def test_scaled_trace_is_unbiased(world):
    model, pool, theta, matrices = world
    truth = torch.stack([(theta.square() * g.diagonal()).sum() for g in matrices])
    values = scaled_traces(model, repeated(pool, 600), batch=400).view(600, N)
    assert (values >= 0).all()
    assert (z_scores(values, truth).abs() < 4).all()
    # Less than an order of magnitude of noise an input: relative variance of a few.
    assert (values.var(dim=0) < 4 * truth.square()).all()


def test_fisher_rao_norm_is_exact(world):
    model, pool, theta, matrices = world
    truth = torch.stack([theta @ g @ theta for g in matrices])
    torch.testing.assert_close(fisher_rao_norms(model, pool, batch=3), truth, rtol=1e-9, atol=1e-9)


def test_geometric_complexity(world):
    model, pool, _, _ = world
    truth = []
    for row in range(N):
        length = int((pool.masked[row] != model.pad_id).sum())
        ids, position = pool.masked[row : row + 1, :length], pool.positions[row : row + 1]
        vectors = model.token_embedding(ids).detach()

        def words(e, ids=ids, position=position):
            handle = model.token_embedding.register_forward_hook(lambda *_: e)
            try:
                return model(ids, position)[0, : model.vocabulary_size]
            finally:
                handle.remove()

        truth.append(torch.autograd.functional.jacobian(words, vectors).square().sum())
    values = geometric_complexities(model, repeated(pool, 600), batch=400).view(600, N)
    assert (z_scores(values, torch.stack(truth)).abs() < 4).all()
    assert (values.var(dim=0) <= 2 * torch.stack(truth).square()).all()
    assert not model.token_embedding._forward_hooks


def test_a_model_without_embedding_has_no_geometric_complexity(world):
    class Other(nn.Linear):
        pass

    with pytest.raises(ConfigError, match="Other has no token_embedding"):
        geometric_complexities(Other(2, 2), world[1])


def test_keyed_by_seed_and_input(world):
    model, pool, _, _ = world
    part = Pool(
        masked=pool.masked[2:], positions=pool.positions[2:], labels=pool.labels[2:], pad_id=pool.pad_id
    )
    for measure in (scaled_traces, geometric_complexities):
        whole = measure(model, pool, seed=1)
        torch.testing.assert_close(measure(model, part, seed=1, start=2), whole[2:], rtol=1e-9, atol=1e-9)
        assert not torch.allclose(measure(model, pool, seed=2), whole)


def scaled_value(model, factor):
    """Return the same function with the values of attention times `factor`, and the output divided by it."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in other.layers:
            layer.value.weight *= factor
            layer.value.bias *= factor
            layer.output.weight /= factor
    return other


def test_what_is_invariant_to_scaling_that_changes_no_function(world):
    model, pool, theta, _ = world
    other = scaled_value(model, 20.0)
    torch.testing.assert_close(other(pool.masked, pool.positions), model(pool.masked, pool.positions))
    exact = [
        input_traces(m, pool.masked, pool.positions, vectors="exact").values.sum() for m in (model, other)
    ]
    assert exact[1] > 1.5 * exact[0]
    matrices = gauss_newton(other, pool.masked, pool.positions)
    moved = flat(p.detach() for p in other.parameters())
    invariant = [
        (t.square() * g.diagonal(dim1=1, dim2=2)).sum() for t, g in ((theta, world[3]), (moved, matrices))
    ]
    assert invariant[1].item() == pytest.approx(invariant[0].item(), rel=1e-9)
    torch.testing.assert_close(scaled_traces(other, pool), scaled_traces(model, pool), rtol=1e-8, atol=1e-8)
    kept, plain = (
        [sharpness(m, pool, radius=0.3, adaptive=adaptive).rise.value for m in (model, other)]
        for adaptive in (True, False)
    )
    assert kept[1] == pytest.approx(kept[0], rel=1e-8)
    assert plain[1] != pytest.approx(plain[0], rel=1e-2)


def test_norms(world):
    model, pool, theta, _ = world
    assert weight_norm(model) == pytest.approx(theta.norm().item(), rel=1e-12)
    logits = model(pool.masked, pool.positions)
    loss = nn.functional.cross_entropy(logits, pool.labels)
    parameters = list(model.parameters())
    truth = flat(torch.autograd.grad(loss, parameters)).norm().item()
    assert gradient_norm(model, pool, batch=3) == pytest.approx(truth, rel=1e-10)
    assert losses_at(model, pool, trainable(model)).mean().item() == pytest.approx(loss.item(), rel=1e-12)


@pytest.fixture(scope="module")
def minimum(world):
    """The pool with the model's own predictions as labels, a minimum of its loss; and the Hessian there."""
    model, pool, _, _ = world
    with torch.no_grad():
        labels = model(pool.masked, pool.positions).softmax(1)
    pool = Pool(
        masked=pool.masked[1:3], positions=pool.positions[1:3], labels=labels[1:3], pad_id=pool.pad_id
    )
    labels = pool.labels
    return pool, hessians(model, pool.masked, pool.positions, labels).mean(dim=0)


@pytest.mark.parametrize("adaptive", [False, True])
def test_at_a_minimum_sharpness_is_the_largest_eigenvalue(world, minimum, adaptive):
    (model, _, theta, _), (pool, mean) = world, minimum
    scale = theta.abs() if adaptive else torch.ones_like(theta)
    largest = torch.linalg.eigvalsh(scale[:, None] * mean * scale)[-1].item()
    found = sharpness(model, pool, radius=1e-4, steps=60, adaptive=adaptive)
    assert found.rise.value == pytest.approx(largest * 1e-8 / 2, rel=1e-3)
    assert found.first_order < 1e-10


def test_for_a_small_radius_sharpness_is_the_gradient(world):
    model, pool, _, _ = world
    found = sharpness(model, pool, radius=1e-6, steps=1)
    assert found.first_order == pytest.approx(1e-6 * gradient_norm(model, pool), rel=1e-12)
    assert found.rise.value == pytest.approx(found.first_order, rel=1e-3)
    assert found.rise == found.one_step


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_first_step_is_that_of_the_papers(world, adaptive):
    """θ + ρ∇L/‖∇L‖, and θ + ρT²∇L/‖T∇L‖ with T = diag|θ|, by plain autograd."""
    model, pool, _, _ = world
    moved = copy.deepcopy(model)
    parameters, radius = list(moved.parameters()), 0.3

    def loss():
        return nn.functional.cross_entropy(moved(pool.masked, pool.positions), pool.labels)

    before = loss()
    slopes = torch.autograd.grad(before, parameters)
    scales = [p.detach().abs() if adaptive else torch.ones_like(p) for p in parameters]
    length = flat(t * g for t, g in zip(scales, slopes, strict=True)).norm()
    with torch.no_grad():
        for p, t, g in zip(parameters, scales, slopes, strict=True):
            p += radius * t * t * g / length
        rise = (loss() - before).item()
    found = sharpness(model, pool, radius=radius, steps=1, adaptive=adaptive, batch=3)
    assert found.one_step.value == pytest.approx(rise, rel=1e-9)
    assert found.first_order == pytest.approx(radius * length.item(), rel=1e-10)


@pytest.mark.parametrize("adaptive", [False, True])
def test_nothing_within_the_ball_is_higher(world, adaptive):
    model, pool, _, _ = world
    before = {name: p.clone() for name, p in trainable(model).items()}
    radius = 0.2
    found = sharpness(model, pool, radius=radius, steps=20, adaptive=adaptive)
    assert found.rise.value >= found.one_step.value > 0
    here = trainable(model)
    start = losses_at(model, pool, here).mean()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        delta = {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in here.items()}
        size = norm(delta)
        scale = {n: p.abs() if adaptive else 1.0 for n, p in here.items()}
        point = {n: here[n] + scale[n] * delta[n] * (radius / size) for n in here}
        assert losses_at(model, pool, point).mean() - start < found.rise.value
    assert all(torch.equal(before[name], p) for name, p in trainable(model).items())


def test_senseless_settings_and_diverged_models(world):
    model, pool, _, _ = world
    with pytest.raises(ConfigError, match="radius=0"):
        sharpness(model, pool, radius=0)
    with pytest.raises(ConfigError, match="steps=0"):
        sharpness(model, pool, steps=0)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.head_norm.weight.fill_(math.nan)
    with pytest.raises(RunFailedError, match="not finite"):
        sharpness(broken, pool)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        weight_norm(broken.requires_grad_(False))
