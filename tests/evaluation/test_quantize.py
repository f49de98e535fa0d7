"""The loss of rounded and disturbed weights at a milestone, beside a loop over models and sentences."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raysweep.downstream.quantize import noisy, quantized
from raysweep.errors import ConfigError, DataError
from raysweep.evaluation import LookupTable, ModelSubject
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.evaluation.held_out_loss import HeldOutLossConfig, mean_per_word
from raysweep.evaluation.quantize import QuantizeConfig, mean_over_draws
from raysweep.evaluation.run import run_evaluation
from raysweep.languages.hmm import HMM
from raysweep.seeding import derive

SMALL = QuantizeConfig(sentences=40, shard_size=16, bits=(8, 3), noise=(0.02, 0.2), draws=3)


class Costly(HMM):
    """A language whose conditionals are known, and too costly to compute again and again."""

    stores_conditionals = True


def costly(language):
    language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,))
    language.__class__ = Costly
    return language


def values(losses, language, model):
    """Return the terms of a model's loss, measured alone."""
    arrays = losses.measure(ModelSubject(language, model), 0)
    name = "excess_loss" if "excess_loss" in arrays else "loss"
    return arrays[name], arrays.get("masked", np.ones_like(arrays[name]))


@pytest.mark.parametrize("exact", [True, False])
def test_losses_are_those_of_each_model_alone(exact, pcfg, make_subject, run):
    language = pcfg if exact else costly(pcfg)
    losses = (ExcessLossConfig if exact else HeldOutLossConfig)(sentences=40, shard_size=40)
    subject = make_subject(language)
    found, name = run(SMALL, subject), "excess_loss" if exact else "held_out_loss"
    plain, masked = values(losses, language, subject.model)
    for bits in (8, 3):
        changed, _ = values(losses, language, quantized(subject.model, bits))
        after, rise = found[f"quantize_{name}/int{bits}"], found[f"quantize/int{bits}"]
        assert after.value == pytest.approx(changed.sum() / masked.sum(), rel=1e-5)
        assert rise.value == pytest.approx((changed - plain).sum() / masked.sum(), rel=1e-3, abs=1e-6)
        assert rise.standard_error == pytest.approx(
            mean_per_word(changed - plain, masked).standard_error, rel=1e-3
        )
        assert rise.n == after.n == 40
    seed = derive(0, "quantize")
    for size in (0.02, 0.2):
        each = [
            values(losses, language, noisy(subject.model, size, seed=seed, draw=d))[0] - plain
            for d in range(3)
        ]
        rise = found[f"quantize/noise{size:g}"]
        means = [draw.sum() / masked.sum() for draw in each]
        assert rise.value == pytest.approx(sum(means) / 3, rel=1e-3, abs=1e-6)
        over_sentences = mean_per_word(sum(each) / 3, masked).standard_error
        expected = math.sqrt(over_sentences**2 + np.var(means, ddof=1) / 3)
        assert rise.standard_error == pytest.approx(expected, rel=1e-3)


def test_coarser_weights_lose_more(pcfg, make_subject, run):
    found = run(SMALL.model_copy(update={"bits": (16, 8, 3), "sentences": 200}), make_subject(pcfg))
    rises = [abs(found[f"quantize/{weights}"].value) for weights in ("int16", "int8", "int3")]
    assert rises == sorted(rises)
    assert rises[0] < 1e-3 < rises[2]


def test_embeddings_can_be_left_as_they_are(pcfg, make_subject, run):
    subject = make_subject(pcfg)
    with_them, without = (run(SMALL.model_copy(update={"embeddings": e}), subject) for e in (True, False))
    assert with_them["quantize/int3"].value != without["quantize/int3"].value
    losses = ExcessLossConfig(sentences=40, shard_size=40)
    plain, _ = values(losses, pcfg, subject.model)
    changed, _ = values(losses, pcfg, quantized(subject.model, 3, embeddings=False))
    assert without["quantize/int3"].value == pytest.approx((changed - plain).mean(), rel=1e-4)


def test_the_error_covers_sentences_and_draws():
    """Over replicates of a crossed sample, the stated variance is that of the mean, and a little more."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(800):
        rows, columns = generator.normal(size=(30, 1)), 0.5 * generator.normal(size=(1, 6))
        sums = rows + columns + generator.normal(size=(30, 6))
        found.append(mean_over_draws(sums, np.ones(30)))
    z = np.array([one.value / one.standard_error for one in found])
    assert abs(z.mean()) < 4 / math.sqrt(800)
    stated = np.mean([one.standard_error**2 for one in found])
    true = 1 / 30 + 0.25 / 6 + 1 / 180
    assert stated == pytest.approx(true + 1 / 180, rel=0.06)
    assert np.var([one.value for one in found]) == pytest.approx(true, rel=0.2)


def test_the_model_stays_as_it_was(pcfg, make_subject):
    subject = make_subject(pcfg)
    before = {name: p.clone() for name, p in subject.model.state_dict().items()}
    SMALL.measure(subject, 0)
    assert all(torch.equal(p, before[name]) for name, p in subject.model.state_dict().items())


def test_a_costly_language_says_so(pcfg, make_subject):
    subject = make_subject(costly(pcfg))
    measured = run_evaluation(SMALL, subject)
    assert measured.notes == {
        "loss": "quantize: exact conditionals of this language are costly, so the loss is the held-out loss"
    }
    assert run_evaluation(SMALL, make_subject(pcfg)).notes == {}


def test_what_has_no_weights_is_refused(hmm):
    with pytest.raises(ConfigError, match="quantize: LookupTable has no parameters"):
        SMALL.measure(LookupTable(hmm), 0)


def test_too_few_sentences_are_refused(pcfg, make_subject, monkeypatch):
    language = costly(pcfg)
    monkeypatch.setattr(Costly, "distinct", 8)
    ((field, message),) = SMALL.problems(language)
    assert (field, "8 are held out" in message) == ("sentences", True)
    with pytest.raises(DataError, match="sentences: 40 are asked for, 8 are held out"):
        SMALL.measure(make_subject(language), 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": [], "noise": []}, "both empty"),
        ({"bits": [8, 8]}, "named twice"),
        ({"noise": [0.1, 0.1]}, "named twice"),
        ({"bits": [1]}, "greater than or equal to 2"),
        ({"bits": [32]}, "less than or equal to 16"),
        ({"noise": [0.0]}, "greater than 0"),
        ({"draws": 0}, "greater than 0"),
        ({"sentences": 1}, "greater than 1"),
        ({"mask": 2.0}, "neither 'one' nor a rate"),
    ],
)
def test_fields_must_make_sense(fields, message):
    with pytest.raises(ValidationError, match=message):
        QuantizeConfig.decode(fields)
