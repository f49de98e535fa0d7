"""HMM tables, their configuration, and normalisers that leave float32's range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from raysweep.errors import ConfigError, DataError
from raysweep.languages import HMM


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
