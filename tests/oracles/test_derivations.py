"""PCFG against the enumeration of all derivations: probabilities, labels, sampled trees."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from raysweep.languages import PCFG
from raysweep.languages.pcfg import Grammar
from raysweep.languages.pcfg.tree import nodes

#: (probability, {(start, width, symbol)})
Derivation = tuple[float, frozenset[tuple[int, int, int]]]

CASES = {
    "layered": {"roots": 2, "layers": 2, "symbols": 3, "rules": 4, "stop": 0.3, "words": 3, "vocabulary": 4},
    "dense": {"structure": "dense", "nonterminals": 3, "vocabulary": 2, "max_length": 4, "spans": (3, 2)},
}


def derivations(grammar: Grammar, symbol: int, words: Sequence[int], start: int = 0) -> Iterator[Derivation]:
    """All derivations of `words` from `symbol`."""
    node = (start, len(words), symbol)
    if len(words) == 1:
        p = float(grammar.emission[symbol, words[0]])
        if p > 0:
            yield p, frozenset([node])
        return
    for r in np.nonzero(grammar.parent == symbol)[0]:
        for u in range(1, len(words)):
            left = list(derivations(grammar, int(grammar.left[r]), words[:u], start))
            if left:
                for q, below in derivations(grammar, int(grammar.right[r]), words[u:], start + u):
                    for p, beside in left:
                        yield float(grammar.probability[r]) * p * q, below | beside | {node}


def parses(language: PCFG, words: Sequence[int]) -> list[Derivation]:
    """All derivations of a sentence, with their probabilities in the language."""
    kept = (language.grammar.lengths(language.max_length) @ language.grammar.root).sum()
    return [
        (float(weight) * p / kept, tree)
        for root, weight in enumerate(language.grammar.root)
        if weight > 0
        for p, tree in derivations(language.grammar, root, words)
    ]


@pytest.fixture(params=CASES)
def fields(request: pytest.FixtureRequest) -> dict[str, object]:
    return CASES[request.param]


def test_log_prob(fields: dict[str, object]) -> None:
    language = PCFG.random(seed=1, **fields)
    for n in range(1, 5):
        for words in itertools.product(range(language.vocabulary_size), repeat=n):
            truth = math.fsum(p for p, _ in parses(language, words))
            assert abs(language.log_prob(torch.tensor([words])).exp().item() - truth) < 1e-14


def test_inside_and_posterior_labels(fields: dict[str, object]) -> None:
    inside = PCFG.random(seed=2, label="inside", **fields)
    posterior = PCFG.random(seed=2, label="posterior", **fields)
    sample = inside.sample_latent(25, seed=0)
    N = len(inside.grammar.symbols)
    roots = [a for a in range(N) if inside.grammar.root[a] > 0]
    seen = Counter()
    for name, span in zip("ABC", (inside.max_length, *inside.spans), strict=True):
        found = {lang: lang.labels(name, sample).tolist() for lang in (inside, posterior)}
        for row in range(len(sample.ids)):
            words = sample.ids[row, : int(inside.lengths(sample.ids)[row])].tolist()
            size = min(span, len(words))
            allowed = roots if name == "A" else list(range(N))
            derive = [sum(p for p, _ in derivations(inside.grammar, a, words[:size])) for a in allowed]
            trees = parses(inside, words)
            joint = [sum(p for p, tree in trees if (0, size, a) in tree) for a in allowed]
            none = sum(p for p, _ in trees) - sum(joint)
            best = int(np.argmax(derive)) if max(derive) > 0 else N
            assert found[inside][row] == best
            likely = int(np.argmax(joint)) if max(joint) >= none else N
            assert found[posterior][row] == likely
            seen["differ"] += best != likely
            seen["none"] += likely == N
    assert seen["differ"] > 0
    assert seen["none"] > 0


def everything(language: PCFG) -> dict[tuple[int, ...], list[Derivation]]:
    """All sentences with their derivations."""
    words = range(language.vocabulary_size)
    found = (w for n in range(1, language.max_length + 1) for w in itertools.product(words, repeat=n))
    return {sentence: trees for sentence in found if (trees := parses(language, sentence))}


def test_prefix_labels(fields: dict[str, object]) -> None:
    """The posterior given the prefix, from all sentences that begin with it."""
    language = PCFG.random(seed=2, label="prefix", **fields)
    sample = language.sample_latent(25, seed=0)
    all_parses, N = everything(language), len(language.grammar.symbols)
    roots = [a for a in range(N) if language.grammar.root[a] > 0]
    differ = 0
    inside = PCFG.random(seed=2, **fields)
    for name, span in zip("ABC", (language.max_length, *language.spans), strict=True):
        found = language.labels(name, sample).tolist()
        differ += int((language.labels(name, sample) != inside.labels(name, sample)).sum())
        for row, label in enumerate(found):
            words = tuple(sample.ids[row, : int(language.lengths(sample.ids)[row])].tolist())
            size = min(span, len(words))
            same = [
                trees
                for sentence, trees in all_parses.items()
                if sentence[:size] == words[:size] and (name != "A" or len(sentence) == size)
            ]
            joint = np.zeros(N)
            for p, tree in itertools.chain.from_iterable(same):
                for start, width, symbol in tree:
                    if (start, width) == (0, size):
                        joint[symbol] += p
            best = int(joint.argmax()) if joint.max() > 0 else N
            assert label == (roots.index(best) if name == "A" else best)
    assert differ > 0


def test_posterior_of_the_sampled_symbol(fields: dict[str, object]) -> None:
    language = PCFG.random(seed=5, label="tree", **fields)
    ids = language.sample(25, seed=0)
    N = len(language.grammar.symbols)
    roots = [a for a in range(N) if language.grammar.root[a] > 0]
    for name, span in zip("ABC", (language.max_length, *language.spans), strict=True):
        found = language.label_posterior(name, ids)
        for row in range(len(ids)):
            words = ids[row, : int(language.lengths(ids)[row])].tolist()
            trees = parses(language, words)
            total = sum(p for p, _ in trees)
            above = [sum(p for p, t in trees if (0, min(span, len(words)), a) in t) / total for a in range(N)]
            want = [above[a] for a in roots] if name == "A" else [*above, 1 - sum(above)]
            assert found[row].tolist() == pytest.approx(want, abs=1e-12)


def test_symbols_that_no_sentence_contains_can_be_left_out(tmp_path: Path) -> None:
    """X derives "a" better than A does, and the start symbol never reaches it."""
    file = tmp_path / "rules"
    file.write_text(
        "S -> A B [1.0]\nA -> 'a' [0.4] | 'b' [0.6]\nB -> 'a' [0.3] | 'b' [0.7]\nX -> 'a' [1.0]\n"
    )
    fields = {"max_length": 2, "spans": (1, 1)}
    best = {}
    for candidates in ("reached", "all"):
        language = PCFG.from_rules(file, candidates=candidates, **fields)
        sample = language.sample_latent(20, seed=0)
        names = [language.tasks["B"].classes[k] for k in language.labels("B", sample)]
        best[candidates] = dict(zip(sample.ids[:, 0].tolist(), names, strict=True))
        assert (language.max_length, language.words) == (2, ("a", "b"))
        assert language.log_prob(torch.tensor([[0, 1]])).exp().item() == pytest.approx(0.4 * 0.7)
    assert best == {"reached": {0: "A", 1: "B"}, "all": {0: "X", 1: "B"}}
    assert PCFG.from_rules(file, **fields).fingerprint != language.fingerprint
    assert language.notes == ("unreachable from S and kept for the labels: X (line 4)",)
    prefix = PCFG.from_rules(file, label="prefix", **fields)
    assert {prefix.tasks["B"].classes[k] for k in prefix.labels("B", sample)} == {"A"}


def test_sampled_trees_are_derivations(fields: dict[str, object]) -> None:
    language = PCFG.random(seed=3, label="tree", **fields)
    sample = language.sample_latent(200, seed=0)
    labels = {name: language.labels(name, sample).tolist() for name in "BC"}
    grammar = language.grammar
    rules = set(zip(grammar.parent.tolist(), grammar.left.tolist(), grammar.right.tolist(), strict=True))
    for row in range(200):
        tree = nodes(sample, row)
        at = {(node.start, node.width): node for node in tree}
        n = int(language.lengths(sample.ids)[row])
        assert len(at) == len(tree) == 2 * n - 1
        for node in tree:
            if node.width == 1:
                assert node.word == sample.ids[row, node.start]
                assert grammar.emission[node.symbol, node.word] > 0
            else:
                cuts = [
                    u
                    for u in range(1, node.width)
                    if (node.start, u) in at and (node.start + u, node.width - u) in at
                ]
                assert len(cuts) == 1
                left, right = at[node.start, cuts[0]], at[node.start + cuts[0], node.width - cuts[0]]
                assert (node.symbol, left.symbol, right.symbol) in rules
                assert left.depth == right.depth == node.depth + 1
        for name, span in zip("BC", language.spans, strict=True):
            above = at.get((0, min(span, n)))
            assert labels[name][row] == (above.symbol if above else len(grammar.symbols))


def test_sampled_trees_have_their_probabilities() -> None:
    """Pearson's statistic over all derivations of one to four words at fixed n."""
    language = PCFG.random(
        seed=4, structure="dense", nonterminals=2, vocabulary=2, max_length=4, concentration=2.0
    )
    draws = 40_000
    sample = language.sample_latent(draws, seed=7)
    packed = torch.cat([sample.ids, *(sample.latents[k].reshape(draws, -1) for k in ("symbol", "width"))], 1)
    distinct, counts = torch.unique(packed, dim=0, return_counts=True)
    half = language.max_length
    observed: Counter[tuple[tuple[int, ...], frozenset[tuple[int, int, int]]]] = Counter()
    for line, count in zip(distinct, counts.tolist(), strict=True):
        one = type(sample)(
            ids=line[None, :half],
            latents={
                "symbol": line[half : 3 * half].view(1, 2, half),
                "width": line[3 * half :].view(1, 2, half),
            },
        )
        words = tuple(w for w in one.ids[0].tolist() if w != language.pad_id)
        observed[words, frozenset((v.start, v.width, v.symbol) for v in nodes(one, 0))] += count
    expected = {
        (words, tree): draws * p
        for n in range(1, 5)
        for words in itertools.product(range(2), repeat=n)
        for p, tree in parses(language, words)
    }
    assert abs(sum(expected.values()) - draws) < 1e-6
    assert set(observed) <= set(expected)
    common = {key: mean for key, mean in expected.items() if mean >= 10}
    rest = draws - sum(common.values())
    statistic = sum((observed[key] - mean) ** 2 / mean for key, mean in common.items())
    statistic += (draws - sum(observed[key] for key in common) - rest) ** 2 / rest
    freedom = len(common)
    assert freedom > 100
    assert abs(statistic - freedom) / math.sqrt(2 * freedom) < 4.5
