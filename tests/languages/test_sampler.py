"""Sampling: the compiled form against the torch form bit by bit; the paper's presets against the truth."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysweep.compiled.philox import TILE, fill, key
from raysweep.languages import HMM, PCFG, Language
from raysweep.languages.draw import Categories
from raysweep.languages.guide import guide, pick
from raysweep.seeding import words

FAR = (1 << 40) + (1 << 32) - 5


@pytest.mark.parametrize("start", [0, (1 << 32) - 5, FAR])
@pytest.mark.parametrize("blocks", [1, 7])
def test_compiled_words_are_seedings(start: int, blocks: int) -> None:
    out = np.empty((4, TILE * blocks), dtype=np.uint32)
    numbers = torch.tensor([start + i * (7 if i % 2 else -3) % 40 for i in range(TILE + 9)])
    for first in (0, TILE):
        fill(key(3, "test"), numbers.numpy(), first, blocks, out)
        drawn = out.reshape(4, TILE, blocks).transpose(1, 2, 0).reshape(TILE, 4 * blocks)
        wanted = words(3, "test", numbers[first : first + TILE], 4 * blocks)
        assert np.array_equal(drawn.astype(np.int64)[: len(wanted)], wanted.numpy())


@pytest.mark.parametrize(
    "weights",
    [
        np.array([[0.0, 2.0, 6.0, 0.0], [1.0, 0.0, 0.0, 3.0], [0.0, 0.0, 5.0, 0.0]]),
        # Entries that no word draws: first, in the middle, last, several in a row.
        np.array([[1e-30, 1.0, 1e-30, 1e-25, 1.0, 1e-30], [1.0, 1e-30, 1e-30, 1e-12, 1e-30, 3.0]]),
        np.full((200, 3), 0.1),
        np.full((2, 700), 0.1),
        np.geomspace(1.0, 1e-9, 60).reshape(2, 30),
    ],
)
def test_compiled_draws_are_those_of_categories(weights: np.ndarray) -> None:
    categories = Categories.of_rows(weights)
    tables = guide(categories)
    # Words at and around every edge, the ends, and some others.
    edges = (categories.edges - categories.group) * 2.0**32
    some = torch.cat([words(1, "test", torch.arange(1), 200)[0], torch.tensor([0, 1, (1 << 32) - 2])])
    for group in {0, 1, len(weights) - 1}:
        near = (edges[categories.group == group].to(torch.int64)[:, None] + torch.arange(-4, 5)).reshape(-1)
        word = torch.cat([near, some]).clamp(0, (1 << 32) - 1)
        wanted = categories.draw(torch.full_like(word, group), (word.double() + 0.5) * 2.0**-32)
        found = [int(tables.entry[pick(tables, group, w)]) for w in word.numpy().astype(np.uint32)]
        assert found == wanted.tolist()


PCFG_SENTENCES = [
    [139, 53, 137, 197, 44, 165, 120, *[200] * 9],
    [4, 38, 88, 123, 77, 182, 72, 111, 110, *[200] * 7],
    [127, 101, 123, 179, 73, 151, 129, 101, 181, *[200] * 7],
]
HMM_SENTENCES = [
    [89, 95, 85, 83, 97, 83, 90, 94, 83, 85, 87, 91, 85, 82, 81, 93],
    [8, 8, 13, 3, 3, 6, 2, 5, 14, 19, 17, 13, 8, 9, 6, 14],
]

GRAMMARS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cut": {"max_length": 7},
    "dense": {"structure": "dense", "nonterminals": 6, "vocabulary": 9, "max_length": 21},
    "one word": {"structure": "dense", "nonterminals": 3, "vocabulary": 4, "max_length": 1},
}


@pytest.mark.parametrize("fields", GRAMMARS.values(), ids=GRAMMARS)
def test_compiled_derivations_are_the_torch_forms(fields: dict[str, Any]) -> None:
    language = PCFG.random(seed=2, **fields)
    sampler = language._sampler
    for n, start in ((0, 0), (1, 5), (1003, 0), (100, FAR)):
        numbers = torch.arange(start, start + n)
        compiled = sampler.draw(numbers, seed=4, pad=language.pad_id)
        for a, b in zip(compiled, sampler.expand(numbers, seed=4, pad=language.pad_id), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        bare = sampler.draw(numbers, seed=4, pad=language.pad_id, derivations=False)
        assert torch.equal(bare[0], compiled[0])
        assert bare[1].shape == bare[2].shape == (0, 2, language.max_length)


MODELS: dict[str, dict[str, Any]] = {
    "paper": {},
    "one block": {"states": 5, "vocabulary": 3, "length": 7, "blocks": 1, "tasks": ()},
    "one word": {"states": 4, "vocabulary": 6, "length": 1, "blocks": 2, "tasks": ()},
}


@pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)
def test_compiled_paths_are_the_torch_forms(fields: dict[str, Any]) -> None:
    sampler = HMM.random(seed=2, **fields)._sampler
    for n, start in ((0, 0), (1, 5), (1003, 0), (100, FAR)):
        numbers = torch.arange(start, start + n)
        compiled = sampler.draw(numbers, seed=4)
        for a, b in zip(compiled, sampler.walk(numbers, seed=4), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        ids, states = sampler.draw(numbers, seed=4, states=False)
        assert torch.equal(ids, compiled[0])
        assert states.shape == (0, sampler.length)


def test_sentences_of_a_seed_stay() -> None:
    """Data is never stored: what a seed gave once, it gives for good."""
    ids = PCFG.random(seed=0).sample(3, seed=0)
    assert ids.tolist() == PCFG_SENTENCES
    assert HMM.random(seed=0).sample(2, seed=0).tolist() == HMM_SENTENCES


def test_lengths_of_the_papers_grammar() -> None:
    language, n = PCFG.random(seed=0), 400_000
    exact = language.length_probabilities
    counts = torch.bincount(language.lengths(language.sample(n, seed=5)), minlength=17).numpy()
    assert (counts[exact == 0] == 0).all()
    p = exact[exact > 0]
    z = (counts[exact > 0] - n * p) / np.sqrt(n * p * (1 - p))
    assert np.abs(z).max() < 4.5
    statistic = ((counts[exact > 0] - n * p) ** 2 / (n * p)).sum()
    assert abs(statistic - (len(p) - 1)) / math.sqrt(2 * (len(p) - 1)) < 4.5


def mean_per_sentence(values: Tensor, real: Tensor) -> Tensor:
    return torch.where(real[:, :, None], values, 0.0).sum(dim=1) / real.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("language", [PCFG.random(seed=0), HMM.random(seed=0)], ids=["pcfg", "hmm"])
def test_words_of_the_papers_presets_are_calibrated(language: Language) -> None:
    """The mean conditional probability of each word is its frequency."""
    n, excess = 20_000, []
    for start in range(0, n, 2000):
        ids = language.sample(2000, seed=6, start=start)
        real = ids != language.pad_id
        p = language.conditionals(ids).exp().double()
        seen = torch.nn.functional.one_hot(torch.where(real, ids, 0), language.vocabulary_size)
        excess.append(mean_per_sentence(p - seen, real))
    values = torch.cat(excess)
    z = values.mean(dim=0) / (values.std(dim=0) / math.sqrt(n))
    assert values.any(dim=0).all()
    assert z.abs().max() < 4.5


def test_languages_come_without_numba() -> None:
    code = "import sys, raysweep.languages; print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"
