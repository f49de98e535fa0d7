"""Random grammars, drawn from a seed.

**Layered** (the shape of the grammar released with Liu, Xie, Li and Ma, "Same Pre-training Loss, Better
Downstream", ICML 2023): the start symbol chooses one of the roots S1, S2, ...; each root goes to one pair of
symbols of layer 1; a symbol of a layer before the last goes to a pair of the next layer or, with probability
`stop`, to its one word; a symbol of the last layer goes to one of many words.  Sentences have 2 to 2^layers
words.  Every symbol can be reached and every word of the vocabulary is used.

**Dense**: every symbol goes to every pair of symbols, or with probability `stop` to every word.
"""

from __future__ import annotations

import numpy as np

from raysweep.languages.draw import dirichlet, permutations
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.seeding import derive


def layered(
    seed: int,
    *,
    roots: int,
    layers: int,
    symbols: int,
    rules: int,
    stop: float,
    words: int,
    vocabulary: int,
    concentration: float,
) -> Grammar:
    """Draw a layered grammar; needs roots <= symbols^2, 2 roots >= symbols, rules <= symbols^2, words <=
    vocabulary <= symbols * words.

    Symbols are numbered roots first, then layer by layer.
    """
    names = [f"S{i + 1}" for i in range(roots)]
    names += [f"L{layer + 1}.{i + 1}" for layer in range(layers) for i in range(symbols)]
    emission = np.zeros((len(names), vocabulary))
    parent, left, right, probability = [], [], [], []
    for layer in range(layers):
        # The parents of this layer: the roots, then the symbols of the layer before.
        parents, each = (roots, 1) if layer == 0 else (symbols, rules)
        first = 0 if layer == 0 else roots + (layer - 1) * symbols
        pairs = _pairs(derive(seed, "pairs", layer), parents, each, symbols)
        weights = dirichlet(seed, f"rules {layer}", parents, each, concentration)
        if layer > 0 and stop > 0:
            weights = weights * (1.0 - stop)
            chosen = permutations(seed, f"stop {layer}", symbols, vocabulary)[:, 0]
            emission[first + np.arange(symbols), chosen] = stop
        below = roots + layer * symbols
        parent.append(np.repeat(first + np.arange(parents), each))
        left.append(below + pairs.reshape(-1) // symbols)
        right.append(below + pairs.reshape(-1) % symbols)
        probability.append(weights.reshape(-1))
    last = roots + (layers - 1) * symbols
    lexicon = _lexicon(derive(seed, "lexicon"), symbols, words, vocabulary)
    weights = dirichlet(seed, "words", symbols, words, concentration)
    np.put_along_axis(emission[last:], lexicon, weights, axis=1)
    root = np.zeros(len(names))
    root[:roots] = dirichlet(seed, "root", 1, roots, concentration)[0]
    return Grammar(
        symbols=tuple(names),
        words=tuple(f"w{c}" for c in range(vocabulary)),
        root=root,
        parent=np.concatenate(parent),
        left=np.concatenate(left),
        right=np.concatenate(right),
        probability=np.concatenate(probability),
        emission=emission,
    )


def dense(seed: int, *, nonterminals: int, stop: float, vocabulary: int, concentration: float) -> Grammar:
    """Draw a grammar with every binary rule and every word for every symbol."""
    n = nonterminals
    pairs = dirichlet(seed, "rules", n, n * n, concentration) * (1.0 - stop)
    index = np.arange(n * n * n)
    return Grammar(
        symbols=tuple(f"N{i + 1}" for i in range(n)),
        words=tuple(f"w{c}" for c in range(vocabulary)),
        root=dirichlet(seed, "root", 1, n, concentration)[0],
        parent=index // (n * n),
        left=index // n % n,
        right=index % n,
        probability=pairs.reshape(-1),
        emission=dirichlet(seed, "words", n, vocabulary, concentration) * stop,
    )


def _pairs(seed: int, parents: int, each: int, symbols: int) -> np.ndarray:
    """Choose `each` different pairs (left * symbols + right) per parent [parents, each]; all symbols occur.

    A single pair per parent also differs from the other parents' pairs, so that roots are distinguishable.
    """
    order = permutations(seed, "cover", 1, symbols)[0]
    # An odd symbol out is paired with the first one.
    cover = np.append(order, order[0])[: symbols + symbols % 2].reshape(-1, 2)
    covering = cover[:, 0] * symbols + cover[:, 1]
    if each == 1:
        free = permutations(seed, "pairs", 1, symbols * symbols)[0]
        free = free[~np.isin(free, covering)]
        return np.concatenate([covering, free])[:parents, None]
    chosen = np.empty((parents, each), dtype=np.int64)
    for p, free in enumerate(permutations(seed, "pairs", parents, symbols * symbols)):
        mine = covering[p::parents]
        chosen[p] = np.concatenate([mine, free[~np.isin(free, mine)]])[:each]
    return chosen


def _lexicon(seed: int, symbols: int, words: int, vocabulary: int) -> np.ndarray:
    """Choose `words` different words per symbol [symbols, words], together all of the vocabulary."""
    deal = permutations(seed, "deal", 1, vocabulary)[0]
    chosen = np.empty((symbols, words), dtype=np.int64)
    for s, free in enumerate(permutations(seed, "more", symbols, vocabulary)):
        mine = deal[s::symbols]
        chosen[s] = np.concatenate([mine, free[~np.isin(free, mine)]])[:words]
    return chosen
