"""The compiled forward and backward pass of an LSTM with norms in the place of gradients.

The gradient of a direction's weight is Σ d [x; h]ᵀ over the steps of a sentence, with d the cotangents of the
gates: its columns of x are the input's weight, those of h the recurrence's, and Σ d is either bias's.
Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raysweep.flatness.fused import kernels as norm_kernels
from raysweep.flatness.fused.taps import Norms, Sink, Tapped
from raysweep.models.fused import recurrent
from raysweep.models.fused.lstm import Direction, Kept, LSTMWeights, Place, _Pass
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.weights import array
from raysweep.models.lstm import LSTM


class GhostWeights(LSTMWeights):
    """The parameters of an LSTM in float32, tapped."""

    def __init__(self, model: LSTM) -> None:
        super().__init__(model, torch.float32)
        self.sinks: list[Sink] = []
        self.tokens = Tapped.of(self.tokens, ("decoder",), self.sinks)
        self.layers = [
            (
                self._tapped(left, f"layers.{k}.left_to_right"),
                self._tapped(right, f"layers.{k}.right_to_left"),
            )
            for k, (left, right) in enumerate(self.layers)
        ]

    def _tapped(self, direction: Direction, name: str) -> Direction:
        return replace(direction, weight=Tapped.of(direction.weight, (name,), self.sinks))


class GhostPass(Norms, _Pass):
    """Forward and backward pass of one chunk, with norms in the place of gradients."""

    weights: GhostWeights

    def __init__(self, model: LSTM, weights: GhostWeights, chunk: Chunk) -> None:
        _Pass.__init__(self, model, weights, chunk, 0)
        Norms.__init__(self)
        self.cut = 0  # no dropout

    def forward(self) -> tuple[Tensor, Tensor]:
        self._head_place = self._forward()
        hidden = self._head_place.left
        return self._logits(hidden), hidden

    def _back(self, v: Tensor, last: bool) -> None:
        chunk, head = self.chunk, self._head_place
        d = self.weights.tokens.back(v, head.left)
        kept: list[tuple[Kept, Kept]] = []
        if not last:
            # Gates become their cotangents where they stand.
            kept, self.kept = self.kept, [(_copied(left), _copied(right)) for left, right in self.kept]
        self.weights.sinks.append(self._recurrence)
        try:
            below = self._backward(Place(head.left_row, head.right_row, d, d))
        finally:
            self.weights.sinks.pop()
        self.kept = kept
        # As if every word had a row of the table for itself.
        words, d_x = np.arange(len(chunk.ids)), np.zeros((len(chunk.ids), self.width), dtype=np.float32)
        recurrent.enter_backward(words, chunk.place, self.sites[0], 0, *below.arguments, d_x)
        self._tied(d_x, head.left, v)

    def _direction_backward(self, k: int, side: int, kept: Kept, above: Place) -> Tensor:
        self._row = kept.order.row
        return super()._direction_backward(k, side, kept, above)

    def _recurrence(self, names: Sequence[str], d: Tensor, z: Tensor) -> None:
        """Take the norms of a direction with cotangents d [R, 4H] of its gates, z [R, D + H] being [x; h]."""
        norms = np.zeros((3, len(self.chunk.starts) - 1))
        norm_kernels.recurrence(array(z), array(d), self._row, self.chunk.starts, self.width, norms)
        [name], [weight, state, bias] = names, norms
        for key, found in (("weight_ih", weight), ("weight_hh", state), ("bias_ih", bias), ("bias_hh", bias)):
            self._found[f"{name}.{key}_l0"] = found


def _copied(kept: Kept) -> Kept:
    return replace(kept, gates=kept.gates.clone())
