"""The Hessian trace: against dense Hessians, and what soft labels are worth."""

import copy
import math

import pytest
import torch

from helpers.dense_oracle import flat, gauss_newton, hessians, tiny_lstm, tiny_model
from raysweep.errors import DataError
from raysweep.flatness.curvature.loss import gradient_norm
from raysweep.flatness.curvature.relative import scaled_traces
from raysweep.flatness.curvature.sharpness import sharpness
from raysweep.flatness.directions import Directions
from raysweep.flatness.inputs import draw_positions
from raysweep.flatness.pool import Pool
from raysweep.flatness.theory.bartlett import bartlett_terms
from raysweep.flatness.trace.fisher import fisher_trace, input_traces
from raysweep.flatness.trace.hessian import hessian_trace, residual_traces
from raysweep.languages.hmm import HMM
from raysweep.models.encoder import EncoderConfig

WORDS = 5


@pytest.fixture(scope="module")
def world(make_ids):
    """A model far from its language, inputs, exact conditionals, and the dense matrices of both labels."""
    model = tiny_model()
    ids, positions = make_ids(3, 3, seed=2)
    generator = torch.Generator().manual_seed(4)
    log_probs = torch.randn(3, WORDS, generator=generator, dtype=torch.float64).mul(2).log_softmax(1)
    masked = Pool.of(model, ids, positions).masked
    soft = torch.nn.functional.pad(log_probs.exp(), (0, model.total_vocabulary - WORDS))
    hard = torch.nn.functional.one_hot(ids[torch.arange(3), positions], model.total_vocabulary).double()
    return {
        "model": model,
        "ids": ids,
        "positions": positions,
        "log_probs": {"soft": log_probs, "hard": None},
        "gauss_newton": gauss_newton(model, masked, positions),
        "hessian": {
            "soft": hessians(model, masked, positions, soft),
            "hard": hessians(model, masked, positions, hard),
        },
    }


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_the_residual_is_the_dense_quadratic_form(world, labels):
    model = world["model"]
    pool = Pool.of(model, world["ids"], world["positions"], log_probs=world["log_probs"][labels])
    found = residual_traces(model, pool, seed=5, start=100)
    directions = Directions(model, seed=5)
    for row, (h, g) in enumerate(zip(world["hessian"][labels], world["gauss_newton"], strict=True)):
        at = directions.at(100 + row)
        v = flat(at[name] for name, _ in model.named_parameters())
        assert found[row].item() == pytest.approx((v @ (h - g) @ v).item(), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_unbiased(world, labels):
    """z-test of each input's mean over many directions; nothing stops early."""
    model, replicates, log_probs = world["model"], 500, world["log_probs"][labels]
    pool = Pool.of(
        model,
        world["ids"].repeat(replicates, 1),
        world["positions"].repeat(replicates),
        log_probs=None if log_probs is None else log_probs.repeat(replicates, 1),
    )
    values = residual_traces(model, pool, batch=300).view(replicates, 3)
    truth = (world["hessian"][labels] - world["gauss_newton"]).diagonal(dim1=1, dim2=2).sum(1)
    error = values.std(dim=0) / math.sqrt(len(values))
    assert (((values.mean(dim=0) - truth) / error).abs() < 4).all()
    # The whole, with the Gauss-Newton part exact, is the trace of the dense Hessian.
    exact = input_traces(model, world["ids"], world["positions"], vectors="exact").values.sum(1)
    dense = world["gauss_newton"].diagonal(dim1=1, dim2=2).sum(1)
    torch.testing.assert_close(exact, dense, rtol=1e-7, atol=1e-7)


def test_a_saturated_model_has_no_residual(world):
    """The model's own conditionals as labels: the Hessian is the Gauss-Newton matrix, without noise."""
    model = world["model"]
    masked = Pool.of(model, world["ids"], world["positions"]).masked
    with torch.no_grad():
        logits = model(masked, world["positions"])
        # No weight on what is no word, so that the conditionals are of words alone.
        model.decoder.bias[WORDS:] -= 1e4
        own = model(masked, world["positions"]).log_softmax(1)[:, :WORDS]
        probabilities = torch.nn.functional.pad(own.exp(), (0, logits.shape[1] - WORDS))
    try:
        estimate = hessian_trace(model, world["ids"], world["positions"], log_probs=own)
        assert estimate.residual.value == pytest.approx(0, abs=1e-9 * estimate.gauss_newton.value)
        assert estimate.value == pytest.approx(estimate.gauss_newton.value, rel=1e-9)
        one = masked[2:], world["positions"][2:]
        dense = hessians(model, *one, probabilities[2:])
        torch.testing.assert_close(dense, gauss_newton(model, *one), rtol=1e-7, atol=1e-7)
    finally:
        with torch.no_grad():
            model.decoder.bias[WORDS:] += 1e4


def test_parts_are_paired_by_input(make_model, make_ids):
    model = make_model()
    ids, positions = make_ids(40, 4)
    estimate = hessian_trace(model, ids, positions, seed=1, draws=2)
    parts = input_traces(model, ids, positions, seed=1, draws=2).values.sum(1)
    residual = residual_traces(model, Pool.of(model, ids, positions), seed=1, draws=2)
    torch.testing.assert_close(estimate.per_input, parts + residual, rtol=1e-12, atol=1e-12)
    assert estimate.value == pytest.approx(estimate.per_input.mean().item())
    assert estimate.standard_error == pytest.approx(estimate.per_input.std().item() / math.sqrt(40))
    assert estimate.gauss_newton.value == pytest.approx(parts.mean().item())
    assert (estimate.n, estimate.residual.n) == (40, 40)


def test_the_gauss_newton_part_is_the_fisher_trace(make_model, make_ids):
    """Also with so many inputs that the regression on control statistics acts."""
    model = make_model()
    ids, positions = make_ids(320, 4)
    estimate = hessian_trace(model, ids, positions, seed=1)
    trace = fisher_trace(model, ids, positions, seed=1)
    assert trace.standard_error < trace.plain_standard_error
    assert estimate.gauss_newton.value == pytest.approx(trace.value, rel=1e-10)
    assert estimate.gauss_newton.standard_error == pytest.approx(trace.standard_error, rel=1e-10)
    residual = residual_traces(model, Pool.of(model, ids, positions), seed=1)
    torch.testing.assert_close(estimate.per_input, trace.per_input + residual, rtol=1e-10, atol=1e-10)


def test_inputs_are_numbered(make_model, make_ids):
    model = make_model()
    ids, positions = make_ids(12, 4)
    pool = Pool.of(model, ids, positions)
    whole = residual_traces(model, pool, batch=5)
    part = residual_traces(model, Pool.of(model, ids[4:9], positions[4:9]), start=4)
    torch.testing.assert_close(whole[4:9], part, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(whole[4:9], residual_traces(model, Pool.of(model, ids[4:9], positions[4:9])))


def test_float32_is_enough(make_model, make_ids):
    ids, positions = make_ids(24, 4)
    model = make_model(dtype=torch.float32)
    single = hessian_trace(model, ids, positions)
    double = hessian_trace(copy.deepcopy(model).double(), ids, positions)
    spread = double.per_input.std().item()
    torch.testing.assert_close(single.per_input, double.per_input, rtol=1e-4, atol=1e-4 * spread)


def test_the_model_is_left_as_it_was(make_model, make_ids):
    model = make_model().train()
    model.layers[0].eval()
    before = torch.get_rng_state()
    hessian_trace(model, *make_ids(4, 4))
    assert model.training
    assert not model.layers[0].training
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_conditionals_must_fit(make_model, make_ids):
    ids, positions = make_ids(4, 4)
    with pytest.raises(DataError, match=r"log_probs of shape \[4, 3\]: give those of 5 words"):
        hessian_trace(make_model(), ids, positions, log_probs=torch.zeros(4, 3))
    with pytest.raises(DataError, match="masked position 7 is not one of its 1 words"):
        Pool.of(make_model(), ids, torch.full((4,), 7))
    with pytest.raises(DataError, match=r"shape \[4, 5\]: give those of 5 words for each of 4 positions of"):
        hessian_trace(make_model(), ids, positions[:, None], log_probs=torch.zeros(4, 5))


def test_soft_labels_cut_the_noise_of_the_residual():
    """Near saturation the residual's variance falls by 30 and more, at fixed seeds."""
    language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,))
    model = EncoderConfig(shape="16/1/1/32", dropout=0.0).build(language, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(300):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1.0, (300 - step) / 100)
        ids = language.sample(64, seed=1, start=64 * step)
        positions = draw_positions(ids, language.pad_id, seed=step)
        pool = Pool.of(model, ids, positions, log_probs=language.conditionals_at(ids, positions))
        loss = pool.losses(model(pool.masked, pool.positions), torch.arange(64)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ids = language.sample(512, seed=2)
    positions = draw_positions(ids, language.pad_id, seed=0)
    soft = hessian_trace(model, ids, positions, log_probs=language.conditionals_at(ids, positions))
    hard = hessian_trace(model, ids, positions)
    assert soft.gauss_newton == hard.gauss_newton
    assert (hard.residual.standard_error / soft.residual.standard_error) ** 2 > 30
    error = math.hypot(hard.residual.standard_error, soft.residual.standard_error)
    assert abs(hard.residual.value - soft.residual.value) < 4 * error
    # With hard labels the noise of the residual is as large as the trace's own, and more.
    assert soft.residual.standard_error < 0.3 * soft.gauss_newton.standard_error
    assert hard.residual.standard_error > soft.gauss_newton.standard_error


@pytest.mark.slow
def test_intervals_cover_the_dense_trace(world):
    """Of 2000 replicates of 1000 inputs, 93 to 97 % of the 95 % intervals hold the truth.

    Replicates are drawn from 100,000 values, whose own mean is off by a tenth of a replicate's error.  The
    residual's values have a kurtosis of about 18, with these directions as with any random signs: of
    intervals from 60 inputs only some 91 % hold it.
    """
    size, n = 100_000, 1000
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 3, (size,), generator=generator)
    estimate = hessian_trace(
        world["model"],
        world["ids"][drawn],
        world["positions"][drawn],
        log_probs=world["log_probs"]["soft"][drawn],
        batch=1000,
    )
    truth = world["hessian"]["soft"].diagonal(dim1=1, dim2=2).sum(dim=1).mean()
    assert abs(estimate.value - truth) < 4 * estimate.standard_error
    held = 0
    for _ in range(2000):
        values = estimate.per_input[torch.randint(0, size, (n,), generator=generator)]
        held += bool((values.mean() - truth).abs() < 1.96 * values.std() / math.sqrt(n))
    assert 0.93 <= held / 2000 <= 0.97


def test_a_doubtful_interval_says_so(make_model, make_ids, caplog):
    ids, positions = make_ids(8, 4)
    estimate = hessian_trace(make_model(), ids, positions)
    assert "8 inputs are too few" in estimate.warning
    assert estimate.warning in caplog.text
    assert estimate.method == "ghost norms"
    low, high = estimate.interval
    assert low < estimate.value < high


@pytest.fixture(scope="module", params=["pre", "post", "lstm"])
def several(request):
    """Sentences with one, two and three masks, and the dense matrices of each one's masked loss."""
    model = tiny_lstm() if request.param == "lstm" else tiny_model(request.param)
    pad = model.pad_id
    ids = torch.tensor([[1, 4, 0], [3, 2, 3], [2, 0, pad]])
    mask = torch.tensor([[True, False, True], [True, True, True], [False, True, False]])
    generator = torch.Generator().manual_seed(4)
    log_probs = torch.randn(3, 3, WORDS, generator=generator, dtype=torch.float64).mul(2).log_softmax(-1)
    soft = torch.nn.functional.pad(log_probs.exp(), (0, model.total_vocabulary - WORDS))
    hard = torch.nn.functional.one_hot(ids, model.total_vocabulary).double()
    masked = ids.masked_fill(mask, pad + 1)
    size = sum(p.numel() for p in model.parameters())
    dense = {name: torch.zeros(3, size, size, dtype=torch.float64) for name in ("soft", "hard", "fisher")}
    # The loss is a sum over masked words, whose terms are taken one at a time.
    for row, t in mask.nonzero().tolist():
        one = masked[row : row + 1], torch.tensor([t])
        dense["soft"][row] += hessians(model, *one, soft[row, t][None])[0]
        dense["hard"][row] += hessians(model, *one, hard[row, t][None])[0]
        dense["fisher"][row] += gauss_newton(model, *one)[0]
    exact = log_probs.masked_fill(~mask[:, :, None], torch.nan)
    return {"model": model, "ids": ids, "mask": mask, "log_probs": {"soft": exact, "hard": None}, **dense}


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_several_masks_against_the_dense_hessian_of_their_loss(several, labels):
    model, ids, mask = several["model"], several["ids"], several["mask"]
    pool = Pool.of(model, ids, mask, log_probs=several["log_probs"][labels])
    found = residual_traces(model, pool, seed=5, start=100)
    directions = Directions(model, seed=5)
    for row, matrix in enumerate(several[labels] - several["fisher"]):
        at = directions.at(100 + row)
        v = flat(at[name] for name, _ in model.named_parameters())
        assert found[row].item() == pytest.approx((v @ matrix @ v).item(), rel=1e-7, abs=1e-7)
    # The Gauss-Newton part is exact, so the whole is known but for the residual's directions.
    estimate = hessian_trace(
        model, ids, mask, log_probs=several["log_probs"][labels], seed=5, start=100, vectors="exact"
    )
    trace = several["fisher"].diagonal(dim1=1, dim2=2).sum(dim=1)
    torch.testing.assert_close(estimate.per_input, trace + found, rtol=1e-7, atol=1e-7)
    assert estimate.weights.tolist() == [2, 3, 1]
    assert estimate.value == pytest.approx(estimate.per_input.sum().item() / 6)
    assert estimate.gauss_newton.value == pytest.approx(trace.sum().item() / 6, rel=1e-7)


def test_several_masks_are_unbiased(several):
    """z-test of the trace of the masked loss over many directions; nothing stops early."""
    model, replicates, log_probs = several["model"], 100, several["log_probs"]["soft"]
    estimate = hessian_trace(
        model,
        several["ids"].repeat(replicates, 1),
        several["mask"].repeat(replicates, 1),
        log_probs=log_probs.repeat(replicates, 1, 1),
        batch=300,
    )
    truth = several["soft"].diagonal(dim1=1, dim2=2).sum(dim=1)
    values = estimate.per_input.view(replicates, 3)
    error = values.std(dim=0) / math.sqrt(replicates)
    assert (((values.mean(dim=0) - truth) / error).abs() < 4).all()
    total = values.sum(dim=1)
    assert abs(estimate.value - truth.sum() / 6) < 4 * total.std() / math.sqrt(replicates) / 6


def test_positions_and_their_mask_are_the_same_inputs(several):
    model, ids, log_probs = several["model"], several["ids"], several["log_probs"]["soft"]
    listed = torch.tensor([[2, 0, -1], [1, 0, 2], [-1, 1, -1]])
    one, other = (
        hessian_trace(model, ids, at, log_probs=log_probs, vectors="exact")
        for at in (several["mask"], listed)
    )
    torch.testing.assert_close(one.per_input, other.per_input, rtol=1e-9, atol=1e-9)


def test_one_mask_each_by_either_form(make_model, make_ids):
    model = make_model()
    ids, positions = make_ids(12, 4)
    mask = torch.nn.functional.one_hot(positions, 4).bool()
    one, other = (hessian_trace(model, ids, at, vectors="exact") for at in (positions, mask))
    torch.testing.assert_close(one.per_input, other.per_input, rtol=1e-9, atol=1e-9)


def test_measures_of_one_mask_refuse_several(make_model, make_ids):
    model = make_model()
    ids, positions = make_ids(16, 4)
    pool = Pool.of(model, ids, positions[:, None])
    for measure in (sharpness, gradient_norm, scaled_traces, bartlett_terms):
        with pytest.raises(DataError, match=r"positions of shape \[16, 1\]: give one for each sentence"):
            measure(model, pool)
