"""torch-struct's context-free grammar: the inside pass in its log semiring, the outside pass by autograd.

The marginal of symbol A at position t is outside(A, t) E[A, x_t] / Pr(x).  For a symbol that does not emit
x_t it is zero, and does not give the outside weight: 0 / 0.  `floor` puts a tiny probability in place of zero
emissions, and the division removes it again.  Without it the results are wrong or NaN.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from raysweep.bench.peers import peer
from raysweep.languages.pcfg import Grammar


class TorchStruct:
    """A grammar in the terms of torch-struct: symbols with rules are its NT, symbols with words its T."""

    def __init__(self, grammar: Grammar, *, floor: float) -> None:
        self._distribution = peer("torch_struct").SentCFG
        has_words = grammar.emission.any(axis=1)
        has_rules = np.zeros(len(grammar.symbols), dtype=bool)
        has_rules[grammar.parent] = True
        high, low = np.nonzero(has_rules)[0], np.nonzero(has_words)[0]
        NT, size = len(high), len(high) + len(low)
        row = np.full(len(grammar.symbols), -1)
        row[high] = np.arange(NT)
        rules = np.zeros((NT, size, size))
        # A symbol with both rules and words is in both groups.
        places = [{s: k for k, s in enumerate(high)}, {s: NT + k for k, s in enumerate(low)}]
        triples = zip(grammar.parent, grammar.left, grammar.right, grammar.probability, strict=True)
        for a, b, c, p in triples:
            for left in places:
                for right in places:
                    if b in left and c in right:
                        rules[row[a], left[b], right[c]] += p
        as_log = [np.log(np.maximum(table, floor)) for table in (rules, grammar.root[high])]
        self._rules, self._root = (torch.from_numpy(table).float() for table in as_log)
        emission = torch.from_numpy(grammar.emission[low])
        self._emission = emission.float()
        self._log_emission = emission.clamp_min(floor).log().float()

    def conditionals(self, words: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return Pr(x_t = . | x_-t) [B, n, V] of sentences [B, n], float32.

        Sentences have `lengths` [B] words, at least 2 each, and any words after these; by default n words.
        """
        batch = len(words)
        terms = self._log_emission.T[words]
        potentials = (
            terms,
            self._rules.expand(batch, -1, -1, -1).contiguous(),
            self._root.expand(batch, -1).contiguous(),
        )
        with warnings.catch_warnings():
            # torch warns that the class declares no constraints on its arguments.
            warnings.simplefilter("ignore", UserWarning)
            marginals = self._distribution(potentials, lengths=lengths).marginals[0]
        outside = marginals.detach() / terms.exp()
        joint = outside @ self._emission
        return joint / joint.sum(dim=-1, keepdim=True)
