"""The sampler's expansion of derivations, compiled: a tile of sentences at a time, breadth first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.philox import TILE, fill
from raysweep.languages.guide import Guide, pick


class Choices(NamedTuple):
    """The flat tables that a sampler draws from; N symbols, P pairs of a parent and a left child.

    Root entries are w * N + A.  Distribution w * N + A of `split` has entries with the left child's width
    `size` and the `pair`, whose left child is `left_of[pair]`; distribution w * P + pair of `right` has
    entries with the right child `right_symbol`.  Entries of `word` are A * V + word.
    """

    root: Guide
    split: Guide
    size: np.ndarray
    pair: np.ndarray
    left_of: np.ndarray
    right: Guide
    right_symbol: np.ndarray
    word: Guide
    symbols: int
    vocabulary: int


@kernel(inline="always")
def push(nodes, at, row, slot, symbol, width):  # type: ignore[no-untyped-def]
    """Write a node: its sentence in the tile, its slot in the two planes, its symbol and its width."""
    nodes[at, 0], nodes[at, 1], nodes[at, 2], nodes[at, 3] = row, slot, symbol, width


@kernel
def derivations(choices, key, numbers, ids, symbol, width):  # type: ignore[no-untyped-def]
    """Write sentences `numbers` [n] into `ids` int64 [n, L], padded before, and their derivations.

    `symbol` and `width` are int16 [n, 2 * L], zero before, or [0, 2 * L] where nobody wants them.
    """
    n, L = ids.shape
    N, V, P = choices.symbols, choices.vocabulary, len(choices.left_of)
    blocks = (3 * L + 3) // 4
    drawn = np.empty((4, TILE * blocks), dtype=np.uint32)
    # Nodes with children and nodes with a word.  A new node is written to both lists and counted in one:
    # no branch depends on what was drawn, so the draws of many nodes are under way at once.
    inner, leaf = np.empty((TILE * L + 2, 4), dtype=np.int32), np.empty((TILE * L + 2, 4), dtype=np.int32)
    keep = len(symbol) > 0
    for tile in range(0, n, TILE):
        fill(key, numbers, tile, blocks, drawn)
        inners, leaves = 0, 0
        for row in range(min(TILE, n - tile)):
            # No left child ends where a longest sentence ends, so that uniform is free for the root.
            word = drawn[(2 * L - 1) & 3, row * blocks + ((2 * L - 1) >> 2)]
            first = choices.root.entry[pick(choices.root, 0, word)]
            w = first // N
            push(inner, inners, row, 0, first % N, w)
            push(leaf, leaves, row, 0, first % N, w)
            inners += w > 1
            leaves += w == 1
        head = 0
        while head < inners:
            row, slot, A, w = inner[head, 0], inner[head, 1], inner[head, 2], inner[head, 3]
            head += 1
            if keep:
                symbol[tile + row, slot], width[tile + row, slot] = A, w
            base = row * blocks
            place = pick(choices.split, w * N + A, drawn[slot & 3, base + (slot >> 2)])
            size, pair = choices.size[place], choices.pair[place]
            rest = w - size
            # A left child's slot says where it ends, a right one's where it starts.
            middle = size + (slot if slot < L else slot - L - w + 1)
            other = 2 * L + middle - 1
            place = pick(choices.right, rest * P + pair, drawn[other & 3, base + (other >> 2)])
            B, C = choices.left_of[pair], choices.right_symbol[place]
            push(inner, inners, row, L + middle - 1, B, size)
            push(leaf, leaves, row, L + middle - 1, B, size)
            inners += size > 1
            leaves += size == 1
            push(inner, inners, row, middle, C, rest)
            push(leaf, leaves, row, middle, C, rest)
            inners += rest > 1
            leaves += rest == 1
        for i in range(leaves):
            row, slot, A = leaf[i, 0], leaf[i, 1], leaf[i, 2]
            if keep:
                symbol[tile + row, slot], width[tile + row, slot] = A, 1
            place = pick(choices.word, A, drawn[slot & 3, row * blocks + (slot >> 2)])
            ids[tile + row, slot if slot < L else slot - L] = choices.word.entry[place] - A * V
