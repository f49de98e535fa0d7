"""The best possible accuracy, against the enumeration of all sentences."""

import itertools
import math

import pytest
import torch

from raysweep.downstream.best import best_accuracy
from raysweep.errors import DataError
from raysweep.languages.base import Sample
from raysweep.languages.hmm import HMM
from raysweep.languages.pcfg import PCFG
from raysweep.languages.splits import draw_split, in_test

GRAMMAR = {"roots": 2, "layers": 2, "symbols": 3, "rules": 4, "stop": 0.3, "words": 3, "vocabulary": 4}
DENSE = {"structure": "dense", "nonterminals": 3, "vocabulary": 2, "max_length": 4}
CHAIN = {"states": 4, "vocabulary": 6, "length": 4, "blocks": 2, "tasks": (2, 4)}


def sentences(language):
    """All sentences of the language by length, with their probabilities."""
    for n in range(1, language.max_length + 1):
        ids = torch.tensor(list(itertools.product(range(language.vocabulary_size), repeat=n)))
        p = language.log_prob(ids).exp()
        if p.any():
            yield ids[p > 0], p[p > 0]


@pytest.mark.parametrize(
    ("language", "tasks"),
    [
        (PCFG.random(seed=1, label="tree", **GRAMMAR), "ABC"),
        (
            PCFG.random(seed=2, label="tree", structure="dense", nonterminals=3, vocabulary=2, max_length=4),
            "ABC",
        ),
        (HMM.random(seed=3, **CHAIN), "24"),
    ],
    ids=["layered", "dense", "hmm"],
)
def test_the_mean_over_the_test_sentences_of_the_language(language, tasks):
    for task in tasks:
        value = mass = 0.0
        for ids, p in sentences(language):
            test = in_test(ids, language.pad_id)
            best = language.label_posterior(task, ids).max(dim=1).values
            value, mass = value + float((p * best)[test].sum()), mass + float(p[test].sum())
        found = best_accuracy(language, task, 20_000, seed=5)
        assert abs(found.value - value / mass) < 4 * found.standard_error + 1e-12
        assert found.n == 20_000


@pytest.mark.parametrize(
    "language",
    [PCFG.random(seed=1, label="tree", **GRAMMAR), HMM.random(seed=3, **CHAIN)],
    ids=["pcfg", "hmm"],
)
def test_no_classifier_does_better_and_the_posterior_does_as_well(language):
    """The classifier of the posterior reaches the value on sampled labels; a table of all sentences too."""
    sample = draw_split(language, "test", 30_000, seed=2)
    for task in language.tasks:
        labels, posterior = language.labels(task, sample), language.label_posterior(task, sample.ids)
        assert torch.allclose(posterior.sum(dim=1), torch.ones(30_000, dtype=torch.float64))
        right = (posterior.argmax(dim=1) == labels).double()
        best = best_accuracy(language, task, 30_000, seed=2)
        assert abs(right.mean().item() - best.value) < 4 * right.std().item() / math.sqrt(30_000)
        # Every class is as frequent as the posterior says.
        share = torch.bincount(labels, minlength=posterior.shape[1]).double() / 30_000
        error = (posterior * (1 - posterior)).mean(dim=0).sqrt() / math.sqrt(30_000)
        assert bool(((share - posterior.mean(dim=0)).abs() <= 4.5 * error + 1e-9).all())


@pytest.mark.parametrize(
    "language",
    [
        *(PCFG.random(seed=1, label=label, **GRAMMAR) for label in ("inside", "prefix", "posterior")),
        HMM.random(seed=3, label="posterior", **CHAIN),
    ],
    ids=["inside", "prefix", "posterior", "hmm"],
)
def test_labels_that_are_functions_of_the_sentence_are_certain(language):
    for task in language.tasks:
        found = best_accuracy(language, task, 500, seed=0)
        assert (found.value, found.standard_error, found.n) == (1.0, 0.0, 500)
        ids = language.sample(50, seed=1)
        posterior = language.label_posterior(task, ids)
        assert torch.equal(posterior.argmax(dim=1), language.labels(task, Sample(ids=ids)))


def test_it_is_computed_once(monkeypatch):
    language = HMM.random(seed=9, **CHAIN)
    first = best_accuracy(language, "2", 100, seed=0)
    monkeypatch.setattr(HMM, "label_posterior", None)
    assert best_accuracy(HMM.random(seed=9, **CHAIN), "2", 100, seed=0) is first


def test_what_nobody_knows_is_none(monkeypatch):
    language = HMM.random(seed=10, **CHAIN)
    with pytest.raises(DataError, match="no task '3'"):
        best_accuracy(language, "3", 10, seed=0)
    monkeypatch.setattr(HMM, "label_posterior", lambda *_: None)
    assert best_accuracy(language, "2", 10, seed=0) is None
