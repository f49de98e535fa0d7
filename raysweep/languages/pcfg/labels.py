"""The labels of a grammar's tasks, and the exact posterior of a label given the sentence.

Task A asks for the symbol above a whole sentence, B and C for the one above its first L words, x_1 .. x_L
(the whole sentence where it is shorter).  Four definitions of that symbol:

    inside      argmax_s Pr(x_1 .. x_L | s)                the likelihood
    prefix      argmax_s Pr(s above x_1 .. x_L | x_1 .. x_L)   the posterior given the prefix
    posterior   argmax_s Pr(s above x_1 .. x_L | x)        the posterior given the sentence, or "none"
    tree        the symbol above x_1 .. x_L in the sampled derivation, or "none"

Liu, Xie, Li and Ma ("Same pre-training loss, better downstream", ICML 2023, appendix A.1) print the
posterior given the prefix, y = argmax_s Pr(s | x_1, x_2, ...), and their released code takes the likelihood.
They differ by the prior of s at the beginning of a sentence:

    Pr(s above x_1 .. x_L, x_1 .. x_L) = Pr(x_1 .. x_L | s) · Σ_d Pr(s is d steps to the left below the root)

The words behind the prefix are summed over, from none up to the maximal length; for task A there are none.
In the released code, symbols that no sentence contains compete in the likelihood, and in the authors' grammar
one of them wins in a quarter of the sentences.  Here they are left out of a grammar's file unless it is read
with `candidates: all`.  The other definitions give them probability zero.

All but `tree` are functions of the sentence.  For `tree` the posterior of the label is that of `posterior`,
whose largest value is the accuracy of the best possible classifier (Bayes) on that sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.base import Sample
from raysweep.languages.checks import check_sentences, impossible
from raysweep.languages.pcfg.grammar import Grammar

if TYPE_CHECKING:
    from raysweep.languages.pcfg.language import PCFG

Label = Literal["inside", "prefix", "posterior", "tree"]

#: Sentences labelled in one go: their [rows, N] stay small.
_ROWS = 4096


def symbols(language: PCFG, sample: Sample, span: int, whole: bool) -> Tensor:
    """Return the symbol [B] above the first `span` words, N for none; only roots are asked for if `whole`.

    Raises `DataError` naming an impossible sentence.
    """
    if language.label == "tree":
        return _sampled(language, sample, span)
    if language.label == "posterior":
        return _best(language, sample.ids, lambda words: _given_all(language, words, span), whole)
    prefixes = sample.ids.clone()
    prefixes[:, span:] = language.pad_id
    return _best(language, prefixes, lambda words: _given_prefix(language, words, whole), whole)


def posterior(language: PCFG, ids: Tensor, span: int) -> Tensor:
    """Return Pr(s above the first `span` words | sentence) [B, N+1], float64, the last column for none."""
    out = torch.empty(len(ids), len(language.grammar.symbols) + 1, dtype=torch.float64, device=ids.device)
    for rows, n in language.groups(check_sentences(language, ids)):
        for part in torch.split(rows, _ROWS):
            joint, total = language.engine_on(ids.device).prefixes(ids[part, :n], min(span, n))
            if not bool((total > 0).all()):
                raise impossible(int(part[(total <= 0).nonzero()[0, 0]]))
            above = joint / total[:, None]
            out[part] = torch.cat([above, (1 - above.sum(dim=1, keepdim=True)).clamp_min(0)], dim=1)
    return out


def left_edge(grammar: Grammar, words: int, longest: int) -> np.ndarray:
    """Return Pr(s is above exactly the first `words` words | s derives them) up to a factor, float64 [N].

    It is the expected number of times that s is reached by going to the left only, with at most
    `longest` - `words` words to its right: m_0[A, 0] = root[A], and a rule A -> B C of probability p adds
    m[A, r] p Pr(C derives k words) to m[B, r+k].
    """
    lengths = grammar.lengths(longest)
    now = np.zeros((longest - words + 1, len(grammar.symbols)))
    now[0] = grammar.root
    total = np.zeros_like(now[0])
    while now.any():
        total += now.sum(axis=0)
        after = np.zeros_like(now)
        for k in range(1, len(now)):
            weight = now[:-k, grammar.parent] * (grammar.probability * lengths[k, grammar.right])
            for r, row in enumerate(weight):
                after[r + k] += np.bincount(grammar.left, weights=row, minlength=len(total))
        now = after
    return total


def _sampled(language: PCFG, sample: Sample, span: int) -> Tensor:
    symbol, width = (sample.latents[name].to(torch.int64) for name in ("symbol", "width"))
    size = language.lengths(sample.ids).clamp_max(span)
    last = (size - 1)[:, None]
    found = torch.where(width[:, 1].gather(1, last)[:, 0] == size, symbol[:, 1].gather(1, last)[:, 0], -1)
    found = torch.where(width[:, 0, 0] == size, symbol[:, 0, 0], found)
    return torch.where(found < 0, len(language.grammar.symbols), found)


def _given_prefix(language: PCFG, words: Tensor, whole: bool) -> Tensor:
    """Return the symbol [B] of the largest likelihood, or posterior, of words [B, n]; -1 where it is zero."""
    tops = language.engine_on(words.device).tops(words, everything=not whole)
    if language.label == "prefix":
        tops = tops * torch.from_numpy(_prior(language, words.shape[1], whole)).to(tops)
    value, symbol = tops.max(dim=1)
    return torch.where(value > 0, symbol, -1)


def _prior(language: PCFG, words: int, whole: bool) -> np.ndarray:
    grammar = language.grammar
    return grammar.root if whole else left_edge(grammar, words, language.max_length)


def _given_all(language: PCFG, words: Tensor, span: int) -> Tensor:
    """Return the most probable symbol [B] above the prefix of sentences [B, n], -1 where none is likelier.

    It is -2 where the sentence is impossible.
    """
    joint, total = language.engine_on(words.device).prefixes(words, min(span, words.shape[1]))
    value, symbol = joint.max(dim=1)
    # The rest of the total is the probability that the prefix is no constituent.
    found = torch.where(value >= total - joint.sum(dim=1), symbol, -1)
    return torch.where(total > 0, found, -2)


def _best(language: PCFG, ids: Tensor, best: Callable[[Tensor], Tensor], whole: bool) -> Tensor:
    """Return symbols [B], N for none, from `best`, which says -1 for none, -2 for an impossible sentence."""
    out = torch.full((len(ids),), -1, dtype=torch.int64, device=ids.device)
    for rows, n in language.groups(check_sentences(language, ids), strict=False):
        for part in torch.split(rows, _ROWS):
            out[part] = best(ids[part, :n])
    wrong = out < (0 if whole else -1)
    if wrong.any():
        raise impossible(int(wrong.nonzero()[0, 0]))
    return torch.where(out < 0, len(language.grammar.symbols), out)
