"""The loss on the sentences of training beside that on others: against slow ones, without and with a gap."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from helpers.losses import one_word_at_a_time
from raysweep.errors import ConfigError
from raysweep.evaluation import LookupTable, ModelSubject
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.evaluation.held_out_loss import HeldOutLossConfig
from raysweep.evaluation.metric import Metric
from raysweep.languages.training_set import TrainingSet
from raysweep.models import EncoderConfig
from raysweep.seeding import derive
from raysweep.training.data import some_positions

KINDS = [HeldOutLossConfig, ExcessLossConfig]


def trained_on(subject: ModelSubject, size: int | None, seed: int = 5) -> ModelSubject:
    """Return the subject with a training set of so many sentences."""
    training = TrainingSet(language=subject.language, seed=seed, sentences=size)
    return ModelSubject(subject.language, subject.model, training=training)


def three(found: Mapping[str, Metric]) -> tuple[Metric, Metric, Metric]:
    """Return the held-out loss, that of training, and the gap."""
    if "held_out_loss" in found:
        return found["held_out_loss"], found["train_loss"], found["generalisation_gap"]
    return found["excess_loss"], found["train_excess_loss"], found["excess_gap"]


@pytest.mark.parametrize("name", ["hmm", "pcfg"])
def test_losses_of_training_one_word_at_a_time(request, make_subject, run, name) -> None:
    language = request.getfixturevalue(name)
    subject = trained_on(make_subject(language), 50)
    found = run(HeldOutLossConfig(sentences=50, mask=0.4, shard_size=20, split="both"), subject)
    # All fifty are measured, in an order of the evaluation's own.
    ids = subject.training.some(torch.arange(50), seed=derive(0, "held_out_loss", "training"))
    assert sorted(ids.tolist()) == sorted(language.sample(50, seed=5).tolist())
    key = derive(0, "held_out_loss", "training mask")
    mask = some_positions(language.lengths(ids), ids.shape[1], 0.4, seed=key, sentences=torch.arange(50))
    losses = one_word_at_a_time(subject, ids, mask)
    assert found["train_loss"].value == pytest.approx(np.mean(losses), rel=1e-5)
    alone = run(HeldOutLossConfig(sentences=50, mask=0.4, shard_size=20), subject)
    assert list(alone) == ["held_out_loss"]
    assert found["held_out_loss"] == alone["held_out_loss"]


@pytest.mark.parametrize("name", ["hmm", "pcfg"])
def test_excess_of_training_one_word_at_a_time(request, make_subject, run, name) -> None:
    language = request.getfixturevalue(name)
    subject = trained_on(make_subject(language), 30)
    found = run(ExcessLossConfig(sentences=30, shard_size=20, split="both"), subject)
    means = []
    for row in language.sample(30, seed=5):
        terms = []
        for t in range(int(language.lengths(row[None]))):
            exact = language.conditionals_at(row[None], torch.tensor([t]), dtype=torch.float64)[0, row[t]]
            hidden = row.clone()
            hidden[t] = language.mask_id
            with torch.no_grad():
                logits = subject.model(hidden[None], torch.tensor([t])).double()[0]
            terms.append((exact - logits.log_softmax(-1)[row[t]]).item())
        means.append(np.mean(terms))
    assert found["train_excess_loss"].value == pytest.approx(np.mean(means), rel=1e-4)
    alone = run(ExcessLossConfig(sentences=30, shard_size=20), subject)
    assert {name: found[name] for name in alone} == alone


def test_sentences_of_training_have_positions_of_their_own(hmm) -> None:
    """Otherwise the two losses would not be independent."""
    config, ids = ExcessLossConfig(sentences=40, positions="random", split="both"), hmm.sample(40, seed=5)
    held_out, training = (config._drawn(hmm, ids, 0, given) for given in (False, True))
    assert (held_out != training).float().mean() > 0.3


@pytest.mark.parametrize("config", KINDS)
def test_the_gap_is_the_difference_with_the_error_of_both(config, hmm, make_subject, run) -> None:
    found = run(config(sentences=40, split="both"), trained_on(make_subject(hmm), 100))
    held_out, training, gap = three(found)
    assert gap.value == held_out.value - training.value
    assert gap.standard_error == math.hypot(held_out.standard_error, training.standard_error)
    assert {metric.n for metric in (held_out, training, gap)} == {40}
    assert all(metric.report and metric.unit == "nats" and metric.heading for metric in (training, gap))
    # A loss that is compared between checkpoints stays the only one of its kind.
    assert (training.kind, gap.kind) == ("diagnostic", "diagnostic")


@pytest.mark.parametrize("config", KINDS)
def test_a_model_that_has_seen_nothing_has_no_gap(config, hmm, make_subject, run) -> None:
    """z of the gap over seeds of data and evaluation: no bias, and the standard error holds."""
    squares, zs = [], []
    for seed in range(60):
        subject = trained_on(make_subject(hmm), 100_000, seed=seed)
        *_, gap = three(run(config(sentences=200, split="both", seed=seed), subject))
        zs.append(gap.value / gap.standard_error)
        squares.append(zs[-1] ** 2)
    assert abs(np.mean(zs)) < 4.5 / math.sqrt(60)
    assert abs(np.mean(squares) - 1) < 4.5 * math.sqrt(2 / 60)


def test_a_model_that_knows_its_sentences_by_heart_has_a_gap(hmm, run) -> None:
    model = EncoderConfig(shape="32/2/2/64").build(hmm, seed=0)
    subject = trained_on(ModelSubject(hmm, model), 40)
    ids, optimizer = hmm.sample(40, seed=5), torch.optim.Adam(model.parameters(), lr=3e-3)
    ids, at = ids.repeat_interleave(hmm.max_length, 0), torch.arange(hmm.max_length).repeat(40)
    for _ in range(150):
        logits = model(ids.scatter(1, at[:, None], hmm.mask_id), at)
        loss = torch.nn.functional.cross_entropy(logits, ids.gather(1, at[:, None])[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for config in KINDS:
        *_, training, gap = three(run(config(sentences=40, split="both"), subject))
        assert gap.value > max(0.5, 2 * gap.standard_error)
    # The excess loss comes last: the model knows more of these words than the language does.
    assert training.value < 0


@pytest.mark.parametrize("config", KINDS)
def test_what_has_no_training_set(config, hmm, make_subject, run) -> None:
    both = config(sentences=20, split="both")
    assert list(run(both, LookupTable(hmm))) == list(run(config(sentences=20), LookupTable(hmm)))
    cases = [
        (
            make_subject(hmm),
            "split: the training set of this model is not known, or is of another language; leave split out",
        ),
        (trained_on(make_subject(hmm), None), "split: every sentence of training is fresh, so there is no"),
        (
            trained_on(make_subject(hmm), 19),
            "sentences: 20 are asked for, the training has 19; ask for no more",
        ),
    ]
    for subject, message in cases:
        with pytest.raises(ConfigError, match=f"evaluate.{both.kind}.{message}"):
            both.measure(subject, 0)
        [(field, text)] = both.training_problems(subject.training)
        assert f"{field}: {text}".startswith(message)
        assert config(sentences=20).training_problems(subject.training) == []


@pytest.mark.parametrize("config", KINDS)
def test_the_default_is_no_part_of_the_identity(config) -> None:
    assert "split" not in config().encode()
    both = config(split="both")
    assert both.encode()["split"] == both.content()["split"] == "both"
    assert config.decode(both.encode()) == both
    assert config.decode(config().encode()) == config()
