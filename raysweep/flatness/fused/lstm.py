"""The norms of an LSTM, by its compiled forward and backward pass.

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

from raysweep.flatness.fused import kernels
from raysweep.flatness.fused.taps import ChunkNorms, Sink, TappedMatrix
from raysweep.models.fused.lstm import Direction, LSTMWeights, Pass
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.products import tensor
from raysweep.models.lstm import LSTM


class TappedLSTM(LSTMWeights):
    """The parameters of an LSTM in float32, tapped."""

    def __init__(self, model: LSTM) -> None:
        super().__init__(model, torch.float32)
        self.sinks: list[Sink] = []
        self.tokens = TappedMatrix.of(self.tokens, self.sinks, "decoder")
        self.layers = [
            (self._tap(left, f"layers.{k}.left_to_right"), self._tap(right, f"layers.{k}.right_to_left"))
            for k, (left, right) in enumerate(self.layers)
        ]

    def _tap(self, direction: Direction, name: str) -> Direction:
        return replace(direction, weight=TappedMatrix.of(direction.weight, self.sinks, name))


class LSTMNorms(ChunkNorms):
    """The norms of one chunk of an LSTM's inputs."""

    def __init__(self, model: LSTM, weights: TappedLSTM, chunk: Chunk) -> None:
        super().__init__(weights, chunk)
        self._pass = Pass(model, weights, chunk, None)

    def forward(self) -> tuple[Tensor, Tensor]:
        logits = self._logits(self._pass.forward())
        return logits, tensor(self._pass.hidden)

    def linear(
        self, names: Sequence[str], d: np.ndarray, x: np.ndarray, row: np.ndarray | None, heads: int
    ) -> None:
        """Take the norms of the decoder, or of a direction: then d [R, 4H] is that of its gates."""
        if row is None:
            super().linear(names, d, x, row, heads)
            return
        norms = np.zeros((3, len(self.chunk.starts) - 1))
        inputs = self._pass.width
        kernels.recurrence(x, d, row, self.chunk.starts, inputs, norms)
        [name], [weight, state, bias] = names, norms
        for key, found in (("weight_ih", weight), ("weight_hh", state), ("bias_ih", bias), ("bias_hh", bias)):
            self._found[f"{name}.{key}_l0"] = found

    def _backward(self, v: np.ndarray, *, again: bool) -> tuple[np.ndarray, np.ndarray]:
        below = self._pass.backward(v, again=again)
        # Every word has a row of its own here, as if no two shared one of the table.
        words = np.arange(len(self.chunk.ids))
        d = np.zeros((len(words), self._pass.width), dtype=np.float32)
        self._pass.embed_backward(words, below, d)
        return self._pass.hidden, d
