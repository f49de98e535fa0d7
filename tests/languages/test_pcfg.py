"""Random grammars, their configuration, and charts that leave float32's range."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysweep.errors import ConfigError
from raysweep.languages import PCFG
from raysweep.languages.pcfg import Grammar
from raysweep.languages.pcfg.language import NONE
from raysweep.languages.splits import draw_split, task_facts

SHAPES: list[dict[str, Any]] = [
    {},
    {"roots": 2, "layers": 2, "symbols": 3, "rules": 4, "words": 6, "vocabulary": 12},
    {"roots": 3, "layers": 3, "symbols": 5, "rules": 1, "words": 5, "vocabulary": 25, "stop": 0.0},
    {"roots": 2, "layers": 1, "symbols": 3, "words": 4, "vocabulary": 10},
    {"roots": 10, "layers": 6, "symbols": 20, "rules": 2, "words": 2, "vocabulary": 40},
    {"roots": 1, "layers": 2, "symbols": 1, "rules": 1, "words": 9, "vocabulary": 9},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_layered_shape(shape: dict[str, Any], seed: int) -> None:
    full = {
        "roots": 9,
        "layers": 4,
        "symbols": 10,
        "rules": 20,
        "words": 100,
        "vocabulary": 200,
        "stop": 0.18,
    }
    full |= shape
    roots, layers, symbols = full["roots"], full["layers"], full["symbols"]
    language = PCFG.random(seed=seed, **shape)
    grammar = language.grammar
    assert len(grammar.symbols) == roots + layers * symbols
    assert language.max_length == 2**layers
    total = grammar.emission.sum(axis=1) + np.bincount(
        grammar.parent, weights=grammar.probability, minlength=len(grammar.symbols)
    )
    assert np.abs(total - 1).max() < 1e-12
    layer = np.array([0] * roots + [k + 1 for k in range(layers) for _ in range(symbols)])
    assert (layer[grammar.left] == layer[grammar.parent] + 1).all()
    assert (layer[grammar.right] == layer[grammar.parent] + 1).all()
    pairs = set(zip(grammar.parent.tolist(), grammar.left.tolist(), grammar.right.tolist(), strict=True))
    assert len(pairs) == len(grammar.parent)
    rules = np.bincount(grammar.parent, minlength=len(layer))
    assert (rules[layer == 0] == 1).all()
    assert (rules[(layer > 0) & (layer < layers)] == full["rules"]).all()
    assert (rules[layer == layers] == 0).all()
    assert len({(b, c) for a, b, c in pairs if a < roots}) == roots
    words = (grammar.emission > 0).sum(axis=1)
    assert (words[layer == layers] == full["words"]).all()
    assert (words[(layer > 0) & (layer < layers)] == (full["stop"] > 0)).all()
    assert np.allclose(grammar.emission[(layer > 0) & (layer < layers)].sum(axis=1), full["stop"], atol=1e-15)
    # Every symbol is reached from the start, so every word is used.
    assert set(grammar.left) | set(grammar.right) == set(range(roots, len(layer)))
    assert grammar.emission.any(axis=0).all()
    assert (grammar.root[:roots] > 0).all()
    assert grammar.root[roots:].sum() == 0
    assert math.isclose(language.length_probabilities.sum(), 1.0, abs_tol=1e-12)


def test_lengths_of_the_default_grammar() -> None:
    language = PCFG.random(seed=0)
    n = 20_000
    lengths = language.lengths(language.sample(n, seed=1))
    assert int(lengths.min()) >= 2
    assert int(lengths.max()) <= 16
    truth = language.length_probabilities
    share = np.bincount(lengths.numpy(), minlength=17) / n
    assert (np.abs(share - truth) <= 4.5 * np.sqrt(truth * (1 - truth) / n) + 1e-12).all()
    # About 10.7 words a sentence, as the grammar this shape is taken from.
    assert 10 < truth @ np.arange(17) < 11.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"symbols": 3, "words": 100, "rules": 10, "roots": 2}, r"^rules: 10 rules a symbol.* 9 pairs$"),
        ({"words": 300}, r"^words: 300 words a symbol, but the vocabulary has only 200$"),
        ({"words": 2}, r"^words: .* cover at most 20 .* use at least 20 words$"),
        ({"roots": 1}, r"^roots: 1 roots reach at most 2 of the 10 symbols"),
        ({"roots": 101}, r"^roots: 101 roots, but 10 symbols make only 100 different pairs$"),
        ({"layers": 8}, r"^layers: 8 layers make sentences of 256 words"),
        ({"label": "outside"}, r"^label: .*'inside', 'prefix', 'posterior' or 'tree'"),
        ({"lables": "tree"}, r"^lables: unknown field — did you mean 'label'\?$"),
        ({"stop": 1.0}, r"^stop: "),
        ({"structure": "dense", "stop": 0.0}, r"^stop: 0 leaves a dense grammar without words$"),
        ({"concentration": 0}, r"^concentration: "),
        ({"seed": -1}, r"^seed: "),
        ({"seed": True}, r"^seed: "),
        ({"path": "x"}, r"^path: belongs to structure 'file', not 'layered'"),
        ({"structure": "file"}, r"^path: missing"),
        ({"structure": "file", "path": "/nowhere/rules"}, r"^path: there is no file '/nowhere/rules'$"),
        ({"nonterminals": 5}, r"^nonterminals: belongs to structure 'dense', not 'layered'"),
        ({"max_length": 1}, r"^max_length: the shortest sentence of a layered grammar has 2 words$"),
        ({"max_length": 129}, r"^max_length: "),
        ({"spans": (17, 2)}, r"^spans: a prefix of 17 words is outside 1 \.\. 16$"),
        ({"words": 2, "roots": 1}, r"^roots: .*\nwords: "),
        ({"label": "tree", "candidates": "all"}, r"^candidates: 'all' belongs to label 'inside', not 'tree'"),
        ({"candidates": "all"}, r"^candidates: 'all' belongs to structure 'file'; every symbol of a layered"),
        ({"task_words": 17}, r"^task_words: no sentence has 17 words; the longest has 16$"),
    ],
)
def test_configuration_makes_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PCFG.random(**fields)


def test_grammar_must_sum_to_one() -> None:
    none = np.zeros(0, dtype=np.int64)
    fields = {"symbols": ("A",), "words": ("x",), "parent": none, "left": none, "right": none}
    with pytest.raises(ConfigError, match=r"the rules of A sum to 0\.5, not 1"):
        Grammar(**fields, root=np.ones(1), probability=none.astype(float), emission=np.full((1, 1), 0.5))
    with pytest.raises(ConfigError, match="the rules of the start symbol sum to 2, not 1"):
        Grammar(**fields, root=np.full(1, 2.0), probability=none.astype(float), emission=np.ones((1, 1)))


def test_charts_below_float32s_range(tmp_path: Path) -> None:
    """Six improbable rules make 1e-48, which float32 does not hold; the answer does not suffer."""
    file = tmp_path / "rules"
    file.write_text("S -> S S [1e-12] | 'a' [0.3] | 'b' [0.7]")
    language = PCFG.from_rules(file, max_length=8)
    ids = torch.tensor([[0, 1, 0, 0, 1, 0, 1]])
    usual = language.conditionals(ids)
    assert usual.isfinite().all()
    torch.testing.assert_close(usual.exp(), torch.tensor([0.3, 0.7]).expand(1, 7, 2), rtol=0, atol=1e-6)
    assert language.log_prob(ids).isfinite().all()


def test_default_spans_and_classes() -> None:
    language = PCFG.random()
    assert language.spans == (8, 4)
    assert language.tasks["A"].classes == tuple(f"S{k}" for k in range(1, 10))
    assert language.tasks["B"].classes == (*language.grammar.symbols, NONE)
    assert "first 4 words" in language.tasks["C"].description
    released = PCFG.random(spans=(4, 2))
    assert released.fingerprint != language.fingerprint
    assert "first 2 words" in released.tasks["C"].description


def test_tasks_of_longer_sentences_alone() -> None:
    fields = {"roots": 2, "layers": 2, "symbols": 3, "rules": 4, "words": 6, "vocabulary": 12}
    language = PCFG.random(**fields, task_words=3)
    plain = PCFG.random(**fields)
    assert language.fingerprint != plain.fingerprint
    for split in ("train", "test"):
        ids = draw_split(language, split, 500, seed=0).ids
        assert int(language.lengths(ids).min()) == 3
        other = draw_split(plain, split, 2000, seed=0).ids
        assert torch.equal(other[plain.lengths(other) >= 3][:500], ids)
    facts = task_facts(language, language.sample_latent(400, seed=1))["A"]
    assert facts.n == int((language.lengths(language.sample(400, seed=1)) >= 3).sum())


def test_new_options_leave_former_identities_alone() -> None:
    """The fingerprint of the default grammar as it was before tasks had these options."""
    language = PCFG.random()
    assert language.fingerprint == PCFG.random(candidates="reached", task_words=1).fingerprint
    assert language.fingerprint.startswith("8fad515c8cd0dd8f")


def test_drawing_shows_every_word() -> None:
    language = PCFG.random(roots=2, layers=3, symbols=3, rules=4, words=6, vocabulary=12)
    sample = language.sample_latent(5, seed=0)
    for row in range(5):
        words = [language.words[w] for w in sample.ids[row].tolist() if w != language.pad_id]
        lines = language.draw(sample, row).split("\n")
        assert len(lines) == 2 * len(words) - 1
        leaves = [line.split()[-1] for line in lines if line.split()[-1].startswith("w")]
        assert leaves == words
