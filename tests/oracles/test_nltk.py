"""PCFG against NLTK: the summed probabilities of all parses that its inside chart parser finds."""

from __future__ import annotations

import itertools
from pathlib import Path

import nltk
import pytest
import torch

from raysweep.errors import DataError
from raysweep.languages import PCFG

FILE = Path(__file__).parents[1] / "languages" / "grammars" / "dogs.pcfg"


def parser_of(text: str) -> object:
    return nltk.parse.pchart.InsideChartParser(nltk.PCFG.fromstring(text))


@pytest.fixture(scope="module")
def language() -> PCFG:
    return PCFG.from_rules(FILE, max_length=9)


def probability(parser: object, words: list[str]) -> float:
    return sum(tree.prob() for tree in parser.parse(words))


def test_probabilities_of_sentences(language: PCFG) -> None:
    parser = parser_of(FILE.read_text())
    log_kept = torch.tensor(language.grammar.lengths(9) @ language.grammar.root).sum().log()
    ids = torch.unique(language.sample(400, seed=1), dim=0)
    ids = ids[language.lengths(ids) <= 6][:60]
    assert len(ids) >= 40
    for row, found in zip(ids.tolist(), (language.log_prob(ids) + log_kept).exp().tolist(), strict=True):
        truth = probability(parser, [language.words[w] for w in row if w != language.pad_id])
        assert truth > 0
        assert abs(found - truth) < 1e-12 * truth


def test_all_strings_of_three_words(language: PCFG) -> None:
    parser = parser_of(FILE.read_text())
    log_kept = torch.tensor(language.grammar.lengths(9) @ language.grammar.root).sum().log()
    # Six words, so 216 strings; most are no sentences.
    ids = torch.tensor(list(itertools.product(range(language.vocabulary_size), repeat=3)))
    found = (language.log_prob(ids) + log_kept).exp()
    truth = torch.tensor(
        [probability(parser, [language.words[w] for w in row]) for row in ids.tolist()], dtype=torch.float64
    )
    assert 0 < int((truth > 0).sum()) < len(truth)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-16)


def test_conditionals(language: PCFG) -> None:
    parser = parser_of(FILE.read_text())
    words = ["the", "dogs", "saw", "dogs"]
    ids = torch.tensor([[language.words.index(w) for w in words]])
    found = language.conditionals(ids, dtype=torch.float64).exp()[0]
    for t in range(len(words)):
        joint = torch.tensor(
            [probability(parser, [*words[:t], w, *words[t + 1 :]]) for w in language.words],
            dtype=torch.float64,
        )
        torch.testing.assert_close(found[t], joint / joint.sum(), rtol=0, atol=1e-12)


def test_a_word_nltk_does_not_parse_is_refused(language: PCFG) -> None:
    ids = torch.tensor([[language.words.index(w) for w in ("the", "the", "the")]])
    with pytest.raises(DataError, match="sentence 0"):
        language.conditionals(ids)
