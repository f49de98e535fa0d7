"""Samples of a causal LM: each sentence a function of its own uniforms, whatever it is drawn with.

A word is drawn by inversion: word w where u lies between the edges F(w-1) and F(w), the running sums of the
model's probabilities.  A batch is read in float32, with a cache of keys and values.  Rounding moves its edges
by some amount that depends on batch, device and library, so a word whose u lies within `tolerance` of an edge
is drawn again from the edges of a float64 pass over its own text, without a cache.  So every word is the one
that the float64 model gives.

`tolerance` is eight times the largest difference between edges in float32 and float64 on eight texts.  Every
float64 pass checks it anew, and each batch has some at its last word: where the difference is more than half
of the tolerance, the tolerance is raised and the batch drawn again.

This guarantees the same sentences in any batch and on any device up to the rounding of float64: edges differ
by some 1e-13 there, so a word of K words differs with a probability of about K 1e-13.  That is one sentence
in 10^8 for 2000 words and sentences of 24.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.languages.causal_lm.network import Network, Prefix
from raysweep.seeding import uniforms

_log = logging.getLogger(__name__)

#: Numbers in the hidden states of a block: 64 sentences of a model as wide as OPT-125M.
_ELEMENTS = 64 * 768

#: The tolerance over the largest known error of edges.
_SAFETY = 8.0
_LEAST = 1e-10  # tolerance: far above the errors of float64, which decides
_COARSE = 1e-3  # tolerance: float32 itself has far less
_TEXTS = 8  # to measure errors on
_CHECKED = 2  # sentences of a batch whose last word is drawn exactly in any case

#: Bytes that a batch of sentences may take: 144 sentences of OPT-125M, which fill a CPU core, or 576.
_BYTES = {"cpu": 1 << 28}
_BYTES_GPU = 1 << 30


def block_size(network: Network) -> int:
    """Return how many sentences a block has: at least 64, a function of the model's width alone."""
    return max(64, _ELEMENTS // network.width)


def sentence_bytes(network: Network, length: int) -> int:
    """Return the bytes that a sentence takes while it is drawn: 8 L T D for its states, and 24 K.

    The states are a key and a value of D float32 in each of L layers at each of T positions; a model whose
    heads share keys has less.  The K words take a logit, a probability and an edge, in float64.
    """
    return 8 * network.layers * length * network.width + 24 * len(network.kept)


def batch_size(network: Network, length: int) -> int:
    """Return how many sentences are drawn together; the sentences do not depend on it."""
    room = _BYTES.get(network.kept.device.type, _BYTES_GPU)
    return max(1, room // sentence_bytes(network, length))


def draw_block(
    network: Network, bos: int, length: int, *, seed: int, purpose: str, block: int
) -> tuple[Tensor, Tensor]:
    """Draw the sentences of one block from `network` as it is.

    Returns words [b, length] as places in `network.kept`, and the sum [K] of the probabilities that the words
    were drawn with, over sentences and positions, float64.
    """
    size = block_size(network)
    number = torch.arange(block * size, (block + 1) * size)
    u = uniforms(seed, purpose, number, length).to(network.kept.device)
    total = torch.zeros(len(network.kept), dtype=torch.float64, device=network.kept.device)

    def choose(t: int, prefix: Prefix) -> Tensor:
        probs = prefix.logits.to(torch.float64).softmax(dim=-1)
        total.add_(probs.sum(dim=0))
        return _place(probs.cumsum(dim=-1), u[:, t])

    return _left_to_right(network, bos, u, choose), total


class Sampler:
    """Draws sentences of `length` words from `network` as `exact`, the same in float64, would draw them."""

    def __init__(self, network: Network, exact: Network, bos: int, length: int) -> None:
        self._network, self._exact, self._bos, self._length = network, exact, bos, length
        self.tolerance = _LEAST
        self._measure()

    def draw(self, u: Tensor) -> Tensor:
        """Return words [n, length], places in `network.kept`, of uniforms `u` [n, length], on their device.

        Cost: `length` token passes a sentence in float32; and (t + 1) in float64 for the t-th word, counted
        from 0, wherever u is near an edge: about one word in 100 to 1000.
        """
        found = [u.new_empty(0, self._length, dtype=torch.int64)]
        # Of no sentences, torch makes a part of none, which models cannot read.
        for rows in filter(len, torch.split(u, batch_size(self._network, self._length))):
            while (words := self._attempt(rows)) is None:
                pass
            found.append(words)
        return torch.cat(found)

    def _measure(self) -> None:
        """Set the tolerance by the errors on texts that the exact model writes."""
        exact = self._exact
        u = uniforms(0, "causal_lm tolerance", torch.arange(_TEXTS), self._length).to(exact.kept.device)
        words = _left_to_right(exact, self._bos, u, lambda t, prefix: _place(_edges(prefix.logits), u[:, t]))
        for row in words:
            text = torch.cat([row.new_tensor([self._bos]), exact.kept[row[:-1]]])[None]
            edges = [_edges(network.all_logits(text)[0]) for network in (self._network, exact)]
            self._allow_for(float((edges[0] - edges[1]).abs().max()))

    def _allow_for(self, error: float) -> bool:
        """Raise the tolerance where an error of edges is more than half of it; return whether it was."""
        if error <= self.tolerance / 2 or self.tolerance == 1.0:
            return False
        # Logits that are not finite make an error that is no number, and 1: every word is drawn exactly.
        fine = self.tolerance <= _COARSE
        self.tolerance = min(1.0, _SAFETY * error)
        if fine and self.tolerance > _COARSE:
            _log.warning(
                "%s: probabilities in float32 are off by up to %.0e, so many words are drawn again, slowly",
                self._network.name,
                error,
            )
        return True

    def _attempt(self, u: Tensor) -> Tensor | None:
        """Return the words [n, length] of a batch; None where the tolerance was too small for it."""
        raised = False

        def choose(t: int, prefix: Prefix) -> Tensor:
            nonlocal raised
            edges = _edges(prefix.logits)
            words = _place(edges, u[:, t] - self.tolerance)
            near = words != _place(edges, u[:, t] + self.tolerance)
            if t == self._length - 1:
                near[:_CHECKED] = True
            unsure = (near | edges[:, -1].isnan()).nonzero()[:, 0]
            # As many tokens at once as the batch has sentences.
            for rows in filter(len, torch.split(unsure, max(1, len(u) // (t + 1)))):
                exact = _edges(self._exact.read(prefix.tokens[rows]).logits)
                if exact.isnan().any():
                    raise DataError(f"model: {self._network.name} gives logits that are not finite")
                words[rows] = _place(exact, u[rows, t])
                raised |= self._allow_for(float((exact - edges[rows]).abs().max()))
            return words

        words = _left_to_right(self._network, self._bos, u, choose)
        return None if raised else words


def _left_to_right(network: Network, bos: int, u: Tensor, choose: Callable[[int, Prefix], Tensor]) -> Tensor:
    """Return words [n, T], of as many sentences as `u` [n, T]: `choose(t, read so far)` [n] at each t."""
    words = torch.empty(u.shape, dtype=torch.int64, device=u.device)
    # All sentences begin alike.
    prefix = network.read(torch.full((len(u), 1), bos, device=u.device))
    for t in range(u.shape[1]):
        if t:
            prefix = network.extended(prefix, network.kept[words[:, t - 1 : t]])
        words[:, t] = choose(t, prefix)
    return words


def _edges(logits: Tensor) -> Tensor:
    """Return the running sums [n, K] of the probabilities of logits [n, K], float64."""
    return logits.to(torch.float64).softmax(dim=-1).cumsum(dim=-1)


def _place(edges: Tensor, u: Tensor) -> Tensor:
    """Return the words [n] between whose `edges` [n, K] the uniforms `u` [n] lie."""
    # The last edge is 1 but for rounding; a draw behind it is the last word.
    place = torch.searchsorted(edges, u[:, None] * edges[:, -1:], right=True)[:, 0]
    return place.clamp_max(edges.shape[1] - 1)
