"""Inside and outside passes in plain numpy, vectorised over sentences of one length.

`by_rules` gathers the two sides of every rule and suits a grammar of few rules.  `by_pairs` multiplies all
pairs of symbols by a table [pairs, symbols] and suits a grammar with a rule for nearly every pair.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from raysweep.languages.pcfg import Grammar


def by_rules(grammar: Grammar, words: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Return Pr(x_t = . | x_-t) [B, n, V] of sentences [B, n]."""
    batch, n = words.shape
    N, R = len(grammar.symbols), len(grammar.parent)
    number = np.arange(R)
    up, is_left, is_right = (np.zeros((N, R), dtype) for _ in range(3))
    up[grammar.parent, number] = grammar.probability
    is_left[grammar.left, number] = is_right[grammar.right, number] = 1.0
    # chart[w] is [N, starts, B].
    chart = [np.zeros(0), _leaves(grammar, dtype)[:, words.T]]
    for w in range(2, n + 1):
        starts = n - w + 1
        terms = np.zeros((R, starts, batch), dtype)
        for u in range(1, w):
            terms += chart[u][grammar.left, :starts] * chart[w - u][grammar.right, u:]
        chart.append((up @ terms.reshape(R, -1)).reshape(N, starts, batch))
    out = [np.zeros_like(cells) for cells in chart]
    out[n] += grammar.root[:, None, None]
    for w in range(n, 1, -1):
        starts = n - w + 1
        terms = (up.T @ out[w].reshape(N, -1)).reshape(R, starts, batch)
        for u in range(1, w):
            to_left = terms * chart[w - u][grammar.right, u:]
            to_right = terms * chart[u][grammar.left, :starts]
            out[u][:, :starts] += (is_left @ to_left.reshape(R, -1)).reshape(N, starts, batch)
            out[w - u][:, u:] += (is_right @ to_right.reshape(R, -1)).reshape(N, starts, batch)
    return _normalised(out[1].transpose(2, 1, 0), grammar)


def by_pairs(grammar: Grammar, words: np.ndarray, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Return Pr(x_t = . | x_-t) [B, n, V] of sentences [B, n]."""
    batch, n = words.shape
    N = len(grammar.symbols)
    up = np.zeros((N * N, N), dtype)
    np.add.at(up, (grammar.left * N + grammar.right, grammar.parent), grammar.probability)
    chart = np.zeros((n, n + 1, batch, N), dtype)
    chart[:, 1] = _leaves(grammar, dtype).T[words.T]
    for w in range(2, n + 1):
        cuts = np.arange(1, w)
        pairs = np.empty((n - w + 1, batch, N, N), dtype)
        for i in range(n - w + 1):
            left, right = chart[i, 1:w], chart[i + cuts, w - cuts]
            np.matmul(left.transpose(1, 2, 0), right.transpose(1, 0, 2), out=pairs[i])
        chart[: n - w + 1, w] = (pairs.reshape(-1, N * N) @ up).reshape(-1, batch, N)
    out = np.zeros_like(chart)
    out[0, n] = grammar.root
    for w in range(n, 1, -1):
        cuts = np.arange(1, w)
        pairs = (out[: n - w + 1, w].reshape(-1, N) @ up.T).reshape(-1, batch, N, N)
        for i in range(n - w + 1):
            left, right = chart[i, 1:w], chart[i + cuts, w - cuts]
            out[i, 1:w] += (pairs[i] @ right.transpose(1, 2, 0)).transpose(2, 0, 1)
            out[i + cuts, w - cuts] += (left.transpose(1, 0, 2) @ pairs[i]).transpose(1, 0, 2)
    return _normalised(out[:, 1].transpose(1, 0, 2), grammar)


def _leaves(grammar: Grammar, dtype: DTypeLike) -> np.ndarray:
    """Return the emissions [N, V], each word's divided by its largest: float32 has no range for products."""
    return (grammar.emission / grammar.emission.max(axis=0)).astype(dtype)


def _normalised(outside: np.ndarray, grammar: Grammar) -> np.ndarray:
    joint = outside @ grammar.emission.astype(outside.dtype)
    return joint / joint.sum(axis=-1, keepdims=True)
