"""Standard errors, intervals, warnings, paired differences and the sequential rule."""

import logging
import math
from dataclasses import replace

import pytest
import torch

from raysweep.errors import DataError
from raysweep.flatness import compare, fisher_trace
from raysweep.flatness.inputs import keys
from raysweep.flatness.trace.estimate import (
    InputTraces,
    doubt,
    effective_sample_size,
    ratio,
    reaches,
    relative_error,
    summarise,
)
from raysweep.flatness.trace.fisher import FIRST_LOOK, input_traces, next_look
from raysweep.flatness.trace.interval import Z95, deviate, interval, skewness_of
from raysweep.flatness.trace.regression import adjusted
from raysweep.flatness.vectors import Drawing

ONES = torch.ones(1000, dtype=torch.float64)


@pytest.fixture(scope="module")
def world(make_model, make_ids):
    """A model whose inputs share their trace evenly, inputs, and the exact trace at each."""
    model = make_model(noise=0.15)
    ids, positions = make_ids(64, 4)
    exact = input_traces(model, ids, positions, vectors="exact").values.sum(dim=1)
    return model, ids, positions, exact


def test_ratio_is_the_mean_where_weights_are_one():
    x = torch.rand(1000, dtype=torch.float64)
    found = ratio(x, ONES)
    assert found.value == pytest.approx(x.mean().item(), rel=1e-12)
    assert found.standard_error == pytest.approx(x.std().item() / math.sqrt(1000), rel=1e-12)
    assert math.isnan(ratio(x[:1], ONES[:1]).standard_error)


def test_ratios_standard_error_is_the_true_one():
    generator = torch.Generator().manual_seed(0)
    m = torch.randint(1, 5, (2000, 200), generator=generator).double()
    x = m * (1 + torch.rand(2000, 200, generator=generator, dtype=torch.float64))
    found = [ratio(a, b) for a, b in zip(x, m, strict=True)]
    values = torch.tensor([f.value for f in found])
    stated = torch.tensor([f.standard_error for f in found])
    assert stated.mean() / values.std() == pytest.approx(1, abs=4 / math.sqrt(4000))


def test_pools_standard_error_holds_the_inputs_fixed(world):
    model, ids, positions, exact = world
    estimates = [fisher_trace(model, ids, positions, draws=3, seed=seed) for seed in range(60)]
    values = torch.tensor([e.value for e in estimates], dtype=torch.float64)
    stated = torch.tensor([e.pool_standard_error for e in estimates])
    assert stated.square().mean().sqrt() / values.std() == pytest.approx(1, abs=4 / math.sqrt(120))
    assert abs(values.mean() - exact.mean()) < 4 * values.std() / math.sqrt(60)
    assert all(e.pool_standard_error < e.standard_error for e in estimates)
    assert fisher_trace(model, ids, positions).pool_standard_error is None
    assert fisher_trace(model, ids, positions, vectors="exact").pool_standard_error == 0


def test_doubt_says_why():
    assert "10 inputs are too few" in doubt(ONES[:10], ONES[:10])
    heavy = ONES.clone()
    heavy[0] = 200.0
    assert "one of 1000 inputs makes 17 % of the sum of absolute values" in doubt(heavy, ONES)
    # Of −201 + 999 the largest is 201/1199 of the sizes.
    assert "one of 1000 inputs makes 17 %" in doubt(heavy - 401 * (heavy > 1), ONES)
    skewed = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).pow(-0.6)
    assert "skewness" in doubt(skewed, ONES)
    assert doubt(1 + ONES, ONES) is None
    assert doubt(torch.rand(1000, dtype=torch.float64), ONES) is None
    assert effective_sample_size(heavy) == pytest.approx(1199**2 / (40000 + 999))


def test_an_interval_allows_for_skewness():
    """It ends where Hall's polynomial of the deviate has the normal quantiles."""
    low, high = interval(3.0, 0.5, n=400, skewness=0.0)
    assert (low, high) == pytest.approx((3 - Z95 / 2, 3 + Z95 / 2))
    for skewness in (-4.0, -1e-9, 0.5, 4.0):
        low, high = interval(3.0, 0.5, n=400, skewness=skewness)
        assert low < 3 < high
        for end, quantile in ((low, Z95), (high, -Z95)):
            t, scaled = (3.0 - end) / 0.5, skewness / 20
            polynomial = t + scaled * t**2 / 3 + scaled**2 * t**3 / 27 + scaled / 6
            assert polynomial == pytest.approx(quantile, abs=1e-6)
            assert deviate(3.0 - end, 0.5, n=400, skewness=skewness) == pytest.approx(quantile, abs=1e-6)
    up, down = interval(0.0, 1.0, n=400, skewness=4.0), interval(0.0, 1.0, n=400, skewness=-4.0)
    assert up == pytest.approx((-down[1], -down[0]))
    assert up[1] > Z95 > -up[0]
    assert all(math.isnan(end) for end in interval(1.0, math.nan, n=1, skewness=0.0))
    assert (deviate(0.0, 0.0, n=9, skewness=1.0), deviate(2.0, 0.0, n=9, skewness=1.0)) == (0, math.inf)


def test_skewness_is_that_of_the_residuals():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1000, generator=generator, dtype=torch.float64).pow(3)
    centred = x - x.mean()
    expected = (centred**3).mean() / (centred**2).mean() ** 1.5
    assert skewness_of(x, ONES) == pytest.approx(expected.item())
    assert skewness_of(x, 2 * ONES) == pytest.approx(expected.item())
    assert skewness_of(-5 * x, ONES) == pytest.approx(-expected.item())
    # Values in proportion to their weights have no residuals.
    assert skewness_of(3 * (1 + x).round(), (1 + x).round()) == 0


def known_at(values, control):
    """Return values of inputs [n, 2] with a control, as if they had been measured."""
    return InputTraces(
        names=("token_embedding.weight", "decoder.bias"),
        values=values,
        excluded=(),
        weights=torch.ones(len(values), dtype=torch.float64),
        spread=None,
        control=control,
        keys=torch.arange(len(values)),
        drawn=Drawing(kind="rademacher", draws=1, seed=0, start=0),
        method="ghost norms",
    )


def test_what_is_doubted_is_what_is_averaged():
    """Variance that the regression takes off is no reason for doubt."""
    generator = torch.Generator().manual_seed(0)
    even = 10 + torch.rand(600, generator=generator, dtype=torch.float64)
    heavy = (2 * torch.randn(600, 1, generator=generator, dtype=torch.float64)).exp()
    heavy -= heavy.mean()
    parts = torch.stack([even, heavy[:, 0]], dim=1)
    taken_off = summarise(known_at(parts, heavy))
    assert doubt(taken_off.plain, torch.ones(600)) is not None
    assert taken_off.warning is None
    without = summarise(known_at(parts, None))
    assert without.warning == doubt(without.plain, torch.ones(600))


def test_parts_of_an_adjusted_trace_add_up_to_it(world):
    model, ids, positions, _ = world
    estimate = fisher_trace(model, ids.repeat(6, 1), positions.repeat(6))
    plain = estimate.plain.mean().item()
    assert abs(estimate.value - plain) > 1e-3 * plain
    for parts in (estimate.per_group, estimate.per_parameter):
        assert sum(part.value for part in parts.values()) == pytest.approx(estimate.value, rel=1e-10)


def test_a_sum_that_is_not_positive_reaches_nothing(monkeypatch, caplog):
    below = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 2
    assert doubt(below, ONES) is None
    assert doubt(-below, ONES, positive=True) is None
    assert "add up to -1" in doubt(below, ONES, positive=True)
    even = torch.tensor([1.0, -1.0]).repeat(500).double()
    assert "add up to 0" in doubt(even, ONES, positive=True)
    for value in (-1.0, 0.0):
        assert math.isnan(relative_error(value, 0.1))
        assert not reaches(0.5, relative_error(value, 0.1), None)
    assert relative_error(1.0, 0.1) == 0.1
    assert reaches(0.1, 0.1, None)
    assert not reaches(0.1, 0.1, "few inputs")

    def given(model, ids, positions, *, start, **options):
        rows = (below * sign)[start : start + len(ids)]
        return known_at(torch.stack([rows, 0 * rows], dim=1), None)

    monkeypatch.setattr("raysweep.flatness.trace.fisher.input_traces", given)
    ids, positions = torch.zeros(1000, 2, dtype=torch.int64), torch.zeros(1000, dtype=torch.int64)
    sign = -1
    assert fisher_trace(None, ids, positions, target_rse=0.05).reached
    sign = 1
    estimate = fisher_trace(None, ids, positions, target_rse=0.05)
    assert (estimate.n, estimate.reached) == (1000, False)
    assert math.isnan(estimate.relative_standard_error)
    assert "a trace is positive" in caplog.text


def test_a_doubtful_estimate_says_so(world, caplog):
    model, ids, positions, _ = world
    few = fisher_trace(model, ids[:8], positions[:8])
    assert "8 inputs are too few" in few.warning
    assert few.warning in caplog.text
    skewness = skewness_of(few.per_input, few.weights)
    assert few.interval == interval(few.value, few.standard_error, n=8, skewness=skewness)
    assert abs(skewness) > 0.1


def test_a_model_that_is_certain_has_a_trace_of_zero_and_no_interval(make_model, make_ids):
    model = make_model(dtype=torch.float32)
    with torch.no_grad():
        model.decoder.bias[0] = 1e4
    ids, positions = make_ids(64, 4)
    for options in ({}, {"target_rse": 0.1}):
        estimate = fisher_trace(model, ids, positions, **options)
        assert (estimate.value, estimate.standard_error) == (0, 0)
        assert math.isnan(estimate.relative_standard_error)
        assert "all values are zero" in estimate.warning
        assert (estimate.effective_sample_size, estimate.largest_share) == (64, 1 / 64)
    assert estimate.reached is False


def skewed(n, sigma):
    generator = torch.Generator().manual_seed(3)
    return (sigma * torch.randn(1000, n, generator=generator, dtype=torch.float64)).exp()


@pytest.mark.parametrize(("sigma", "target"), [(0.9, 0.02), (1.2, 0.07)])
def test_the_rule_holds_what_it_says_on_skewed_values(sigma, target):
    """At a small target, and at one that the first look reaches."""
    assert 0.93 <= coverage(skewed(6000, sigma), math.exp(sigma**2 / 2), 1000, target) <= 0.97


def test_comparison_is_that_of_paired_values(world, make_model):
    model, ids, positions, _ = world
    near, far = make_model(noise=0.15), make_model(noise=0.25)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter.mul_(1.01)
    a, b, c = (fisher_trace(m, ids, positions, seed=7) for m in (model, near, far))
    contrasts = compare([a, b, c])
    assert [(x.first, x.second) for x in contrasts] == [(0, 1), (0, 2), (1, 2)]
    apart = b.per_input - a.per_input
    assert contrasts[0].difference == pytest.approx(b.value - a.value, rel=1e-9)
    assert contrasts[0].standard_error == pytest.approx(apart.std().item() / 8, rel=1e-9)
    assert contrasts[0].correlation > 0.99
    assert contrasts[0].standard_error < 0.1 * math.hypot(a.standard_error, b.standard_error)
    low, high = contrasts[0].interval
    assert low < contrasts[0].difference < high
    assert contrasts[0].skewness == pytest.approx(skewness_of(apart, torch.ones(64)), rel=1e-6)
    # Zero is an end of the interval where the deviate is a normal quantile.
    at_the_end = replace(contrasts[0], difference=contrasts[0].difference - low)
    assert at_the_end.interval[0] == pytest.approx(0, abs=1e-9)
    assert at_the_end.deviate == pytest.approx(Z95)
    assert contrasts[0].n == 64


def test_only_the_same_inputs_and_vectors_are_compared(world):
    model, ids, positions, _ = world
    a = fisher_trace(model, ids, positions)
    short = fisher_trace(model, ids[:40], positions[:40])
    [contrast] = compare([a, short])
    assert (contrast.n, contrast.difference) == (40, pytest.approx(0, abs=1e-9))
    others = [
        fisher_trace(model, ids, positions, seed=1),
        fisher_trace(model, ids, positions, draws=2),
        fisher_trace(model, ids, positions, vectors="label"),
        fisher_trace(model, ids, positions, start=1),
        fisher_trace(model, ids, torch.zeros_like(positions)),
        fisher_trace(model, ids.flip(0), positions.flip(0)),
    ]
    for other in others:
        with pytest.raises(DataError, match="estimates 0 and 1 are of other inputs or other test vectors"):
            compare([a, other])


def test_only_traces_of_the_same_parameters_are_compared(make_model, make_ids):
    ids, positions = make_ids(64, 4)
    whole, part = make_model(), make_model()
    part.decoder.bias.requires_grad_(False)
    estimates = [fisher_trace(model, ids, positions) for model in (whole, part)]
    with pytest.raises(DataError, match=r"leave out other parameters \(none; decoder.bias\)"):
        compare(estimates)


@pytest.mark.parametrize("several", [False, True])
def test_keys_are_those_of_one_word_after_the_other(make_ids, several):
    """Estimates of different runs are paired by their inputs' keys, so these must stay what they are."""
    ids, positions = make_ids(64, 6)
    if several:
        positions = torch.stack([positions, torch.full_like(positions, -1)], dim=1)
    found = keys(ids, positions, 5)
    for sentence, where, key in zip(ids.tolist(), positions.reshape(64, -1).tolist(), found, strict=True):
        hashed, power = 0, 1
        for t, token in enumerate(sentence):
            power = power * 0x9E3779B97F4A7C15 % 2**64
            if token != 5:
                word = 2 * token + (t in where) + 1
                product = power * (word ^ word << 17) % 2**64
                signed = product - (product >> 63 << 64)
                hashed = (hashed + (signed ^ signed >> 29)) % 2**64
        assert hashed == int(key) % 2**64


def test_padding_is_no_part_of_an_inputs_key(make_ids):
    ids, positions = make_ids(64, 4)
    hidden = ids.scatter(1, positions[:, None], 6)
    found = keys(hidden, positions, 5)
    assert len(set(found.tolist())) == len(set(map(tuple, hidden.tolist())))
    wider = torch.cat([hidden, torch.full((64, 3), 5)], dim=1)
    assert torch.equal(keys(wider, positions, 5), found)
    assert torch.equal(keys(hidden, torch.stack([positions, torch.full((64,), -1)], dim=1), 5), found)


def rule(values, target, control=None):
    """The sequential rule on the values of a pool, as `fisher_trace` follows it."""
    done = FIRST_LOOK
    while True:
        taken = values[:done]
        if control is not None:
            taken = adjusted(taken, torch.ones_like(taken), control[:done])
        found = ratio(taken, torch.ones_like(taken))
        rse = found.standard_error / found.value
        trusted = doubt(taken, torch.ones_like(taken)) is None
        if (rse <= target and trusted) or done == len(values):
            return found, taken
        done = next_look(done, rse, target, len(values))


def test_the_rule_stops_where_it_says(world, caplog):
    model, ids, positions, _ = world
    pool = torch.randint(0, 64, (8000,), generator=torch.Generator().manual_seed(0))
    estimate = fisher_trace(model, ids[pool], positions[pool], target_rse=0.008)
    assert estimate.reached
    assert estimate.relative_standard_error <= 0.008
    assert estimate.target_rse == 0.008
    assert FIRST_LOOK < estimate.n < 8000
    traces = input_traces(model, ids[pool], positions[pool])
    followed, _ = rule(traces.values.sum(dim=1), 0.008, traces.control)
    assert estimate.value == pytest.approx(followed.value, rel=1e-10)
    assert estimate.n == followed.n
    with caplog.at_level(logging.WARNING):
        short = fisher_trace(model, ids[pool[:600]], positions[pool[:600]], target_rse=0.001)
    assert not short.reached
    assert short.n == 600
    assert "not 0.001; give more" in caplog.text


def holds(found, taken, truth):
    skewness = skewness_of(taken, torch.ones_like(taken))
    low, high = interval(found.value, found.standard_error, n=found.n, skewness=skewness)
    return low <= truth <= high


def coverage(values, truth, replicates, target, control=None):
    pools = values.view(replicates, -1)
    known = [None] * replicates if control is None else control.view(*pools.shape, -1)
    return sum(holds(*rule(v, target, f), truth) for v, f in zip(pools, known, strict=True)) / replicates


@pytest.fixture(scope="module")
def replicates(world):
    """Values and controls of 1,000 pools of inputs drawn from the world's, one vector each [1000, 2048]."""
    model, ids, positions, exact = world
    rows = torch.randint(0, 64, (1000 * 2048,), generator=torch.Generator().manual_seed(9))
    # Test vectors are keyed by number: 4,000 values of every input are a reservoir of independent draws.
    traces = input_traces(model, ids.repeat(4000, 1), positions.repeat(4000), seed=21, batch=4096)
    table = traces.values.sum(dim=1).view(4000, 64)
    # The reservoir's own mean of a statistic is not zero, but it is the truth for what is drawn from it.
    control = traces.control.view(4000, 64, -1)
    control = control - control.mean(dim=(0, 1))
    draw = torch.randint(0, 4000, rows.shape, generator=torch.Generator().manual_seed(10))
    values, known = table[draw, rows].view(1000, 2048), control[draw, rows].view(1000, 2048, -1)
    return values, known, exact.mean().item(), table.mean().item()


@pytest.mark.parametrize("controlled", [False, True])
def test_intervals_cover_what_they_say(replicates, controlled):
    """95 % intervals of fixed n and of the sequential rule cover 93–97 % of 1,000 replicates."""
    values, control, exact, truth = replicates
    assert abs(truth - exact) < 0.01 * exact
    known = control if controlled else None
    for n in (256, 2048):
        inside = 0
        for k, v in enumerate(values):
            ones = torch.ones(n, dtype=torch.float64)
            taken = adjusted(v[:n], ones, None if known is None else known[k, :n])
            inside += holds(ratio(taken, ones), taken, truth)
        assert 0.93 <= inside / len(values) <= 0.97
    # Pools of 4,096: the rule takes between a half and all.
    for target in (0.0085, 0.0095) if controlled else (0.0145, 0.017):
        assert 0.93 <= coverage(values, truth, 500, target, known) <= 0.97
