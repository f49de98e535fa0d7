"""Differences of two traces: paired, adjusted on both sides alike, and separate from unpaired ones."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch

from raysweep.flatness import compare, fisher_trace
from raysweep.flatness.trace import contrast, regression
from raysweep.flatness.trace.contrast import Measured, difference
from raysweep.flatness.trace.regression import FOLDS
from raysweep.models.encoder import Encoder


class Unknown(Encoder):
    """An encoder that might have another head, so that its values have no control."""


@pytest.fixture(scope="module")
def models(make_model):
    """A model, one that is near, and the first again as a class without a control."""
    model = make_model(noise=0.15)
    near = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter.mul_(1.01)
    unknown = copy.deepcopy(model)
    unknown.__class__ = Unknown
    return model, near, unknown


def plain_error(values):
    return values.std().item() / math.sqrt(len(values))


def test_a_short_estimate_beside_a_long_one_is_not_adjusted_on_one_side(models, make_ids):
    """200 inputs are too few for the regression, 1,000 are not."""
    ids, positions = make_ids(1000, 4)
    short = fisher_trace(models[0], ids[:200], positions[:200])
    long = fisher_trace(models[1], ids, positions)
    assert not torch.equal(long.per_input, long.plain)
    [found] = compare([short, long])
    [expected] = compare([short, fisher_trace(models[1], ids[:200], positions[:200])])
    apart = long.plain[:200] - short.plain
    assert found.n == 200
    assert found.difference == pytest.approx(apart.mean().item(), rel=1e-9)
    assert found.standard_error == pytest.approx(plain_error(apart), rel=1e-9)
    assert found.difference == pytest.approx(expected.difference, rel=1e-9)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-9)
    assert found.standard_error < plain_error(long.per_input[:200] - short.per_input) / 3


def test_the_same_weights_with_and_without_a_control_do_not_differ(models, make_ids):
    ids, positions = make_ids(500, 4)
    known, unknown = (fisher_trace(model, ids, positions) for model in (models[0], models[2]))
    assert unknown.control is None
    assert abs(known.value - unknown.value) > 1e-3 * known.value
    for pair in ([known, unknown], [unknown, known]):
        [found] = compare(pair)
        assert found.difference == pytest.approx(0, abs=1e-9 * known.value)
        assert found.standard_error == pytest.approx(0, abs=1e-9 * known.value)


def test_a_regression_on_both_controls_narrows_a_difference(make_model, make_ids):
    ids, positions = make_ids(2000, 4)
    a, b = (fisher_trace(make_model(noise=noise), ids, positions) for noise in (0.15, 0.25))
    [found] = compare([a, b])
    assert found.standard_error < 0.9 * plain_error(b.plain - a.plain)
    assert found.standard_error <= plain_error(b.per_input - a.per_input)
    assert found.difference == pytest.approx(b.value - a.value, abs=found.standard_error)
    assert found.independent == pytest.approx(math.hypot(a.standard_error, b.standard_error))


def oracle(values, weights, control):
    """Return (value, standard error, values left) of a ratio, regressed fold by fold in plain numpy."""
    columns, fold = np.column_stack([weights, control]), np.arange(len(values)) % FOLDS
    left = values.copy()
    for k in range(FOLDS):
        fitted = np.linalg.lstsq(columns[fold != k], values[fold != k], rcond=None)[0]
        left[fold == k] -= control[fold == k] @ fitted[1:]
    n, total = len(left), weights.sum()
    value = left.sum() / total
    return value, np.sqrt(n / (n - 1) * ((left - value * weights) ** 2).sum()) / total, left


def tensors(*arrays):
    return Measured(*(torch.from_numpy(a) for a in arrays))


@pytest.mark.parametrize("same", [False, True])
def test_difference_is_that_of_plain_sums(same):
    """Over the first inputs of both, with two controls that may be one and the same."""
    generator = np.random.default_rng(0)
    weights = generator.integers(1, 4, 800).astype(float)
    f = generator.normal(size=(800, 2))
    g = f if same else f + generator.normal(size=(800, 2))
    common = generator.exponential(size=800)
    x = weights + common + f @ [1.0, 0.5]
    y = 2 * weights + common + g @ [0.3, 2.0] + 0.1 * generator.normal(size=800)
    found = difference(tensors(x[:600], weights[:600], f[:600]), tensors(y, weights, g))
    x, y, m, f, g = x[:600], y[:600], weights[:600], f[:600], g[:600]
    both = f if same else np.column_stack([f, g])
    value, error, _ = oracle(y - x, m, both)
    assert found.n == 600
    assert found.difference == pytest.approx(value, rel=1e-9)
    assert found.standard_error == pytest.approx(error, rel=1e-9)
    assert found.independent == pytest.approx(np.hypot(oracle(x, m, f)[1], oracle(y, m, g)[1]), rel=1e-9)
    correlation = np.corrcoef(oracle(x, m, both)[2], oracle(y, m, both)[2])[0, 1]
    assert found.correlation == pytest.approx(correlation, rel=1e-9)
    assert found.warning is None


def test_a_difference_is_doubted_as_a_difference():
    """Falling is nothing to doubt; one input that makes most of it is, and so are few inputs."""
    generator = np.random.default_rng(0)
    x, ones = generator.uniform(size=500), np.ones(500)
    first = Measured(torch.from_numpy(x), torch.from_numpy(ones), None)
    fallen = difference(first, first._replace(plain=first.plain * 0.5))
    assert fallen.difference < 0
    assert fallen.warning is None
    one = first.plain.clone()
    one[3] += 30.0
    assert "one of 500 inputs makes 100 %" in difference(first, first._replace(plain=one)).warning
    assert difference(first, first).warning is None
    few = Measured(first.plain[:9], first.weights[:9], None)
    assert "9 inputs are too few" in difference(few, first._replace(plain=one)).warning


def test_one_input_has_no_correlation_and_says_nothing_of_it(models, make_ids):
    ids, positions = make_ids(1, 4)
    estimates = [fisher_trace(model, ids, positions) for model in models[:2]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [found] = compare(estimates)
    assert found.n == 1
    assert math.isnan(found.correlation)
    assert math.isnan(found.standard_error)


def test_a_difference_has_the_same_bits_for_any_number_of_threads(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    plain, control = (
        torch.randn(4096, *size, generator=generator, dtype=torch.float64) for size in ((), (9,))
    )
    sides = [Measured(plain + k, torch.ones(4096), control + k) for k in range(2)]
    seen = []

    def adjusted(*arguments):
        seen.append(torch.get_num_threads())
        return regression.adjusted(*arguments)

    monkeypatch.setattr(contrast, "adjusted", adjusted)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(difference(*sides))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]
    assert seen == [1] * 6
