"""HMM tables, their configuration, and normalisers that leave float32's range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysweep.compiled import tiles
from raysweep.errors import ConfigError, DataError
from raysweep.languages import HMM, Language
from raysweep.languages.hmm import HMMConfig, passes
from raysweep.languages.hmm.blocks import Blocks


def test_tables_are_block_diagonal() -> None:
    language = HMM.random(seed=1, states=7, vocabulary=11, length=6, blocks=3, tasks=())
    state, word = np.arange(7) * 3 // 7, np.arange(11) * 3 // 11
    assert (language.transition > 0).tolist() == (state[:, None] == state).tolist()
    assert (language.emission > 0).tolist() == (state[:, None] == word).tolist()
    assert (language.initial > 0).all()
    assert np.abs(language.transition.sum(axis=1) - 1).max() < 1e-12
    ids = language.sample(500, seed=0)
    blocks = torch.from_numpy(word)[ids]
    assert (blocks == blocks[:, :1]).all()
    assert blocks.unique().tolist() == [0, 1, 2]


def test_defaults_are_the_papers() -> None:
    language = HMM.random()
    assert (language.states, language.vocabulary_size, language.max_length) == (100, 200, 16)
    assert list(language.tasks) == ["6", "10"]


def joint(language: HMM, ids: np.ndarray) -> np.ndarray:
    """Return Pr(x) [B] by the forward recursion, a sentence and a word at a time."""
    found = []
    for words in ids:
        alpha = language.initial * language.emission[:, words[0]]
        for word in words[1:]:
            alpha = (alpha @ language.transition) * language.emission[:, word]
        found.append(alpha.sum())
    return np.array(found)


def test_the_papers_preset_has_its_entropy() -> None:
    language = HMM.random(preset="paper")
    ids = language.sample(6, seed=0)
    entropies = []
    for sentence in ids.numpy():
        terms = []
        for t in range(16):
            others = np.repeat(sentence[None], 200, axis=0)
            others[:, t] = np.arange(200)
            p = joint(language, others)
            p = p[p > 0] / p.sum()
            terms.append(-(p * np.log(p)).sum())
        entropies.append(np.mean(terms))
    np.testing.assert_allclose(language.sentence_entropy(ids).numpy(), entropies, rtol=1e-5)
    estimate = language.entropy(4096, seed=0)
    assert estimate.standard_error < 5e-4
    assert abs(np.mean(entropies) - estimate.value) < 4 * np.std(entropies, ddof=1) / np.sqrt(6)
    assert abs(estimate.value - 3.758) < 4 * estimate.standard_error
    # The blocks of the default are too small for it.
    assert HMM.random().entropy(64, seed=0).value < np.log(20) < 3.758


def test_a_preset_gives_way_to_what_stands_beside_it() -> None:
    config = HMMConfig.decode({"preset": "paper", "blocks": 2})
    assert (config.blocks, config.concentration) == (2, 0.276)
    assert HMMConfig.decode(config.encode()) == config
    assert HMM.random(preset="paper", blocks=4, concentration=0.276).fingerprint == (
        HMM.random(blocks=4, concentration=0.276).fingerprint
    )
    with pytest.raises(ConfigError, match=r"^preset: .*should be 'paper'"):
        HMM.random(preset="book")


def test_state_labels_are_the_sampled_states() -> None:
    language = HMM.random(seed=2, states=6, vocabulary=8, length=5, blocks=2, tasks=(1, 4))
    sample = language.sample_latent(100, seed=0)
    for name in ("1", "4"):
        labels = language.labels(name, sample)
        assert torch.equal(labels, sample.latents["states"][:, int(name) - 1])
        assert (language.emission[labels, sample.ids[:, int(name) - 1]] > 0).all()
    text = language.draw(sample, 0).split()
    assert text[0] == f"w{int(sample.ids[0, 0])}/s{int(sample.latents['states'][0, 0])}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"blocks": 101}, r"^blocks: 101 blocks need at least as many states, not 100$"),
        ({"states": 300, "blocks": 250}, r"^blocks: 250 blocks need at least as many vocabulary"),
        ({"length": 8}, r"^tasks: position 10 is outside 1 \.\. 8"),
        ({"tasks": (0,)}, r"^tasks: position 0 is outside"),
        ({"tasks": (3, 3)}, r"^tasks: a position is named twice"),
        ({"label": "tree"}, r"^label: "),
        ({"state": 3}, r"^state: unknown field — did you mean 'states'\?$"),
        ({"length": 0}, r"^length: "),
    ],
)
def test_configuration_makes_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HMM.random(**fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial": np.array([0.5, 0.4])}, "initial: rows must be probabilities"),
        ({"transition": np.eye(3)}, "transition: shape"),
        ({"emission": np.array([[2.0, -1.0], [0.5, 0.5]])}, "emission: rows must be probabilities"),
        ({"tasks": (5,)}, "tasks: position 5"),
    ],
)
def test_tables_must_be_probabilities(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "initial": np.full(2, 0.5),
        "transition": np.eye(2),
        "emission": np.eye(2),
        "length": 4,
    }
    with pytest.raises(ConfigError, match=message):
        HMM(**fields | change)


def test_other_lengths_are_not_sentences() -> None:
    language = HMM.random(states=3, vocabulary=4, length=3, blocks=1, tasks=())
    short = torch.tensor([[0, 1, 2], [0, 1, language.pad_id]])
    assert language.log_prob(short).isneginf().tolist() == [False, True]
    with pytest.raises(DataError, match="sentence 1: 2 words"):
        language.conditionals(short)


def test_normalisers_below_float32s_range() -> None:
    """A sentence that needs one transition of 1e-40 a step is answered in float64."""
    rare = 1e-40
    language = HMM(
        initial=np.array([0.5, 0.5, 0.0]),
        transition=np.array([[1.0, rare, 0.0], [rare, 0.25, 0.75], [0.0, 1.0, 0.0]]),
        emission=np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.25, 0.75]]),
        length=5,
    )
    ids = torch.tensor([[0, 0, 1, 2, 1], [0, 1, 2, 2, 0]])
    exact = language.conditionals(ids, dtype=torch.float64)
    usual = language.conditionals(ids)
    assert usual.dtype == torch.float32
    torch.testing.assert_close(usual.exp().double(), exact.exp(), rtol=0, atol=1e-6)
    # By hand: the second word comes from state 0, and so does what precedes it.
    assert exact[0, 0].exp().tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-15)


def test_words_below_float32s_range() -> None:
    """A word that no state makes likely tells states apart by a ratio that float32 would round."""
    emission = np.array([[0.9, 0.1, 5e-45], [0.2, 0.8, 2e-45]])
    language = HMM(initial=np.full(2, 0.5), transition=np.eye(2), emission=emission, length=2)
    ids = torch.tensor([[2, 0]])
    state = np.array([5.0, 2.0]) / 7
    found = language.conditionals(ids)[0, 1].exp()
    np.testing.assert_allclose(found.numpy()[:2], (state @ emission)[:2], rtol=0, atol=1e-6)
    # The other way round, the word is behind the hidden position.
    behind = language.conditionals(ids.flip(1))[0, 0].exp()
    np.testing.assert_allclose(behind.numpy()[:2], (state @ emission)[:2], rtol=0, atol=1e-6)
    # And where only the product of both sides is small.
    language = HMM(
        initial=np.array([1.0, 5e-45, 2e-45]),
        transition=np.eye(3),
        emission=np.array([[1.0, 0.0, 0.0], [0.0, 0.9, 0.1], [0.0, 0.2, 0.8]]),
        length=2,
    )
    before = language.conditionals(torch.tensor([[0, 1]]))[0, 0].exp()
    state = np.array([5 * 0.9, 2 * 0.2]) / (5 * 0.9 + 2 * 0.2)
    np.testing.assert_allclose(before.numpy()[1:], state @ language.emission[1:, 1:], rtol=0, atol=1e-6)


def total_variation(a: Tensor, b: Tensor) -> float:
    return ((a.double().exp() - b.double().exp()).abs().nansum(dim=-1).max() / 2).item()


@pytest.mark.parametrize("blocks", [10, 1])
def test_float32_on_the_papers_preset(blocks: int) -> None:
    language = HMM.random(seed=0, blocks=blocks)
    ids = language.sample(4096, seed=3)
    for part in ids.split(1024):
        exact = language.conditionals(part, dtype=torch.float64)
        assert total_variation(language.conditionals(part), exact) <= 2e-7
        truth = torch.special.entr(exact.exp()).sum(dim=-1).mean(dim=-1)
        assert (language.sentence_entropy(part) - truth).abs().max() < 1e-5


@pytest.mark.parametrize("blocks", [10, 1])
@pytest.mark.parametrize("rate", [None, 0.2, 0.9])
def test_results_do_not_depend_on_the_batch(
    rate: float | None, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results agree bit by bit where a visible word gives the block away: alone, in parts, reordered."""
    monkeypatch.setattr(tiles, "FAST", True)
    language = HMM.random(seed=0, blocks=blocks)
    ids = language.sample(300, seed=4)
    generator = torch.Generator().manual_seed(0)
    mask = None if rate is None else torch.rand(ids.shape, generator=generator) < rate
    if mask is not None:
        mask[:, 7] = False
    whole = language.conditionals(ids, mask)
    order = torch.randperm(300, generator=generator)
    for rows in (order, torch.arange(5, 6), torch.arange(100, 163)):
        part = language.conditionals(ids[rows], None if mask is None else mask[rows])
        torch.testing.assert_close(part, whole[rows], rtol=0, atol=0, equal_nan=True)
    if mask is None:
        assert torch.equal(language.sentence_entropy(ids[order]), language.sentence_entropy(ids)[order])


def scattered() -> HMM:
    """Blocks of unequal sizes whose states and words do not stand side by side."""
    sizes = [(1, 2), (4, 3), (7, 1), (18, 300)]
    S, V = (sum(pair[k] for pair in sizes) for k in (0, 1))
    generator = np.random.default_rng(0)
    states, words = generator.permutation(S), generator.permutation(V)
    transition, emission = np.zeros((S, S)), np.zeros((S, V))
    s = v = 0
    for rows, columns in sizes:
        inside, said = states[s : s + rows], words[v : v + columns]
        transition[np.ix_(inside, inside)] = generator.dirichlet(np.ones(rows), rows)
        emission[np.ix_(inside, said)] = generator.dirichlet(np.ones(columns), rows)
        s, v = s + rows, v + columns
    return HMM(initial=generator.dirichlet(np.ones(S)), transition=transition, emission=emission, length=6)


@pytest.mark.parametrize(
    ("language", "count"),
    [
        (scattered(), 4),
        (HMM.random(seed=3, blocks=5), 5),
        (HMM.random(seed=3, states=70, vocabulary=90, blocks=1), 1),
        # More words than are handed over together, in parts that fill no vector.
        (HMM.random(seed=3, states=70, vocabulary=1204, blocks=2), 2),
        # The last part is written in whole lines of the cache, or is too short for that.
        (HMM.random(seed=3, states=40, vocabulary=601, blocks=1), 1),
        (HMM.random(seed=3, states=40, vocabulary=300, blocks=1), 1),
    ],
    ids=["scattered", "random", "large", "many words", "one block", "short end"],
)
def test_blocks_are_the_dense_pass(language: HMM, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "FAST", True)
    ids = language.sample(500, seed=1)
    blocks = Blocks.find(language.initial, language.transition, language.emission)
    assert blocks is not None
    assert len(blocks.blocks) == count
    out = torch.empty(*ids.shape, language.vocabulary_size)
    assert len(blocks.answer(ids, None, out, None)) == 0
    exact = language.conditionals(ids, dtype=torch.float64)
    assert total_variation(out, exact) < 4e-7
    assert ((exact == -torch.inf) == (out == -torch.inf)).all()
    mask = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[0] = True
    exact = language.conditionals(ids, mask, dtype=torch.float64)
    found = language.conditionals(ids, mask)
    assert total_variation(found, exact) < 4e-7
    assert torch.equal(found.isnan(), exact.isnan())
    # Nothing is visible in the first sentence, so every block is possible.
    assert (
        blocks.answer(ids, mask, torch.empty_like(found), None).tolist()
        == mask.all(dim=1).nonzero()[:, 0].tolist()
    )
    assert found[0].isfinite().all()


def test_large_blocks_are_left_to_the_products_where_these_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(states: int, vocabulary: int, blocks: int = 1) -> bool:
        language = HMM.random(states=states, vocabulary=vocabulary, blocks=blocks, tasks=())
        return Blocks.find(language.initial, language.transition, language.emission) is not None

    monkeypatch.setattr(tiles, "FAST", True)
    assert found(33, 4097)
    monkeypatch.setattr(tiles, "FAST", False)
    assert [found(33, 40), found(32, 40), found(80, 90, blocks=2)] == [False, True, True]


def test_words_of_two_blocks_are_no_sentence() -> None:
    language = HMM.random(seed=0)
    ids = language.sample(200, seed=1)
    ids[77, 5] = (ids[77, 5] + 100) % 200
    with pytest.raises(DataError, match="sentence 77: its visible words have probability zero"):
        language.conditionals(ids)
    with pytest.raises(DataError, match="sentence 77"):
        language.sentence_entropy(ids)
    # Hidden, the wrong word is no matter.
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, 5] = True
    assert language.conditionals(ids, mask)[:, 5].exp().sum(dim=-1).sub(1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "fields", [{}, {"states": 9, "vocabulary": 7, "length": 5, "blocks": 1, "tasks": ()}]
)
def test_entropy_is_that_of_the_conditionals(fields: dict[str, Any]) -> None:
    language = HMM.random(seed=4, **fields)
    ids = language.sample(100, seed=2)
    by_definition = Language.sentence_entropy(language, ids)
    found = language.sentence_entropy(ids)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, by_definition, rtol=0, atol=1e-6)


def test_logarithms_are_right_to_one_unit_in_the_last_place() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = 10 ** (-45 + 45 * torch.rand(100_001, generator=generator, dtype=torch.float64))
    near = 1 - 1e-3 * torch.rand(50_000, generator=generator, dtype=torch.float64)
    edges = torch.tensor([0.0, 2.0**-149, 2.0**-126, 2.0**-94, 0.5, 0.70710677, 0.70710678, 1.0])
    values = torch.cat([spread, near, edges.double()]).float()
    out = torch.empty_like(values)
    passes.log(values, out)
    truth = values.double().log()
    assert torch.equal(out == -torch.inf, values == 0)
    kept = values > 0
    unit = torch.from_numpy(np.spacing(truth[kept].abs().float().numpy())).double()
    assert ((out[kept].double() - truth[kept]).abs() / unit).max() <= 1
    # An element's logarithm does not depend on its place.
    again = torch.empty_like(out[13:])
    passes.log(values[13:].contiguous(), again)
    assert torch.equal(again, out[13:])
