"""The ODE of the descent and SGD beside it, where both are known in closed form, and on a small encoder."""

import math

import pytest
import torch
from torch import Tensor

from raysweep.errors import ConfigError, RunFailedError
from raysweep.flatness.theory.descent import descend, noisy_descent, stationary_loss
from raysweep.flatness.theory.population import Population
from raysweep.flatness.theory.valley import Valley
from raysweep.languages.hmm import HMM
from raysweep.languages.pcfg import PCFG
from raysweep.models.encoder import EncoderConfig
from raysweep.models.lstm import LSTMConfig
from raysweep.seeding import uniforms

LOGIT = 0.7
P = 1 / (1 + math.exp(-LOGIT))
C = P * (1 - P)


def coin(theta: Tensor) -> Tensor:
    """log f [1, 2] of a coin whose logit is the product of two parameters."""
    return torch.stack([theta.prod(), theta[0] * 0]).log_softmax(0)[None]


@pytest.fixture
def factors() -> tuple[Valley, Tensor]:
    """Two factors on the hyperbola ab = LOGIT, with D = a² − b² = 3."""
    truth = torch.tensor([[P, 1 - P]], dtype=torch.float64)
    squared = (3 + math.sqrt(9 + 4 * LOGIT**2)) / 2
    theta = torch.tensor([math.sqrt(squared), LOGIT / math.sqrt(squared)], dtype=torch.float64)
    return Valley(coin, torch.ones(1, dtype=torch.float64), truth), theta


def hyperbola(difference: Tensor) -> Tensor:
    """Tr F at the point of the hyperbola with this D."""
    return C * (difference.square() + 4 * LOGIT**2).sqrt()


@pytest.fixture(scope="module")
def language() -> HMM:
    return HMM.random(states=3, vocabulary=2, length=2, blocks=1, tasks=(1,))


@pytest.fixture(scope="module")
def encoder(language) -> tuple[Valley, Tensor]:
    """A saturated encoder, as training leaves it."""
    model = EncoderConfig(shape="4/1/1/8", layer_norm_eps=1.0).build(language, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    valley, theta = Valley.of(model, Population.of(language))
    return valley, valley.saturate(theta)


def test_the_population_is_the_language(language) -> None:
    population = Population.of(language)
    assert len(population) == 4
    assert population.weights.sum() == pytest.approx(1.0, abs=1e-15)
    ids = population.masked.masked_fill(population.masked == language.mask_id, 0)
    exact = language.conditionals_at(ids, population.positions).double().exp()
    torch.testing.assert_close(population.truth, exact, rtol=1e-5, atol=1e-6)
    sampled = language.sample(200_000, seed=1)
    for i in range(4):
        t = int(population.positions[i])
        share = (sampled[:, 1 - t] == population.masked[i, 1 - t]).double().mean() / 2
        assert share == pytest.approx(float(population.weights[i]), abs=0.005)


def test_a_population_of_sentences_of_several_lengths() -> None:
    language = PCFG.random(roots=2, layers=2, symbols=2, rules=2, words=3, vocabulary=3, stop=0.5)
    population = Population.of(language)
    lengths = language.lengths(population.masked)
    assert len(set(lengths.tolist())) > 1
    assert population.weights.sum() == pytest.approx(1.0, abs=1e-12)
    for length, probability in enumerate(language.length_probabilities):
        assert float(population.weights[lengths == length].sum()) == pytest.approx(probability, abs=1e-7)


def test_what_cannot_be_listed_is_refused() -> None:
    with pytest.raises(ConfigError, match="4 words make more than 4096 strings of up to 20"):
        Population.of(HMM.random(states=2, vocabulary=4, length=20, blocks=1, tasks=(1,)))


def test_two_factors_descend_as_the_closed_form_says(factors) -> None:
    valley, theta = factors
    times = torch.tensor([0.0, 1.0, 5.0, 20.0], dtype=torch.float64)
    expected = hyperbola(3 * (-C * times).exp())
    torch.testing.assert_close(descend(valley, theta, times), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("lr", [0.05, 0.1])
def test_sgd_on_two_factors_follows_the_ode_of_its_batch_size(factors, lr, batch) -> None:
    """D is multiplied by 1 − η²g² a step, so its fall per time and 1/B is c, for any rate and batch."""
    valley, theta = factors
    times = torch.tensor([0.0, 4.0], dtype=torch.float64)
    both = noisy_descent(valley, theta, times, [(lr, batch)], replicates=range(100), seed=0)
    traces, losses = (values[0] for values in both)
    falls = traces[:, 0] - traces[:, 1]
    expected = hyperbola(torch.tensor(3.0)) - hyperbola(torch.tensor(3 * math.exp(-C * 4 / batch)))
    error = falls.std() / 10
    # The rest is of the order of the rate: weights off the valley, where E g² is not c.
    assert abs(falls.mean() - expected) < 3 * error + 0.5 * lr * expected
    # A constant of 1/2 or 1/8 in the place of 1/4 would be seen.
    assert error < 0.1 * expected
    assert losses[:, 0].max() < 1e-14
    held = stationary_loss(float(traces[:, 1].mean()), lr=lr, batch=batch)
    assert float(losses[:, 1].mean()) == pytest.approx(held, rel=0.6)


def test_replicates_are_their_own(factors) -> None:
    valley, theta = factors
    times = torch.tensor([0.0, 0.5], dtype=torch.float64)
    settings = [(0.1, 3)]
    whole = noisy_descent(valley, theta, times, settings, replicates=range(6), seed=5)
    part = noisy_descent(valley, theta, times, settings, replicates=range(2, 4), seed=5)
    for a, b in zip(whole, part, strict=True):
        torch.testing.assert_close(a[:, 2:4], b, rtol=1e-12, atol=1e-14)
    assert len(set(whole[0][0, :, 1].tolist())) == 6


def test_rates_and_batches_side_by_side_are_those_of_each_alone(factors) -> None:
    """Rates whose steps lie apart, and times that two of them round to other steps."""
    valley, theta = factors
    times = torch.tensor([0.0, 0.103, 0.5], dtype=torch.float64)
    settings = [(0.05, 3), (0.1, 2), (0.1, 5), (0.07, 3)]
    together = noisy_descent(valley, theta, times, settings, replicates=range(3), seed=1)
    for k, setting in enumerate(settings):
        alone = noisy_descent(valley, theta, times, [setting], replicates=range(3), seed=1)
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[k], b[0], rtol=1e-12, atol=1e-14)


def test_steps_are_those_of_plain_sgd(factors) -> None:
    """The samples written out one by one, the gradient of a coin by hand."""
    valley, theta = factors
    lr, batch, steps = 0.1, 3, 70
    draws = uniforms(4, f"descent/{lr!r}/{batch}", torch.arange(steps), 2 * batch, start=0)
    # The second replicate; the coin shows heads below its probability.
    heads = (draws[:, batch:] < P).double()
    a, b = theta.tolist()
    for k in range(steps):
        g = 1 / (1 + math.exp(-a * b)) - float(heads[k].mean())
        a, b = a - lr * g * b, b - lr * g * a
    times = torch.tensor([steps * lr**2], dtype=torch.float64)
    _, losses = noisy_descent(valley, theta, times, [(lr, batch)], replicates=range(2), seed=4)
    expected = float(valley.excess_loss(torch.tensor([a, b], dtype=torch.float64)))
    assert losses[0, 1, 0].item() == pytest.approx(expected, rel=1e-9)


def test_the_trace_and_its_slope_are_those_of_dense_autograd(encoder, language) -> None:
    valley, theta = encoder
    assert float(valley.excess_loss(theta)) < 1e-15

    def loss(theta: Tensor) -> Tensor:
        return -(valley.weights[:, None] * valley.truth * valley.log_probs(theta)).sum()

    def hessian_trace(theta: Tensor) -> Tensor:
        return torch.autograd.functional.hessian(loss, theta).trace()

    # At saturation the Hessian is the Fisher matrix, and its rank that of all conditionals.
    assert float(valley.trace(theta)) == pytest.approx(float(hessian_trace(theta)), rel=1e-9)
    spectrum = valley.spectrum(theta)
    assert len(spectrum) == 4
    assert float(spectrum.sum()) == pytest.approx(float(valley.trace(theta)), rel=1e-10)
    # Along the valley the traces of Hessian and Fisher matrix change alike.
    slope = valley.tangent_slope(theta)
    step = 1e-4 * slope / slope.norm()
    ends = [valley.saturate(theta + sign * step) for sign in (1, -1)]
    change = (hessian_trace(ends[0]) - hessian_trace(ends[1])) / 2e-4
    assert float(slope.norm()) == pytest.approx(float(change), rel=1e-5)


def test_a_model_is_taken_as_it_is(language) -> None:
    model = EncoderConfig(shape="4/1/1/8").build(language, seed=0)
    population = Population.of(language)
    valley, theta = Valley.of(model, population)
    with torch.no_grad():
        logits = model.eval().double()(population.masked, population.positions)[:, :2]
    torch.testing.assert_close(valley.log_probs(theta), logits.log_softmax(dim=-1), rtol=1e-12, atol=1e-14)
    assert len(theta) == sum(p.numel() for p in model.parameters())


def test_the_encoder_descends_as_the_ode_says(encoder) -> None:
    valley, theta = encoder
    times = torch.tensor([0.0, 3.0], dtype=torch.float64)
    predicted = descend(valley, theta, times / 24)
    [traces], _ = noisy_descent(valley, theta, times, [(0.1, 24)], replicates=range(24), seed=0)
    falls = traces[:, 0] - traces[:, 1]
    fall = float(predicted[0] - predicted[1])
    assert fall > 10 * float(falls.std()) / 24**0.5
    assert float(falls.mean()) == pytest.approx(fall, rel=0.25)


def test_what_the_theory_does_not_hold_for_is_refused(language) -> None:
    impossible = HMM.random(states=2, vocabulary=2, length=2, blocks=2, tasks=(1,))
    with pytest.raises(ConfigError, match="probability zero in their place"):
        Valley.of(EncoderConfig(shape="4/1/1/8").build(impossible, seed=0), Population.of(impossible))
    with pytest.raises(ConfigError, match="choose a smaller model"):
        Valley.of(EncoderConfig(shape="64/1/2/256").build(language, seed=0), Population.of(language))
    with pytest.raises(ConfigError, match="recurrent"):
        Valley.of(LSTMConfig(shape="4/1").build(language, seed=0), Population.of(language))


def test_a_model_that_cannot_be_its_language_is_told(factors) -> None:
    valley, theta = factors
    flat = Valley(lambda theta: coin(theta * 0), valley.weights, valley.truth)
    with pytest.raises(RunFailedError, match="do not reach their language"):
        flat.saturate(theta)
    far = torch.tensor([0.0, 4e6])
    with pytest.raises(RunFailedError, match=r"lower\s+lr|lower its rate"):
        noisy_descent(valley, theta, far, [(1e3, 1)], replicates=range(2), seed=0)
    with pytest.raises(ConfigError, match="both must be positive"):
        noisy_descent(valley, theta, far, [(0.1, 1), (0.1, 0)], replicates=range(2), seed=0)
