"""Products, eigenvalues and densities against dense matrices; against curvlinops where it is installed."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import nn

from helpers.dense_oracle import flat, gauss_newton, hessians, tiny_model
from raysweep import seeding
from raysweep.errors import ConfigError, RunFailedError
from raysweep.flatness.curvature.loss import gradient_at, trainable
from raysweep.flatness.curvature.operator import CurvatureOperator
from raysweep.flatness.curvature.spectrum import density, extreme_eigenvalues
from raysweep.flatness.pool import Pool
from raysweep.languages.hmm import HMM
from raysweep.models.lstm import LSTMConfig

MATRICES = ["hessian", "gauss_newton"]


@pytest.fixture(scope="module")
def world(make_ids):
    model = tiny_model("post")
    ids, positions = make_ids(3, 3, seed=5)
    log_probs = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).log_softmax(1)
    pool = Pool.of(model, ids, positions, log_probs=log_probs)
    probabilities = nn.functional.pad(pool.labels, (0, 3))
    dense = {
        "hessian": hessians(model, pool.masked, positions, probabilities).mean(dim=0).numpy(),
        "gauss_newton": gauss_newton(model, pool.masked, positions).mean(dim=0).numpy(),
    }
    return model, pool, dense


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("matrix", MATRICES)
def test_products_are_those_of_the_dense_matrix(world, matrix, keep):
    model, pool, dense = world
    operator = CurvatureOperator(model, pool, matrix=matrix, batch=2, keep=keep)
    vectors = np.random.default_rng(0).normal(size=(len(dense[matrix]), 3))
    np.testing.assert_allclose(operator @ vectors, dense[matrix] @ vectors, rtol=1e-8, atol=1e-9)
    # A second product is the same, whether the graph was kept or not.
    np.testing.assert_array_equal(operator @ vectors, operator @ vectors)


def test_products_with_the_hessian_are_differences_of_gradients(world):
    model, pool, _ = world
    operator = CurvatureOperator(model, pool, matrix="hessian")
    here, step = trainable(model), 1e-5
    vector = np.random.default_rng(1).normal(size=operator.shape[0])
    parts = torch.from_numpy(vector).split([p.numel() for p in here.values()])
    ahead, behind = (
        flat(
            gradient_at(
                model,
                pool,
                {n: p + sign * step * v.view_as(p) for (n, p), v in zip(here.items(), parts, strict=True)},
            )[0].values()
        )
        for sign in (1, -1)
    )
    difference = ((ahead - behind) / (2 * step)).numpy()
    np.testing.assert_allclose(operator @ vector, difference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("matrix", MATRICES)
def test_extreme_eigenvalues(world, matrix):
    model, pool, dense = world
    operator = CurvatureOperator(model, pool, matrix=matrix, keep=True)
    truth = np.linalg.eigvalsh(dense[matrix])
    largest = extreme_eigenvalues(operator, 5, tolerance=1e-10)
    np.testing.assert_allclose(largest, truth[:-6:-1], rtol=1e-7)
    if matrix == "hessian":
        assert truth[1] < -1e-3
        smallest = extreme_eigenvalues(operator, 2, end="smallest", tolerance=1e-8)
        np.testing.assert_allclose(smallest, truth[:2], rtol=1e-6)


def test_quadrature_is_exact_for_polynomials():
    """Every vector of signs has the true moments of a diagonal matrix: to degree 2m − 1 they are found."""
    eigenvalues = np.random.default_rng(0).uniform(-1, 1, size=60)
    found = density(aslinearoperator(np.diag(eigenvalues)), steps=4, vectors=3, seed=2)
    for degree in range(8):
        ours = (found.weights * found.nodes**degree).sum(axis=1)
        np.testing.assert_allclose(ours, (eigenvalues**degree).mean(), rtol=1e-10, atol=1e-12)
    assert not np.allclose((found.weights * found.nodes**8).sum(axis=1), (eigenvalues**8).mean(), rtol=1e-3)


@pytest.mark.parametrize("matrix", MATRICES)
def test_the_density_of_a_model_has_the_moments_of_the_dense_matrix(world, matrix):
    """Of each random vector: (1/P) vᵀA^k v, and with all P steps the share of v below a level."""
    model, pool, dense = world
    operator, size = CurvatureOperator(model, pool, matrix=matrix, keep=True), len(dense[matrix])
    found = density(operator, steps=4, vectors=2, seed=3)
    values, states = np.linalg.eigh(dense[matrix])
    for row in range(2):
        v = seeding.signs(3, "spectrum/density", torch.tensor([row]), size)[0].double().numpy()
        inside = (states.T @ v) ** 2 / size
        for degree in range(8):
            ours = (found.weights[row] * found.nodes[row] ** degree).sum()
            assert ours == pytest.approx((inside * values**degree).sum(), rel=1e-7, abs=1e-9)
    whole = density(operator, steps=size, vectors=1, seed=3)
    level = (values[-3] + values[-4]) / 2
    v = seeding.signs(3, "spectrum/density", torch.tensor([0]), size)[0].double().numpy()
    below = ((states.T @ v) ** 2 / size)[values < level].sum()
    assert whole.below(level).value == pytest.approx(below, rel=1e-7)


def test_moments_are_unbiased(world):
    dense = world[2]["hessian"]
    found = density(aslinearoperator(dense), steps=8, vectors=400)
    for estimate, truth in ((found.trace, np.trace(dense)), (found.squares, (dense**2).sum())):
        assert estimate.n == 400
        assert abs(estimate.value - truth) < 4 * estimate.standard_error
    assert found.size == len(dense)


@pytest.mark.parametrize("vectors", [1, 2, 4])
def test_few_vectors_state_an_error_that_holds(world, vectors):
    """Few of 200 estimates are further off than two or three stated errors.

    A quarter are further off than three of those that come from the spread of two vectors.
    """
    dense = world[2]["hessian"]
    operator, truth = aslinearoperator(dense), np.trace(dense)
    found = [density(operator, steps=8, vectors=vectors, seed=seed).trace for seed in range(200)]
    off = np.array([abs(one.value - truth) / one.standard_error for one in found])
    assert (off > 3).mean() <= 0.02
    assert (off > 2).mean() <= 0.07
    # Nor is it too wide to be of use.
    stated = np.mean([one.standard_error for one in found])
    assert stated <= 1.5 * np.std([one.value for one in found])


def test_density_integrates_and_finds_gaps():
    eigenvalues = np.concatenate([np.zeros(150), np.full(30, 2.0), np.full(20, -1.0)])
    found = density(aslinearoperator(np.diag(eigenvalues)), steps=20, vectors=40)
    # Three distinct values exhaust the space after three steps.
    assert (np.count_nonzero(found.weights > 1e-12, axis=1) == 3).all()
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0)
    grid = np.linspace(-3, 4, 2001)
    curve = found.at(grid, 0.05)
    assert np.trapezoid(curve, grid) == pytest.approx(1.0, abs=1e-6)
    share = np.trapezoid(curve[grid > 1], grid[grid > 1])
    assert share == pytest.approx(0.15, abs=1e-6)
    assert found.below(-0.5).value == pytest.approx(0.1, abs=1e-9)
    assert curve[np.abs(grid - 1.0).argmin()] < 1e-6


def test_a_seed_is_a_spectrum(world):
    operator = aslinearoperator(world[2]["hessian"])
    one, same, other = (density(operator, steps=5, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.nodes, same.nodes)
    assert not np.array_equal(one.nodes, other.nodes)
    before = np.random.get_state()[1].copy()
    extreme_eigenvalues(operator, 2)
    np.testing.assert_array_equal(before, np.random.get_state()[1])


def test_lstm_and_frozen_parameters():
    language = HMM.random(states=4, vocabulary=5, length=3, blocks=1, tasks=(2,))
    model = LSTMConfig(shape="2/1").build(language, seed=0).double().eval()
    model.decoder.bias.requires_grad_(False)
    ids = language.sample(2, seed=0)
    pool = Pool.of(model, ids)
    hard = nn.functional.one_hot(pool.labels, model.total_vocabulary).double()
    dense = {
        "hessian": hessians(model, pool.masked, pool.positions, hard).mean(dim=0).numpy(),
        "gauss_newton": gauss_newton(model, pool.masked, pool.positions).mean(dim=0).numpy(),
    }
    for matrix in MATRICES:
        operator = CurvatureOperator(model, pool, matrix=matrix)
        found = operator @ np.eye(len(dense[matrix]))
        np.testing.assert_allclose(found, dense[matrix], rtol=1e-7, atol=1e-10)


def test_float32_models_keep_four_digits(world):
    _, pool, dense = world
    single = tiny_model("post").float()
    operator = CurvatureOperator(single, pool, matrix="hessian")
    found = extreme_eigenvalues(operator, 3)
    np.testing.assert_allclose(found, np.linalg.eigvalsh(dense["hessian"])[:-4:-1], rtol=1e-4)


@pytest.mark.parametrize("matrix", MATRICES)
def test_equals_curvlinops(world, matrix):
    """Without LayerNorm's own parameters, for which curvlinops 3.0.1 gives wrong Hessian products."""
    curvlinops = pytest.importorskip("curvlinops")
    pool = world[1]
    model = tiny_model("post")
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.requires_grad_(False)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, inputs):
            return self.model(inputs["ids"], inputs["positions"])

    wrapped = Wrapped()
    kind = {"hessian": "HessianLinearOperator", "gauss_newton": "GGNLinearOperator"}[matrix]
    peer = getattr(curvlinops, kind)(
        wrapped,
        nn.CrossEntropyLoss(),
        [p for p in wrapped.parameters() if p.requires_grad],
        [({"ids": pool.masked, "positions": pool.positions}, nn.functional.pad(pool.labels, (0, 3)))],
        batch_size_fn=lambda inputs: len(inputs["ids"]),
        check_deterministic=False,
    )
    operator = CurvatureOperator(model, pool, matrix=matrix)
    vector = np.random.default_rng(0).normal(size=operator.shape[0])
    np.testing.assert_allclose(
        operator @ vector, (peer @ torch.from_numpy(vector)).detach(), rtol=1e-8, atol=1e-9
    )


def test_what_cannot_be_asked(world):
    _, pool, dense = world
    operator = aslinearoperator(dense["hessian"])
    with pytest.raises(ConfigError, match=r"0 eigenvalues of a matrix of \d+ rows: ask for 1 to"):
        extreme_eigenvalues(operator, 0)
    with pytest.raises(ConfigError, match="steps=0"):
        density(operator, steps=0)
    level = aslinearoperator(np.diag(np.linspace(0.0, 1.0, 400)))
    with pytest.raises(RunFailedError, match="of 3 largest eigenvalues were found in 1 restarts"):
        extreme_eigenvalues(level, 3, tolerance=1e-15, restarts=1)
    broken = tiny_model()
    with torch.no_grad():
        broken.head_norm.weight.fill_(math.nan)
    with pytest.raises(RunFailedError, match="not finite"):
        extreme_eigenvalues(CurvatureOperator(broken, pool, matrix="hessian"), 1)
