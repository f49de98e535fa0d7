"""Held-out loss: its value and standard error against slow ones, and what it is refused for."""

import math

import numpy as np
import pytest
import torch

from helpers.losses import one_word_at_a_time
from raysweep.errors import DataError, RunFailedError
from raysweep.evaluation import LookupTable, ModelSubject
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.evaluation.held_out_loss import HeldOutLossConfig
from raysweep.models import subject as subjects
from raysweep.seeding import derive
from raysweep.training.data import some_positions


@pytest.mark.parametrize("name", ["hmm", "pcfg"])
def test_loss_of_a_model_one_word_at_a_time(request, make_subject, run, name) -> None:
    language = request.getfixturevalue(name)
    subject = make_subject(language)
    metric = run(HeldOutLossConfig(sentences=50, mask=0.4, shard_size=20), subject)["held_out_loss"]
    ids = language.sample(50, seed=derive(0, "held_out_loss"))
    key = derive(0, "held_out_loss", "mask")
    mask = some_positions(language.lengths(ids), ids.shape[1], 0.4, seed=key, sentences=torch.arange(50))
    losses = one_word_at_a_time(subject, ids, mask)
    assert metric.value == pytest.approx(np.mean(losses), rel=1e-5)
    assert metric.n == 50
    assert metric.unit == "nats"


def test_large_vocabularies_are_worked_off_in_pieces(pcfg, make_subject, monkeypatch) -> None:
    subject = make_subject(pcfg, batch=7)
    ids = pcfg.sample(30, seed=1)
    mask = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.5) & (ids != pcfg.pad_id)
    whole = subject.word_log_probs(ids, mask)
    assert whole.dtype == torch.float64
    monkeypatch.setattr(subjects, "_LOGITS", 3 * subject.model.total_vocabulary)
    torch.testing.assert_close(subject.word_log_probs(ids, mask), whole, rtol=1e-6, atol=1e-6)


def test_the_table_s_loss_is_the_entropy(hmm, run) -> None:
    """With one masked word a sentence, the truth's cross-entropy is the entropy."""
    metric = run(HeldOutLossConfig(sentences=20_000, mask="one", shard_size=10_000), LookupTable(hmm))
    entropy = hmm.entropy(20_000, seed=1)
    found = metric["held_out_loss"]
    z = (found.value - entropy.value) / math.hypot(found.standard_error, entropy.standard_error)
    assert abs(z) < 4.5


def test_several_masked_words_of_the_table(pcfg) -> None:
    ids = pcfg.sample(200, seed=2)
    mask = some_positions(pcfg.lengths(ids), ids.shape[1], 0.5, seed=0, sentences=torch.arange(200))
    found = LookupTable(pcfg).word_log_probs(ids, mask)
    exact = pcfg.conditionals(ids, mask)
    wanted = [exact[b, t, ids[b, t]].item() for b, t in mask.nonzero().tolist()]
    torch.testing.assert_close(found.tolist(), wanted, rtol=0, atol=1e-5)


def test_the_standard_error_covers() -> None:
    """z of the estimate against the truth, over replicates of rows whose counts and losses go together."""
    generator = np.random.default_rng(0)
    evaluation, squares = HeldOutLossConfig(), []
    for _ in range(2000):
        masked = generator.integers(1, 6, 300).astype(float)
        # Words of long rows are harder: mean loss 1 + m/4 a word.
        losses = generator.gamma(masked, 1 + masked / 4)
        metric = evaluation.combine([{"loss": losses, "masked": masked}])[0]
        truth = np.mean([m * (1 + m / 4) for m in range(1, 6)]) / 3
        squares.append(((metric.value - truth) / metric.standard_error) ** 2)
    # The mean of z² of 2,000 replicates; a chi-squared of one degree has variance 2.
    assert abs(np.mean(squares) - 1) < 4.5 * math.sqrt(2 / 2000)


def test_rows_and_masks_are_the_same_for_every_run(hmm, make_subject) -> None:
    evaluation = HeldOutLossConfig(sentences=40, mask=0.5)
    counts = [evaluation.measure(make_subject(hmm, seed=seed), 0)["masked"] for seed in (0, 1)]
    assert np.array_equal(*counts)


class Few:
    """A language that holds ten sentences."""

    def __init__(self, language) -> None:
        self._language = language
        self.held_out = self
        self.distinct = 10

    def __getattr__(self, name):
        return getattr(self._language, name)


def test_more_sentences_than_are_held_out(hmm, make_subject) -> None:
    language = Few(hmm)
    evaluation = HeldOutLossConfig(sentences=11)
    assert evaluation.problems(language) == [
        ("sentences", "11 are asked for, 10 are held out; ask for no more")
    ]
    assert HeldOutLossConfig(sentences=10).problems(language) == []
    with pytest.raises(DataError, match="sentences: 11 are asked for, 10"):
        evaluation.measure(ModelSubject(language, make_subject(hmm).model), 0)


def test_what_needs_the_truth_is_refused_where_nobody_knows_it() -> None:
    class Text:
        exact = False

    ((field, message),) = ExcessLossConfig().problems(Text())
    assert field == ""
    assert message == "nobody knows the exact conditionals of a Text; use held_out_loss"


def test_a_loss_that_is_not_finite() -> None:
    with pytest.raises(RunFailedError, match="held_out_loss is nan"):
        HeldOutLossConfig().combine([{"loss": np.array([1.0, math.nan]), "masked": np.array([1.0, 1.0])}])
