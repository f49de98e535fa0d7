"""The norms of an encoder, by its compiled forward and backward pass, kernel by kernel; see also `.whole`.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raysweep.flatness.fused.taps import ChunkNorms, Sink, TappedMatrix, TappedNorm
from raysweep.models.encoder import Encoder
from raysweep.models.fused.encoder import Pass
from raysweep.models.fused.encoder_weights import EncoderWeights, Layer, Norm
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.products import tensor
from raysweep.models.fused.weights import Matrix


class TappedEncoder(EncoderWeights):
    """The parameters of an encoder in float32, tapped."""

    def __init__(self, model: Encoder) -> None:
        super().__init__(model, torch.float32)
        self.sinks: list[Sink] = []
        self.layers = [self._layer_tapped(layer, f"layers.{k}") for k, layer in enumerate(self.layers)]
        self.tokens = self._tap(self.tokens, "decoder")
        self.dense = self._tap(self.dense, "head_dense")
        self.embedding_norm = self._tap_norm(self.embedding_norm, "embedding_norm")
        self.head_norm = self._tap_norm(self.head_norm, "head_norm")
        if self.final_norm is not None:
            self.final_norm = self._tap_norm(self.final_norm, "final_norm")

    def whole_for(self, chunk: Chunk) -> None:
        """Return None: what is tapped is taken between two kernels."""
        return

    def _tap(self, matrix: Matrix, *names: str) -> TappedMatrix:
        return TappedMatrix.of(matrix, self.sinks, *names)

    def _tap_norm(self, norm: Norm, name: str) -> TappedNorm:
        return TappedNorm.of(norm, self.sinks, name)

    def _layer_tapped(self, layer: Layer, path: str) -> Layer:
        three = [f"{path}.{name}" for name in ("query", "key", "value")]
        return replace(
            layer,
            projection=self._tap(layer.projection, *three),
            output=self._tap(layer.output, f"{path}.output"),
            attention_norm=self._tap_norm(layer.attention_norm, f"{path}.attention_norm"),
            up=self._tap(layer.up, f"{path}.up"),
            down=self._tap(layer.down, f"{path}.down"),
            mlp_norm=self._tap_norm(layer.mlp_norm, f"{path}.mlp_norm"),
        )


class EncoderNorms(ChunkNorms):
    """The norms of one chunk of an encoder's inputs."""

    def __init__(self, model: Encoder, weights: TappedEncoder, chunk: Chunk) -> None:
        super().__init__(weights, chunk)
        self._encoder, self._pass = weights, Pass(model, weights, chunk, None, apart=True)

    def forward(self) -> tuple[Tensor, Tensor]:
        logits = self._logits(self._pass.forward())
        return logits, tensor(self._pass.head.hidden)

    def _backward(self, v: np.ndarray, *, again: bool) -> tuple[np.ndarray, np.ndarray]:
        chunk, w = self.chunk, self._encoder
        stats = self._pass.entered(self._pass.embedding_stats)
        d = self._pass.backward(v, again=again)
        for name, found in self._found.items():
            if name.endswith("key.bias"):
                # A softmax does not see what all keys have in common: anything else is rounding.
                found[:] = 0
        x = w.token_values[chunk.ids] + w.positions.value[chunk.at]
        d_x = np.zeros_like(d)
        w.embedding_norm.backward(x, stats, d, d_x)
        return self._pass.head.inputs, d_x
