"""Finite training sets: each sentence once an epoch, in an order of its own, always the same."""

from collections import Counter

import pytest
import torch

from helpers import local_models
from raysweep.languages import HMM, CausalLM, Dyck
from raysweep.languages.training_set import TrainingSet
from raysweep.testing.training import Walk


def epochs(finite: TrainingSet, count: int) -> list[list[int]]:
    """Return the numbers of the sentences of each epoch, in order."""
    assert finite.sentences is not None
    return finite.numbers(torch.arange(count * finite.sentences)).view(count, finite.sentences).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13, 64, 100, 1000, 1025])
def test_every_sentence_comes_once_in_an_epoch(size: int) -> None:
    for seed in (0, 5):
        for order in epochs(TrainingSet(language=Walk(), seed=seed, sentences=size), 5):
            assert sorted(order) == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        tuple(order)
        for seed in (0, 1)
        for order in epochs(TrainingSet(language=Walk(), seed=seed, sentences=50), 6)[1:]
    ]
    assert len(set(orders)) == len(orders)
    assert tuple(range(50)) not in orders


def test_orders_are_uniform() -> None:
    """Of 12 sentences, each comes first in about a twelfth of 6,000 epochs: chi-squared of 11 degrees."""
    finite = TrainingSet(language=Walk(), seed=3, sentences=12)
    first = finite.numbers(torch.arange(1, 6001) * 12)
    counts = torch.bincount(first, minlength=12).double()
    statistic = ((counts - 500) ** 2 / 500).sum().item()
    assert abs(statistic - 11) < 4.5 * 22**0.5


def test_small_sets_of_a_causal_lm_are_permuted_too() -> None:
    language = CausalLM.load(local_models.random_opt(), keep=4, length=3)
    finite = TrainingSet(language=language, seed=0, sentences=40)
    first, *later = epochs(finite, 4)
    assert first == list(range(40))
    assert len({tuple(order) for order in [first, *later]}) == 4
    sentences = language.sample(40, seed=0)
    assert torch.equal(finite.drawn(40, 120), sentences[torch.tensor(later).flatten()])


@pytest.mark.parametrize(
    "language", [Walk(), HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=())]
)
def test_what_is_drawn_depends_on_its_place_alone(language) -> None:
    finite = TrainingSet(language=language, seed=7, sentences=10)
    sentences = language.sample(10, seed=7)
    whole = finite.drawn(0, 45)
    assert torch.equal(whole, sentences[finite.numbers(torch.arange(45))])
    assert torch.equal(whole[:10], sentences)
    for start, n in ((0, 10), (3, 4), (9, 2), (8, 25), (44, 1)):
        assert torch.equal(finite.drawn(start, n), whole[start : start + n])


def test_fresh_sentences_are_those_of_the_seed() -> None:
    fresh = TrainingSet(language=Walk(), seed=7)
    assert torch.equal(fresh.drawn(5, 20), Walk().sample(20, seed=7, start=5))
    assert fresh.endless
    assert fresh.size is None
    assert torch.equal(fresh.numbers(torch.tensor([4, 2])), torch.tensor([4, 2]))
    with pytest.raises(TypeError, match="fresh sentences have no order"):
        fresh.some(torch.arange(3), seed=0)


def test_some_sentences_are_distinct_ones_of_the_set() -> None:
    finite = TrainingSet(language=Dyck(length=10), seed=2, sentences=30)
    rows = Counter(map(tuple, Dyck(length=10).sample(30, seed=2).tolist()))
    assert not finite.endless
    assert finite.size == 30
    found = finite.some(torch.arange(30), seed=1)
    assert Counter(map(tuple, found.tolist())) == rows
    assert not torch.equal(found, finite.some(torch.arange(30), seed=4))
    assert torch.equal(finite.some(torch.arange(12, 20), seed=1), found[12:20])


def test_large_sets_take_no_memory() -> None:
    size = 2 * 10**8
    finite = TrainingSet(language=Walk(), seed=0, sentences=size)
    numbers = finite.numbers(torch.arange(3 * size - 2000, 3 * size + 2000))
    assert len(set(numbers[:2000].tolist())) == len(set(numbers[2000:].tolist())) == 2000
    assert int(numbers.min()) >= 0
    assert int(numbers.max()) < size
