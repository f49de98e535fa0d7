"""Training and test sets of tasks: disjoint, of any slicing, and honest about what they hold."""

import math

import pytest
import torch

from raysweep.errors import DataError
from raysweep.languages.base import Task
from raysweep.languages.hmm import HMM
from raysweep.languages.pcfg import PCFG
from raysweep.languages.splits import (
    BLOCK,
    CANDIDATES,
    TaskFacts,
    draw_split,
    in_test,
    sentence_hash,
    task_facts,
)


@pytest.fixture(scope="module")
def hmm():
    return HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2, 4))


@pytest.fixture(scope="module")
def pcfg():
    return PCFG.random(roots=2, layers=2, symbols=3, rules=3, words=4, vocabulary=6, stop=0.4)


def splitmix64(x):
    """One output of the generator, in Python's integers."""
    m = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & m
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & m
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & m
    return x ^ (x >> 31)


def test_hash_equals_the_integers_of_python(pcfg):
    ids = pcfg.sample(200, seed=0)
    for row, found in zip(ids.tolist(), sentence_hash(ids, pcfg.pad_id).tolist(), strict=True):
        words = [word for word in row if word != pcfg.pad_id]
        total = sum(splitmix64(((word + 1) << 32) + t + 1) for t, word in enumerate(words))
        assert found % (1 << 64) == splitmix64(total % (1 << 64))


def test_hash_of_known_sentences_never_changes():
    """Stored results rely on it: a sentence keeps its side."""
    ids = torch.tensor([[0, 9, 9], [1, 0, 9], [0, 1, 2], [199, 5, 7]])
    assert in_test(ids, 9).tolist() == [False, True, True, False]


def test_side_depends_on_the_words_alone(pcfg):
    ids = pcfg.sample(500, seed=1)
    plain = in_test(ids, pcfg.pad_id)
    wide = torch.full((500, ids.shape[1] + 7), pcfg.pad_id)
    wide[:, : ids.shape[1]] = ids
    assert torch.equal(in_test(wide, pcfg.pad_id), plain)
    renumbered = torch.where(ids == pcfg.pad_id, 1000, ids)
    assert torch.equal(in_test(renumbered, 1000), plain)


def test_hashes_of_all_short_sentences_differ_and_split_in_half():
    """Every string of up to four of seventeen words; words in another order are another sentence."""
    words = torch.cartesian_prod(*[torch.arange(17)] * 4)
    rows = [words]
    for n in (1, 2, 3):
        part = words[:: 17 ** (4 - n)].clone()
        part[:, n:] = 17
        rows.append(part)
    ids = torch.cat(rows)
    assert len(torch.unique(sentence_hash(ids, 17))) == len(ids)
    share = in_test(ids, 17).double()
    assert abs(share.sum().item() - len(ids) / 2) < 4.5 * math.sqrt(len(ids)) / 2
    # By position too: changing one word changes the side half of the time.
    for t in range(4):
        other = words.clone()
        other[:, t] = (other[:, t] + 1) % 17
        changed = (in_test(other, 17) != in_test(words, 17)).sum().item()
        assert abs(changed - len(words) / 2) < 4.5 * math.sqrt(len(words))


@pytest.mark.parametrize("name", ["hmm", "pcfg"])
def test_no_sentence_is_in_both_splits(name, request):
    """Languages small enough that every sentence is drawn many times, and different seeds."""
    language = request.getfixturevalue(name)
    train = draw_split(language, "train", 5000, seed=3).ids
    test = torch.cat([draw_split(language, "test", 3000, seed=seed).ids for seed in (3, 4)])
    a, b = set(map(tuple, train.tolist())), set(map(tuple, test.tolist()))
    assert len(a) < 5000, "too large a language to show anything"
    assert len(b) < 6000
    assert not a & b
    drawn = set(map(tuple, language.sample(20_000, seed=0).tolist()))
    assert len(drawn - a - b) < len(drawn) / 2, "the splits together are the language"


@pytest.mark.parametrize("split", ["train", "test"])
def test_any_slicing_gives_the_same_sentences(hmm, split):
    whole = draw_split(hmm, split, 2 * BLOCK + 300, seed=5, start=700)
    parts = [
        draw_split(hmm, split, n, seed=5, start=start)
        for start, n in ((700, 1), (701, 323), (1024, 0), (1024, BLOCK), (2 * BLOCK, 900), (2948, 100))
    ]
    assert whole.ids.shape == (2 * BLOCK + 300, 5)
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    states = torch.cat([part.latents["states"] for part in parts])
    assert torch.equal(states, whole.latents["states"])
    assert not torch.equal(draw_split(hmm, split, 2000, seed=6, start=700).ids, whole.ids[:2000])


def test_split_is_the_language_conditioned_on_its_half(hmm):
    """Pearson's statistic over the strings of a split at fixed n, standardised."""
    ids = torch.cartesian_prod(*[torch.arange(6)] * 5)
    probability = hmm.log_prob(ids).exp()
    n = 40_000
    for split in ("train", "test"):
        mine = in_test(ids, hmm.pad_id) == (split == "test")
        expected = torch.where(mine, probability, 0.0)
        expected *= n / expected.sum()
        drawn = draw_split(hmm, split, n, seed=8).ids
        counts = torch.bincount((drawn * 6 ** torch.arange(4, -1, -1)).sum(dim=1), minlength=6**5).double()
        assert (counts[expected == 0] == 0).all()
        often = expected > 10
        counts = torch.cat([counts[often], counts[~often].sum()[None]])
        expected = torch.cat([expected[often], expected[~often].sum()[None]])
        freedom = len(counts) - 1
        z = (((counts - expected) ** 2 / expected).sum().item() - freedom) / math.sqrt(2 * freedom)
        assert abs(z) < 4.5


def test_labels_belong_to_their_sentences(hmm):
    """The posterior of the state explains the drawn one as well as in the language itself."""
    sample = draw_split(hmm, "train", 20_000, seed=9)
    posterior = hmm.state_posterior(sample.ids)
    for task in ("2", "4"):
        t, label = int(task) - 1, hmm.labels(task, sample)
        expected = posterior[:, t].sum(dim=0)
        variance = (posterior[:, t] * (1 - posterior[:, t])).sum(dim=0)
        z = (torch.bincount(label, minlength=4) - expected) / variance.sqrt()
        assert z.abs().max() < 4.5
        chosen = posterior[torch.arange(20_000), t, label]
        expected, second = posterior[:, t].square().sum(dim=1), posterior[:, t].pow(3).sum(dim=1)
        z = (chosen - expected).sum() / (second - expected.square()).sum().sqrt()
        assert abs(z) < 4.5


def test_streams_are_none_of_the_language_s_own(hmm):
    train = draw_split(hmm, "train", 400, seed=0).ids
    mine = hmm.sample(1000, seed=0)
    mine = mine[~in_test(mine, hmm.pad_id)][:400]
    assert not torch.equal(train, mine)


def test_no_sentences(pcfg):
    assert draw_split(pcfg, "train", 0, seed=0, start=5).ids.shape == (0, pcfg.max_length)


def test_unknown_split_is_refused(pcfg):
    with pytest.raises(DataError, match="no 'dev'; choose train or test"):
        draw_split(pcfg, "dev", 3, seed=0)


class Single(HMM):
    """Says one sentence only, and counts how often."""

    drawn = 0

    def sample_latent(self, n, *, seed, start=0):
        self.drawn += n
        sample = super().sample_latent(n, seed=seed, start=start)
        sample.ids[:] = torch.tensor([0, 1, 0, 1, 0])
        return sample


def test_language_of_one_sentence_has_one_split(hmm):
    tables = {"initial": hmm.initial, "transition": hmm.transition, "emission": hmm.emission}
    language = Single(**tables, length=5, tasks=(2,))
    side = in_test(torch.tensor([[0, 1, 0, 1, 0]]), language.pad_id).item()
    full, empty = ("test", "train") if side else ("train", "test")
    assert len(draw_split(language, full, 2000, seed=0).ids) == 2000
    language.drawn = 0
    with pytest.raises(DataError, match=f"split '{empty}' of Single: 0 of {CANDIDATES} .*longer sentences"):
        draw_split(language, empty, 1, seed=0)
    assert language.drawn == CANDIDATES


def test_stored_sentences_are_of_the_split_they_were_drawn_for(hmm):
    sample = draw_split(hmm, "test", 100, seed=2)
    assert bool(in_test(sample.ids.to(torch.int32), hmm.pad_id).all())


def test_facts_count_classes():
    task = Task(name="x", classes=("a", "b", "c"), description="")
    facts = TaskFacts.of(task, torch.tensor([1, 2, 2, 1]))
    assert (facts.counts, facts.n, facts.classes_seen) == ((0, 2, 2), 4, 2)
    assert (facts.majority, facts.majority_rate, facts.majority_standard_error) == (1, 0.5, 0.25)
    more = facts + TaskFacts.of(task, torch.tensor([2]))
    assert (more.counts, more.majority, more.majority_rate) == ((0, 2, 3), 2, 0.6)
    none = TaskFacts.of(task, torch.tensor([], dtype=torch.int64))
    assert (none + more).counts == more.counts
    assert math.isnan(none.majority_rate)
    assert math.isnan(none.majority_standard_error)
    with pytest.raises(DataError, match="'x' and 'y' do not add up"):
        facts + TaskFacts.of(Task(name="y", classes=("a",), description=""), torch.tensor([0]))


def test_facts_of_a_sample(hmm):
    sample = draw_split(hmm, "test", 3000, seed=1)
    facts = task_facts(hmm, sample)
    assert list(facts) == ["2", "4"]
    for name, fact in facts.items():
        labels = sample.latents["states"][:, int(name) - 1].tolist()
        assert fact.counts == tuple(labels.count(k) for k in range(4))
    assert list(task_facts(hmm, sample, ["4"])) == ["4"]
    with pytest.raises(DataError, match="no task '3'"):
        task_facts(hmm, sample, ["3"])
