"""The Fisher trace: unbiased, with a true standard error, keyed by its inputs' numbers."""

import math

import numpy as np
import pytest
import torch

from raysweep.errors import ConfigError, DataError
from raysweep.flatness import fisher_trace, hessian_trace
from raysweep.flatness.trace.fisher import draw_positions, input_traces
from raysweep.flatness.trace.regression import adjusted

POOL = 64
ONES = torch.ones(256, dtype=torch.float64)


@pytest.fixture(scope="module")
def world(make_model, make_ids):
    """A model, a pool of inputs, and the exact trace at each of them.

    The weights are small, so that no single input dominates: normal intervals presuppose it.
    """
    model = make_model(noise=0.15)
    ids, positions = make_ids(POOL, 4)
    exact = input_traces(model, ids, positions, vectors="exact").values.sum(dim=1)
    return model, ids, positions, exact


@pytest.mark.parametrize("vectors", ["rademacher", "gaussian", "label"])
def test_unbiased_at_every_input(world, vectors):
    model, ids, positions, exact = world
    replicates = 200
    values = (
        input_traces(
            model,
            ids.repeat(replicates, 1),
            positions.repeat(replicates),
            seed=11,
            vectors=vectors,
            batch=512,
        )
        .values.sum(dim=1)
        .view(replicates, POOL)
    )
    z = (values.mean(dim=0) - exact) / (values.std(dim=0) / math.sqrt(replicates))
    pooled = values.mean(dim=1) - exact.mean()
    assert abs(pooled.mean() / pooled.std()) * math.sqrt(replicates) < 4
    if vectors != "label":
        # Bounded relative variance: the mean of 200 is near normal at each input, which labels are not.
        assert z.abs().max() < 4.5  # the largest of 64
        assert (values.var(dim=0) / exact.square()).mean() < 2


@pytest.mark.parametrize("controlled", [False, True])
def test_stated_standard_error_is_the_true_one(world, controlled):
    """Replicates of n inputs drawn from the pool: spread, and coverage of the 95 % interval."""
    model, ids, positions, exact = world
    n, replicates = 256, 200
    rows = torch.randint(0, POOL, (replicates * n,), generator=torch.Generator().manual_seed(5))
    traces = input_traces(model, ids[rows], positions[rows], seed=12, batch=512)
    per_input, control = traces.values.sum(1).view(replicates, n), traces.control.view(replicates, n, -1)
    if controlled:
        per_input = torch.stack([adjusted(x, ONES, f) for x, f in zip(per_input, control, strict=True)])
    values = per_input.mean(dim=1)
    errors = per_input.std(dim=1) / math.sqrt(n)
    z = (values.mean() - exact.mean()) / (values.std() / math.sqrt(replicates))
    assert abs(z) < 4
    assert errors.square().mean() / values.var() == pytest.approx(1, abs=4 * math.sqrt(2 / replicates))
    covered = ((values - exact.mean()).abs() < 1.96 * errors).double().mean()
    assert 0.90 < covered < 0.985
    first = fisher_trace(model, ids[rows[:n]], positions[rows[:n]], seed=12)
    if controlled:
        assert first.value == pytest.approx(values[0].item(), rel=1e-10)
        assert first.standard_error == pytest.approx(errors[0].item(), rel=1e-10)
        assert first.standard_error < 0.8 * first.plain_standard_error
    else:
        assert first.plain_standard_error == pytest.approx(errors[0].item(), rel=1e-10)


def test_draws_are_averaged_and_lower_the_variance(world):
    model, ids, positions, exact = world
    many = fisher_trace(model, ids, positions, draws=64, seed=2)
    one = fisher_trace(model, ids, positions, draws=1, seed=2)
    assert (many.per_input - exact).square().mean() < (one.per_input - exact).square().mean() / 16


def test_parts_add_up(world):
    model, ids, positions, exact = world
    estimate = fisher_trace(model, ids, positions, vectors="exact")
    assert estimate.value == pytest.approx(exact.mean().item(), rel=1e-12)
    assert list(estimate.per_group) == ["embedding", "layers.0", "layers.1", "head"]
    for parts in (estimate.per_group, estimate.per_parameter):
        assert sum(part.value for part in parts.values()) == pytest.approx(estimate.value, rel=1e-12)
    assert estimate.per_input.shape == (POOL,)
    assert estimate.n == POOL
    assert 1 / POOL <= estimate.largest_share <= 1
    assert 1 <= estimate.effective_sample_size <= POOL
    assert estimate.effective_sample_size >= 1 / estimate.largest_share


def test_values_depend_on_the_inputs_number_alone(world):
    model, ids, positions, _ = world
    whole = fisher_trace(model, ids, seed=4)
    parts = [fisher_trace(model, ids[k : k + 16], seed=4, start=k, batch=7) for k in range(0, POOL, 16)]
    torch.testing.assert_close(
        torch.cat([part.per_input for part in parts]), whole.per_input, rtol=1e-10, atol=0
    )
    again = fisher_trace(model, ids, seed=4)
    assert torch.equal(again.per_input, whole.per_input)
    other = fisher_trace(model, ids, positions, seed=5)
    assert not torch.allclose(other.per_input, whole.per_input)


def test_the_word_at_the_masked_position_does_not_matter(world):
    model, ids, positions, _ = world
    other = ids.scatter(1, positions[:, None], (ids.gather(1, positions[:, None]) + 1) % 5)
    a, b = (fisher_trace(model, x, positions).per_input for x in (ids, other))
    assert torch.equal(a, b)


def test_common_random_numbers_narrow_a_difference(world, make_model):
    model, ids, positions, _ = world
    near = make_model(noise=0.15)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter.mul_(1.01)
    a, b = (fisher_trace(m, ids, positions, seed=7).per_input for m in (model, near))
    c = fisher_trace(near, ids, positions, seed=8).per_input
    assert (a - b).var() < (a - c).var() / 10


def test_positions_are_uniform_over_words(make_ids):
    ids, _ = make_ids(8000, 4)
    positions = draw_positions(ids, 5, seed=0)
    lengths = (ids != 5).sum(1)
    for length in (1, 2, 3, 4):
        counts = positions[lengths == length].bincount(minlength=length).double()
        assert len(counts) == length
        expected = counts.sum() / length
        assert ((counts - expected) / expected.sqrt()).abs().max() < 4


def test_mode_and_gradients_are_left_alone(world):
    model, ids, positions, _ = world
    model.train()
    model.layers[0].eval()
    fisher_trace(model, ids, positions)
    assert model.training
    assert not model.layers[0].training
    assert model.layers[1].training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_dropout_is_off(world):
    model, ids, positions, _ = world
    model.train()
    assert model.dropout.p > 0
    assert fisher_trace(model, ids, positions).value == fisher_trace(model, ids, positions).value


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"positions": torch.tensor([0, 3])}, DataError, "sentence 1: masked position 3 is not one of its 2"),
        ({"positions": torch.tensor([-1, 0])}, DataError, "sentence 0"),
        ({"positions": torch.tensor([0])}, DataError, "one each"),
        ({"ids": torch.zeros(0, 4, dtype=torch.long), "positions": None}, DataError, "at least one sentence"),
        ({"ids": torch.zeros(2, 4)}, DataError, "ids of torch.float32: give whole numbers, such as ids.long"),
        ({"ids": torch.zeros(2, 4), "positions": None}, DataError, "ids of torch.float32"),
        ({"ids": torch.ones(2, 4).bool()}, DataError, "ids of torch.bool"),
        ({"ids": [[0, 1], [2, 3]]}, DataError, r"ids of type list: give a tensor, such as torch.as_tensor"),
        ({"ids": np.zeros((2, 4), np.int64), "positions": None}, DataError, "ids of type ndarray"),
        ({"positions": torch.zeros(2)}, DataError, "positions of torch.float32: give whole numbers"),
        ({"positions": [0, 1]}, DataError, "positions of type list: give a tensor"),
        ({"positions": np.zeros(2, np.int64)}, DataError, "positions of type ndarray"),
        ({"draws": 2.5}, ConfigError, "draws=2.5: give a whole number"),
        ({"batch": 2.5}, ConfigError, "batch=2.5: give a whole number"),
        ({"seed": 0.5, "positions": None}, ConfigError, "seed=0.5: give a whole number"),
        ({"start": 1.5, "positions": None}, ConfigError, "start=1.5: give a whole number"),
        ({"draws": 0}, ConfigError, "draws=0"),
        ({"batch": 0}, ConfigError, "batch=0"),
        ({"vectors": "gauss"}, ConfigError, "use one of rademacher, gaussian, label, exact"),
        ({"target_rse": 1.0}, ConfigError, "target_rse=1.0"),
    ],
)
def test_malformed_inputs(world, change, error, message):
    ids = torch.tensor([[0, 1, 2, 3], [4, 1, 5, 5]])
    arguments = {"ids": ids, "positions": torch.tensor([0, 1]), **change}
    with pytest.raises(error, match=message):
        fisher_trace(world[0], **arguments)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_whole_numbers_of_any_width_are_the_same_inputs(world, dtype):
    model, ids, positions, _ = world
    expected = fisher_trace(model, ids, positions)
    found = fisher_trace(model, ids.to(dtype), positions.to(dtype))
    assert torch.equal(found.per_input, expected.per_input)
    assert torch.equal(found.keys, expected.keys)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_below_zero_key_inputs_too(make_model, make_ids, dtype):
    """Whole numbers of either sign: input 0 is that whatever comes before it."""
    model = make_model(dtype=dtype)
    ids, positions = make_ids(8, 4)
    whole = fisher_trace(model, ids, positions, seed=-1, start=-4)
    part = fisher_trace(model, ids[4:], positions[4:], seed=-1)
    torch.testing.assert_close(whole.per_input[4:], part.per_input, rtol=1e-5, atol=0)
    assert not torch.allclose(part.per_input, fisher_trace(model, ids[4:], positions[4:]).per_input)


@pytest.mark.parametrize("positions", [None, torch.tensor([0])])
def test_a_model_that_does_not_say_what_padding_is(positions):
    with pytest.raises(ConfigError, match=r"Linear has no pad_id: .*HuggingFaceMaskedLM\(model, mask_id="):
        fisher_trace(torch.nn.Linear(2, 2), torch.tensor([[0, 1]]), positions)


def test_an_estimate_is_shown_in_one_line(world):
    model, ids = world[:2]
    for estimate in (fisher_trace(model, ids[:64]), hessian_trace(model, ids[:8])):
        text = repr(estimate)
        assert text.startswith(f"{type(estimate).__name__}(value={estimate.value:.6g}, standard_error=")
        assert f", n={estimate.n}" in text
        assert str(estimate) == text
        assert "\n" not in text
        assert "tensor" not in text
