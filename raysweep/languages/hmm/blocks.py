"""Blocks: sets of states that move only among themselves and emit words that no other state emits.

One visible word determines the block of a sentence.  All its states are then in that block, and the
forward-backward pass over the tables of the block is exact.  Sentences are grouped by block, and a compiled
kernel answers them in float32; an answer does not depend on the rest of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.checks import floor

#: A block of more states than this, and of most of all states, is left to the products of `passes` where they
#: are faster: without vectors of 32 or 64 bytes.
MANY_STATES = 32


@dataclass(frozen=True)
class Block:
    """The tables of a block in float32; `leaves` [w+1, s] are emissions by word, the last of a hidden one."""

    initial: np.ndarray
    transition: np.ndarray
    leaves: np.ndarray
    words: np.ndarray


class Blocks:
    """The blocks of a model; `of_word` and `place` [V] give the block of each word and its number there."""

    def __init__(self, blocks: list[Block], of_word: np.ndarray, place: np.ndarray) -> None:
        self.blocks = blocks
        self.of_word = torch.from_numpy(of_word)
        self.place = place

    @classmethod
    def find(cls, initial: np.ndarray, transition: np.ndarray, emission: np.ndarray) -> Blocks | None:
        """Return the blocks, or None where a kernel would not be faster."""
        from scipy.sparse import coo_array  # readers of results build no language
        from scipy.sparse.csgraph import connected_components

        from raysweep.compiled import tiles

        S, V = emission.shape
        a, b = np.nonzero(transition)
        s, c = np.nonzero(emission)
        rows, columns = np.concatenate([a, s]), np.concatenate([b, S + c])
        graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(S + V, S + V))
        count, label = connected_components(graph, directed=False)
        large = np.bincount(label[:S]).max() > max(MANY_STATES, S // 2)
        if large and not tiles.FAST:
            return None
        blocks, place = [], np.zeros(V, dtype=np.int64)
        for block in range(count):
            states, words = (np.nonzero(part == block)[0] for part in (label[:S], label[S:]))
            place[words] = np.arange(len(words))
            word = np.ascontiguousarray(emission[np.ix_(states, words)], dtype=np.float32)
            blocks.append(
                Block(
                    initial=initial[states].astype(np.float32),
                    transition=np.ascontiguousarray(transition[np.ix_(states, states)], dtype=np.float32),
                    leaves=np.vstack([*word.T, np.ones(len(states), dtype=np.float32)]),
                    words=words,
                )
            )
        return cls(blocks, label[S:].astype(np.int64), place)

    def answer(
        self, words: Tensor, hidden: Tensor | None, out: Tensor | None, entropy: Tensor | None
    ) -> Tensor:
        """Answer the sentences whose visible words are of one block, and return the other rows, ascending.

        `words` is int64 [B, T], `hidden` boolean [B, T] or None.  Log-probabilities are written to `out`
        float32 [B, >= T, V], at hidden positions, or at all positions without `hidden`; then the mean entropy
        over positions is written to `entropy` float64 [B] too.  The rows returned include sentences with a
        normaliser that lost digits.
        """
        from raysweep.languages.hmm import kernels

        B, T = words.shape
        block, known = self._told(words, hidden)
        order = torch.argsort(torch.where(known, block, len(self.blocks)), stable=True)
        ends = torch.bincount(block[known], minlength=len(self.blocks)).cumsum(0).tolist()
        sound = torch.zeros(B, dtype=torch.bool)
        start = 0
        for tables, end in zip(self.blocks, ends, strict=True):
            if end > start:
                kernels.conditionals(
                    words.numpy(),
                    np.zeros((0, T), dtype=np.bool_) if hidden is None else hidden.numpy(),
                    order[start:end].numpy(),
                    tables.initial,
                    tables.transition,
                    tables.leaves,
                    tables.words,
                    self.place,
                    np.zeros((0, 0, 0), dtype=np.float32) if out is None else out.numpy(),
                    np.zeros(0) if entropy is None else entropy.numpy(),
                    np.float32(floor(torch.float32)),
                    sound.numpy(),
                )
            start = end
        return (~sound).nonzero()[:, 0]

    def _told(self, words: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the block of each sentence [B], and whether its visible words determine it [B]."""
        if hidden is None:
            # Each position is hidden in turn, so one word alone determines no block.
            block = self.of_word[words]
            return block[:, 0], (block == block[:, :1]).all(dim=1) & (words.shape[1] > 1)
        block = self.of_word[torch.where(hidden, 0, words)]
        low = block.masked_fill(hidden, len(self.blocks)).amin(dim=1)
        high = block.masked_fill(hidden, -1).amax(dim=1)
        return high, low == high
