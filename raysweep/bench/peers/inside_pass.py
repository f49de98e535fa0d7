"""One inside pass for every position and every candidate word: V T passes for each sentence.

    Pr(x_t = c | x_-t)  is proportional to  Pr(x with x_t = c),     each from an inside pass of its own

Liu, Xie, Li and Ma (ICML 2023, appendix A.1) compute the conditionals in this way.  The pass consists of
plain loops over widths, starts, splits and rules in float64, and skips rules whose left side derives
nothing.  It is compiled, so that the measurement shows the method and not an interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raysweep.compiled import kernel
from raysweep.languages.pcfg import Grammar


@kernel
def _conditionals(
    words: Any, root: Any, parent: Any, left: Any, right: Any, probability: Any, emission: Any
) -> Any:
    n, (N, V) = len(words), emission.shape
    chart = np.empty((n + 1, n, N))
    out = np.empty((n, V))
    trial = words.copy()
    for t in range(n):
        for c in range(V):
            trial[t] = c
            chart[:] = 0.0
            for i in range(n):
                for a in range(N):
                    chart[1, i, a] = emission[a, trial[i]]
            for w in range(2, n + 1):
                for i in range(n - w + 1):
                    for u in range(1, w):
                        for r in range(len(parent)):
                            inner = chart[u, i, left[r]]
                            if inner != 0.0:
                                chart[w, i, parent[r]] += (
                                    probability[r] * inner * chart[w - u, i + u, right[r]]
                                )
            total = 0.0
            for a in range(N):
                total += root[a] * chart[n, 0, a]
            out[t, c] = total
        trial[t] = words[t]
        out[t] /= out[t].sum()
    return out


def conditionals(grammar: Grammar, sentences: list[np.ndarray]) -> list[np.ndarray]:
    """Return Pr(x_t = . | x_-t) [n, V] of each sentence [n], float64."""
    g = grammar
    tables = (g.root, g.parent, g.left, g.right, g.probability, np.ascontiguousarray(g.emission))
    return [_conditionals(np.asarray(words, dtype=np.int64), *tables) for words in sentences]
