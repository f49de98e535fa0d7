"""Sentences whose probability float64 cannot hold: exact in logarithms, or impossible, never in between."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from raysweep.errors import DataError
from raysweep.languages.pcfg import PCFG, Grammar
from raysweep.languages.pcfg.engine import Name

ENGINES: list[Name] = ["sparse", "torch", "dense"]

#: S -> A S | B A | word; rare words have probabilities of 1e-300 under the symbols that must give them.
RARE = 1e-300


def grammar() -> Grammar:
    """Return a grammar in which A alone must derive the words 0 and 1, the second hardly ever."""
    return Grammar(
        symbols=("S", "A", "B"),
        words=("a", "rare", "b"),
        root=np.array([1.0, 0.0, 0.0]),
        parent=np.array([0, 0, 0]),
        left=np.array([1, 2, 1]),
        right=np.array([0, 1, 1]),
        probability=np.array([0.5, 0.25, 0.25]),
        # B derives the rare word in every second case, so no scale of words hides how rare it is under A.
        emission=np.array([[0.0, 0.0, 0.0], [1.0 - RARE, RARE, 0.0], [0.0, 0.5, 0.5]]),
    )


def log(value: Fraction) -> float:
    """Return the logarithm of a fraction of any size, -inf for zero."""
    if value == 0:
        return -math.inf
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    return math.log(value / Fraction(2) ** shift) + shift * math.log(2)


def probability(grammar: Grammar, words: tuple[int, ...]) -> Fraction:
    """Return Pr(words) below the start symbol in exact arithmetic, by the sum over all derivations."""
    rules = [
        (int(a), int(b), int(c), Fraction(float(p)))
        for a, b, c, p in zip(grammar.parent, grammar.left, grammar.right, grammar.probability, strict=True)
    ]

    @cache
    def inside(symbol: int, i: int, k: int) -> Fraction:
        if k == i + 1:
            return Fraction(float(grammar.emission[symbol, words[i]]))
        return sum(
            (
                p * inside(b, i, j) * inside(c, j, k)
                for a, b, c, p in rules
                if a == symbol
                for j in range(i + 1, k)
            ),
            Fraction(0),
        )

    roots = enumerate(grammar.root)
    return sum((Fraction(float(p)) * inside(a, 0, len(words)) for a, p in roots if p > 0), Fraction(0))


def kept(language: PCFG) -> Fraction:
    """Return Pr(at most max_length words), from the same numbers in exact arithmetic."""
    return Fraction(math.exp(language._log_kept))


def padded(language: PCFG, *sentences: tuple[int, ...]) -> torch.Tensor:
    ids = torch.full((len(sentences), language.max_length), language.pad_id)
    for row, words in enumerate(sentences):
        ids[row, : len(words)] = torch.tensor(words)
    return ids


CASES = [(0, 0), (1, 1), (2, 1), (1, 1, 1), (1, 1, 0), (1, 0, 1, 1), (2, 0), (1, 1, 1, 1, 1), (1,) * 7]
IMPOSSIBLE = [(2, 2), (0, 2), (1, 2, 2)]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_probability_of_a_sentence_of_rare_words(engine: Name) -> None:
    language = PCFG(grammar(), max_length=7, engine=engine)
    found = language.log_prob(padded(language, *CASES, *IMPOSSIBLE))
    wanted = [log(probability(language.grammar, words) / kept(language)) for words in CASES]
    torch.testing.assert_close(
        found[: len(CASES)], torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=0
    )
    assert min(wanted) < -4000
    assert (found[len(CASES) :] == -torch.inf).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conditionals_and_probabilities_agree(engine: Name, dtype: torch.dtype) -> None:
    """log Pr(x_t = c | others) is log Pr(x with c at t) less that of their sum, in exact arithmetic."""
    language = PCFG(grammar(), max_length=7, engine=engine)
    ids = padded(language, *CASES)
    found = language.conditionals(ids, dtype=dtype)
    entropy = language.sentence_entropy(ids)
    for row, words in enumerate(CASES):
        terms = []
        for t in range(len(words)):
            each = [probability(language.grammar, (*words[:t], c, *words[t + 1 :])) for c in range(3)]
            wanted = [log(p / sum(each)) for p in each]
            if dtype == torch.float32:
                # Words below 1e-38 in their place are beyond float32.
                seen, wanted = found[row, t].clamp(min=-87), [max(w, -87.0) for w in wanted]
                torch.testing.assert_close(seen, torch.tensor(wanted, dtype=dtype), rtol=1e-5, atol=1e-6)
                continue
            torch.testing.assert_close(
                found[row, t], torch.tensor(wanted, dtype=dtype), rtol=1e-12, atol=1e-12
            )
            terms.append(-sum(float(p / sum(each)) * w for p, w in zip(each, wanted, strict=True) if p > 0))
        if dtype == torch.float32:
            continue
        assert float(entropy[row]) == pytest.approx(sum(terms) / len(words), abs=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_hidden_words_among_rare_ones(engine: Name) -> None:
    language = PCFG(grammar(), max_length=5, engine=engine)
    words, hidden = (1, 1, 1, 1, 1), (1, 3)
    ids = padded(language, words)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[0, list(hidden)] = True
    found = language.conditionals(ids, mask, dtype=torch.float64)
    joint = {
        filled: probability(language.grammar, (1, filled[0], 1, filled[1], 1))
        for filled in itertools.product(range(3), repeat=2)
    }
    for k, t in enumerate(hidden):
        each = [sum(p for filled, p in joint.items() if filled[k] == c) for c in range(3)]
        wanted = [log(Fraction(p) / sum(each)) for p in each]
        torch.testing.assert_close(
            found[0, t], torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12
        )
    assert found[0, [0, 2, 4]].isnan().all()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_impossible_stays_so(engine: Name) -> None:
    language = PCFG(grammar(), max_length=7, engine=engine)
    # The others are impossible at every place of the second sentence.
    with pytest.raises(DataError, match="sentence 1: its visible words have probability zero"):
        language.conditionals(padded(language, (1, 1), (2, 2, 2)))


@pytest.mark.parametrize("engine", ENGINES)
def test_forty_words(engine: Name) -> None:
    """S -> A S | A A derives forty rare words in one way: 0.5^38 0.25 times 1e-300 for each."""
    language = PCFG(grammar(), max_length=40, engine=engine)
    ids = padded(language, (1,) * 40)
    # B may stand before the last A: S -> B A.
    ways = Fraction(1, 2) ** 38 * (
        Fraction(1, 4) * Fraction(RARE) ** 40 + Fraction(1, 8) * Fraction(RARE) ** 39
    )
    assert float(language.log_prob(ids)) == pytest.approx(log(ways / kept(language)), rel=1e-12)
    found = language.conditionals(ids, dtype=torch.float64)
    assert float(found[0, 0, 1]) == pytest.approx(math.log(RARE), rel=1e-9)
    assert torch.isfinite(found[0, :, 1]).all()
    torch.testing.assert_close(
        torch.logsumexp(found[0], dim=-1), torch.zeros(40, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_a_usual_sentence_is_what_it_was_in_logarithms_too() -> None:
    from raysweep.languages.pcfg.logs import log_conditionals, log_totals

    language = PCFG.random(seed=3, roots=3, layers=3, symbols=4, rules=5, words=5, vocabulary=9, stop=0.3)
    ids = language.sample(64, seed=1)
    engine = language.engine_on(ids.device)
    for some, n in language.groups(language.lengths(ids)):
        words = ids[some, :n]
        totals = log_totals(language.grammar, engine.plan(n), words) - language._log_kept
        torch.testing.assert_close(
            totals, language.log_prob(words_padded := ids[some]), rtol=1e-12, atol=1e-12
        )
        place = torch.arange(words.numel()).view(words.shape)
        out = torch.empty(words.numel(), 9, dtype=torch.float64)
        assert log_conditionals(language.grammar, engine.plan(n), words, place, out).all()
        fast = language.conditionals(words_padded, dtype=torch.float64)[:, :n]
        torch.testing.assert_close(out.view(fast.shape), fast, rtol=1e-10, atol=1e-10)
