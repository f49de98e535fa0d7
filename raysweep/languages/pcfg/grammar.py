"""A probabilistic context-free grammar in Chomsky normal form, as arrays.

The start symbol goes to symbol A with probability `root[A]`; a symbol goes to a pair of symbols by a binary
rule or to a word by `emission[A, c]`, and these probabilities sum to 1 for every symbol.  N symbols, R binary
rules, V words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from raysweep.errors import ConfigError, DataError

#: Numbers that the lengths of sentences are computed from at once.
_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True, eq=False)
class Grammar:
    """A grammar whose symbols and words are numbered in the order of their names' tuples.

    `root` float64 [N]; `parent`, `left`, `right` int64 [R] and `probability` float64 [R]; `emission`
    float64 [N, V].  `notes` say what a person should know of the rules; they are no part of the language.
    Raises `ConfigError` where the probabilities do not sum to 1.
    """

    symbols: tuple[str, ...]
    words: tuple[str, ...]
    root: np.ndarray
    parent: np.ndarray
    left: np.ndarray
    right: np.ndarray
    probability: np.ndarray
    emission: np.ndarray
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        total = self.emission.sum(axis=1) + np.bincount(
            self.parent, weights=self.probability, minlength=len(self.symbols)
        )
        for name, value in [("the start symbol", self.root.sum()), *zip(self.symbols, total, strict=True)]:
            if not abs(value - 1.0) < 1e-9:
                raise ConfigError(f"the rules of {name} sum to {value:.6g}, not 1")
        if min(self.root.min(), self.emission.min(), self.probability.min(initial=0.0)) < 0:
            raise ConfigError("a rule has a negative probability")

    def lengths(self, longest: int) -> np.ndarray:
        """Return float64 [longest+1, N]: the probability that a symbol derives exactly w words.

        g[1, A] = sum_c emission[A, c];  g[w, A] = sum_{A -> B C} p sum_{u=1..w-1} g[u, B] g[w-u, C].
        """
        table = np.zeros((longest + 1, len(self.symbols)))
        table[1:2] = self.emission.sum(axis=1)
        splits = np.empty(len(self.left))
        # Many rules are taken in parts: a part has a number for each rule and each cut of a sentence.
        parts = np.array_split(np.arange(len(splits)), 1 + len(splits) * longest // _AT_ONCE)
        for w in range(2, longest + 1):
            for part in (slice(rules[0], rules[-1] + 1) for rules in parts if len(rules)):
                left, right = table[1:w, self.left[part]], table[w - 1 : 0 : -1, self.right[part]]
                splits[part] = (left * right).sum(axis=0)
            table[w] = np.bincount(
                self.parent, weights=self.probability * splits, minlength=len(self.symbols)
            )
        return table

    def longest(self) -> int | None:
        """Return the number of words of the longest sentence, None where it is unbounded (or above 10^6)."""
        used = self.root > 0
        for _ in self.symbols:
            live = (self.probability > 0) & used[self.parent]
            used[self.left[live]] = used[self.right[live]] = True
        best = np.where(self.emission.any(axis=1), 1, 0)
        a, b, c = self.parent[live], self.left[live], self.right[live]
        # Without a cycle every symbol is settled after as many rounds as there are symbols.
        for _ in range(len(self.symbols) + 1):
            known, both = best, (best[b] > 0) & (best[c] > 0)
            best = best.copy()
            np.maximum.at(best, a[both], np.minimum(known[b] + known[c], 10**6 + 1)[both])
            if (best == known).all():
                break
        longest = int(best[self.root > 0].max())
        return longest if (best == known).all() and longest <= 10**6 else None

    def content(self) -> bytes:
        """Return bytes that determine the grammar, independent of the order of its rules."""
        order = np.lexsort((self.right, self.left, self.parent))
        rules = (self.parent[order], self.left[order], self.right[order])
        return b"\0".join(
            [
                json.dumps([self.symbols, self.words]).encode(),
                *(array.astype("<i8").tobytes() for array in rules),
                *(
                    array.astype("<f8").tobytes()
                    for array in (self.root, self.probability[order], self.emission)
                ),
            ]
        )


def length_probabilities(grammar: Grammar, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the table of `Grammar.lengths` and Pr(a sentence has n words) [longest+1].

    Raises `DataError` for a grammar that has no sentence of at most `longest` words.
    """
    table = grammar.lengths(longest)
    lengths = table @ grammar.root
    if not lengths.sum() > 0:
        raise DataError(f"the grammar has no sentence of at most {longest} words; raise max_length")
    return table, lengths
