"""Samples of a causal LM, in blocks that do not depend on the caller."""

from __future__ import annotations

import torch
from torch import Tensor

from raysweep.languages.causal_lm.network import Network
from raysweep.seeding import uniforms

#: Numbers in the hidden states of a block: 64 sentences of a model as wide as OPT-125M.
_ELEMENTS = 64 * 768


def block_size(network: Network) -> int:
    """Return how many sentences are drawn together: b, at least 64, a function of the model's width alone.

    A product of matrices may round a row differently in a batch of another size, and a word on the edge
    between two would change with it.  Sentences b k .. b k + b - 1 are always computed as one batch, so any
    slice of the sentences is bitwise the same.
    """
    return max(64, _ELEMENTS // network.width)


def draw_block(
    network: Network, bos: int, length: int, *, seed: int, purpose: str, block: int
) -> tuple[Tensor, Tensor]:
    """Draw the sentences of one block by inversion, a word from each keyed uniform.

    Returns words [b, length] as places in `network.kept`, and the sum [K] of the probabilities that the words
    were drawn with, over sentences and positions, float64.
    """
    kept, size = network.kept, block_size(network)
    number = torch.arange(block * size, (block + 1) * size)
    u = uniforms(seed, purpose, number, length).to(kept.device)
    words = torch.empty(size, length, dtype=torch.int64, device=kept.device)
    total = torch.zeros(len(kept), dtype=torch.float64, device=kept.device)
    # All sentences begin alike.
    prefix = network.read(torch.full((size, 1), bos, device=kept.device))
    for t in range(length):
        if t:
            prefix = network.extended(prefix, kept[words[:, t - 1 : t]])
        probs = prefix.logits.to(torch.float64).softmax(dim=-1)
        total += probs.sum(dim=0)
        edges = probs.cumsum(dim=-1)
        # The last edge is 1 but for rounding; a draw behind it is the last word.
        place = torch.searchsorted(edges, u[:, t : t + 1] * edges[:, -1:], right=True)[:, 0]
        words[:, t] = place.clamp_max(len(kept) - 1)
    return words, total
