"""Excess loss against sums written out, and against the loss that is sampled."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raysweep.evaluation import LookupTable
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.flatness.trace.fisher import draw_positions


def written_out(subject, ids, positions):
    """Mean entropy and KL of each sentence over the listed positions, one word at a time."""
    language = subject.language
    exact = language.conditionals(ids).double()
    rows = []
    for b, chosen in enumerate(positions):
        entropy = excess = 0.0
        for t in chosen:
            log_q = subject.log_probs(ids[b : b + 1], torch.tensor([t]))[0]
            for word in range(language.vocabulary_size):
                log_p = exact[b, t, word].item()
                if log_p > -math.inf:
                    entropy -= math.exp(log_p) * log_p
                    excess += math.exp(log_p) * (log_p - log_q[word].item())
        rows.append((entropy / len(chosen), excess / len(chosen)))
    return np.array(rows)


@pytest.mark.parametrize("name", ["hmm", "pcfg"])
@pytest.mark.parametrize("positions", ["all", "random"])
def test_equals_the_sums_written_out(request, make_subject, run, name, positions):
    subject = make_subject(request.getfixturevalue(name))
    language = subject.language
    evaluation = ExcessLossConfig(sentences=30, shard_size=12, positions=positions, seed=2)
    ids = torch.cat([evaluation.draw(language, k) for k in range(3)])
    assert len(ids) == 30
    if positions == "all":
        chosen = [range(n) for n in language.lengths(ids).tolist()]
    else:
        chosen = [[t] for t in draw_positions(ids, language.pad_id, seed=2).tolist()]
    truth = written_out(subject, ids, chosen)
    metrics = run(evaluation, subject)
    for metric, values in (("entropy", truth[:, 0]), ("excess_loss", truth[:, 1]), ("loss", truth.sum(1))):
        assert metrics[metric].value == pytest.approx(values.mean(), abs=2e-6)
        assert metrics[metric].standard_error == pytest.approx(values.std(ddof=1) / 30**0.5, abs=2e-6)
        assert (metrics[metric].n, metrics[metric].unit) == (30, "nats")
    assert metrics["excess_loss"].value > 0.1


def test_words_of_probability_zero_add_nothing(hmm, make_subject):
    evaluation = ExcessLossConfig(sentences=8)
    subject = make_subject(hmm)
    exact = hmm.conditionals(evaluation.draw(hmm, 0))
    assert exact.isneginf().any()
    arrays = evaluation.measure(subject, 0, exact.numpy())
    assert np.isfinite(arrays["excess_loss"]).all()
    assert np.isfinite(arrays["entropy"]).all()


def test_divergence_is_never_negative_and_zero_for_the_language_itself(pcfg, make_subject):
    evaluation = ExcessLossConfig(sentences=64)

    class Itself:
        """The exact conditionals, computed anew as any model's would be."""

        language = pcfg

        def log_probs(self, ids, positions):
            return LookupTable(pcfg).log_probs(ids, positions)

    assert (evaluation.measure(make_subject(pcfg), 0)["excess_loss"] >= 0).all()
    assert np.abs(evaluation.measure(Itself(), 0)["excess_loss"]).max() < 1e-9


def test_table_has_no_excess_and_the_languages_entropy(pcfg, run):
    evaluation = ExcessLossConfig(sentences=64, shard_size=20)
    metrics = run(evaluation, LookupTable(pcfg))
    ids = torch.cat([evaluation.draw(pcfg, k) for k in range(evaluation.shards())])
    assert metrics["excess_loss"].value == 0.0
    assert metrics["excess_loss"].standard_error == 0.0
    assert metrics["loss"].value == metrics["entropy"].value
    assert metrics["entropy"].value == pytest.approx(pcfg.sentence_entropy(ids).mean().item(), abs=1e-6)


def test_loss_is_the_expected_sampled_loss(hmm, make_subject, run):
    subject = make_subject(hmm)
    loss = run(ExcessLossConfig(sentences=4000, positions="random"), subject)["loss"]
    ids = hmm.sample(20_000, seed=99)
    positions = draw_positions(ids, hmm.pad_id, seed=5)
    words = ids.gather(1, positions[:, None])
    sampled = -subject.log_probs(ids, positions).gather(1, words)[:, 0]
    error = math.hypot(loss.standard_error, sampled.std().item() / math.sqrt(len(sampled)))
    assert abs(loss.value - sampled.mean().item()) < 4 * error


def test_random_positions_are_unbiased_and_noisier(hmm, make_subject, run):
    subject = make_subject(hmm)
    every = run(ExcessLossConfig(sentences=2000), subject)["excess_loss"]
    one = run(ExcessLossConfig(sentences=2000, positions="random"), subject)["excess_loss"]
    assert abs(every.value - one.value) < 4 * one.standard_error
    assert one.standard_error > every.standard_error


def test_random_positions_cost_one_conditional_a_sentence(hmm, make_subject, run, monkeypatch):
    evaluation = ExcessLossConfig(sentences=50, shard_size=20, positions="random", seed=3)
    subject = make_subject(hmm)
    expected = run(evaluation, subject)
    ids = [evaluation.draw(hmm, k) for k in range(3)]
    whole = [hmm.conditionals(sentences).numpy() for sentences in ids]
    asked = []
    original = hmm.conditionals_at

    def at(sentences, positions):
        asked.append(positions)
        return original(sentences, positions)

    def never(*_):
        raise AssertionError("all positions were computed")

    monkeypatch.setattr(type(hmm), "conditionals_at", lambda _, *arguments: at(*arguments))
    references = [evaluation.reference(hmm, k) for k in range(3)]
    monkeypatch.setattr(type(hmm), "conditionals", never)
    for reference, exact, positions in zip(references, whole, asked, strict=True):
        assert reference.shape == (len(positions), hmm.vocabulary_size)
        np.testing.assert_allclose(reference, exact[np.arange(len(positions)), positions], atol=1e-6)
    assert torch.equal(torch.cat(asked), draw_positions(torch.cat(ids), hmm.pad_id, seed=3))
    shards = [evaluation.measure(subject, k, reference) for k, reference in enumerate(references)]
    for metric in evaluation.combine(shards):
        assert metric.value == pytest.approx(expected[metric.name].value, rel=1e-6)


def test_one_sentence_has_no_standard_error(hmm, make_subject, run):
    metrics = run(ExcessLossConfig(sentences=1), make_subject(hmm))
    assert all(metric.standard_error is None for metric in metrics.values())


@pytest.mark.parametrize(
    "fields",
    [{"sentences": 0}, {"shard_size": 0}, {"seed": -1}, {"positions": "some"}, {"sentences": 1.5}, {"n": 3}],
)
def test_fields_must_make_sense(fields):
    with pytest.raises(ValidationError):
        ExcessLossConfig.decode(fields)
