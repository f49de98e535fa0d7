"""Recursive sampling of sentences from NLTK's productions, one sentence at a time.

`nltk.parse.generate` enumerates and does not sample, so users of NLTK write such a sampler.
"""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import numpy as np

from raysweep.bench.peers import peer
from raysweep.languages.pcfg import Grammar


class NLTKSampler:
    """A sampler of sentences from an `nltk.PCFG`; a sentence is a list of the names of its words.

    `random.choices` chooses a production of a symbol by its probability.  With `cumulated`, the probabilities
    are summed in advance.
    """

    def __init__(self, grammar: Grammar, *, cumulated: bool = False) -> None:
        nltk, ProbabilisticProduction = peer("nltk"), peer("nltk.grammar").ProbabilisticProduction
        PCFG, Nonterminal = nltk.PCFG, nltk.Nonterminal
        symbols = [Nonterminal(name) for name in grammar.symbols]
        start = Nonterminal("START")
        productions = [
            ProbabilisticProduction(start, [symbols[a]], prob=grammar.root[a])
            for a in np.nonzero(grammar.root)[0]
        ]
        rules = zip(grammar.parent, grammar.left, grammar.right, grammar.probability, strict=True)
        productions += [
            ProbabilisticProduction(symbols[a], [symbols[b], symbols[c]], prob=p) for a, b, c, p in rules
        ]
        productions += [
            ProbabilisticProduction(symbols[a], [grammar.words[c]], prob=grammar.emission[a, c])
            for a, c in zip(*np.nonzero(grammar.emission), strict=True)
        ]
        self._nonterminal = Nonterminal
        self._start = start
        self._grammar = PCFG(start, productions)
        self._cumulated: dict[Any, tuple[list[Any], list[float]]] | None = None
        if cumulated:
            self._cumulated = {}
            for symbol in [start, *symbols]:
                choices = self._grammar.productions(lhs=symbol)
                self._cumulated[symbol] = (choices, list(accumulate(c.prob() for c in choices)))

    def sample(self, n: int, *, seed: int) -> list[list[str]]:
        """Draw `n` sentences."""
        generator = random.Random(seed)
        sentences = []
        for _ in range(n):
            words: list[str] = []
            self._expand(self._start, generator, words)
            sentences.append(words)
        return sentences

    def _expand(self, symbol: Any, generator: random.Random, words: list[str]) -> None:
        if not isinstance(symbol, self._nonterminal):
            words.append(symbol)
            return
        if self._cumulated is None:
            choices = self._grammar.productions(lhs=symbol)
            [chosen] = generator.choices(choices, weights=[choice.prob() for choice in choices])
        else:
            choices, sums = self._cumulated[symbol]
            [chosen] = generator.choices(choices, cum_weights=sums)
        for part in chosen.rhs():
            self._expand(part, generator, words)
