"""The compiled forward and backward pass of an encoder with norms in the place of gradients.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep.flatness.fused import kernels as norm_kernels
from raysweep.flatness.fused.taps import Norms, Sink, Tapped
from raysweep.models.encoder import Encoder
from raysweep.models.fused import kernels
from raysweep.models.fused.encoder import EncoderWeights, Layer, _Pass
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.weights import Matrix, Vector, array


class GhostWeights(EncoderWeights):
    """The parameters of an encoder in float32, tapped."""

    def __init__(self, model: Encoder) -> None:
        super().__init__(model, torch.float32)
        self.sinks: list[Sink] = []
        self.layers = [self._tapped(layer, f"layers.{k}.") for k, layer in enumerate(self.layers)]
        self.tokens = self._tap(self.tokens, "decoder")
        self.dense = self._tap(self.dense, "head_dense")

    def _tap(self, matrix: Matrix, *names: str) -> Tapped:
        return Tapped.of(matrix, names, self.sinks)

    def _tapped(self, layer: Layer, prefix: str) -> Layer:
        three = [f"{prefix}{name}" for name in ("query", "key", "value")]
        return replace(
            layer,
            projection=self._tap(layer.projection, *three),
            output=self._tap(layer.output, f"{prefix}output"),
            up=self._tap(layer.up, f"{prefix}up"),
            down=self._tap(layer.down, f"{prefix}down"),
        )


class GhostPass(Norms, _Pass):
    """Forward and backward pass of one chunk, with norms in the place of gradients."""

    weights: GhostWeights

    def __init__(self, model: Encoder, weights: GhostWeights, chunk: Chunk) -> None:
        _Pass.__init__(self, model, weights, chunk, 0)
        Norms.__init__(self)
        self.cut = 0  # no dropout

    def forward(self) -> tuple[Tensor, Tensor]:
        w, norm = self.weights, self.weights.head_norm
        self._hidden = self._forward()
        self._z = w.dense.apply(self._hidden)
        self._t, self._stats = torch.empty_like(self._z), np.empty((len(self._z), 2), np.float32)
        kernels.transform(
            array(self._z), w.dense_bias.value, norm.weight.value, norm.bias.value, norm.eps,
            self._stats, array(self._t),
        )  # fmt: skip
        return self._logits(self._t), self._hidden

    def _back(self, v: Tensor, last: bool) -> None:
        chunk, w = self.chunk, self.weights
        # The last time, what a layer needs is freed behind it.
        kept = [] if last else list(self.kept)
        d = self._backward(self._head_back(v))
        self.kept = kept
        x = w.token_values[chunk.ids] + w.positions.value[chunk.at]
        self._scale("embedding_norm", d, d, x, self.embedding_stats, through=False)
        d_x = np.zeros_like(d)
        self._below(x, w.embedding_norm.weight, self.embedding_stats, d, d_x)
        self._found["position_embedding.weight"] = self._tied(d_x, self._t, v)

    def _head_back(self, v: Tensor) -> Tensor:
        """Return the gradient of the encoder's output [S, D]."""
        w, bias = self.weights, self.weights.dense_bias.value
        d = w.tokens.back(v, self._t)
        inner = F.gelu(self._z + torch.from_numpy(bias))
        self._scale("head_norm", array(d), array(d), inner.numpy(), self._stats, through=False)
        junk = np.zeros(self.width, dtype=np.float32)
        kernels.transform_backward(
            array(self._z), bias, w.head_norm.weight.value, self._stats, array(d), junk, junk, junk
        )
        return w.dense.back(d, self._hidden)

    def _entering_backward(self, d_y: np.ndarray, d: np.ndarray) -> None:
        self._scale("layers.0.attention_norm", d, d_y, self.embedded, self.entering_stats, through=False)
        super()._entering_backward(d_y, d)

    def _below(
        self, x: np.ndarray, weight: Vector, stats: np.ndarray, d_y: np.ndarray, d: np.ndarray
    ) -> None:
        """Add to d [N, D] the gradient of a LayerNorm's inputs x, given that of its outputs."""
        kernels.norm_backward(x, weight.value, stats, d_y, d, np.zeros_like(d[0]), np.zeros_like(d[0]))

    def _scale(
        self, name: str, d: np.ndarray, d_y: np.ndarray, s: np.ndarray, stats: np.ndarray, *, through: bool
    ) -> None:
        """Take the norms of a LayerNorm of s [N, D] with cotangents d_y, and d on top if `through`."""
        bounds = self._bounds(len(s))
        weight, bias = np.zeros(len(bounds) - 1), np.zeros(len(bounds) - 1)
        norm_kernels.scale(d, d_y, s, stats, through, bounds, weight, bias)
        self._found[f"{name}.weight"], self._found[f"{name}.bias"] = weight, bias

    def _junction_backward(  # type: ignore[no-untyped-def]
        self, d, d_y, s, stats, shift, norm, k, site
    ):
        self._scale(self._norm_name(k, site), d, array(d_y), s, stats, through=self.post)
        return super()._junction_backward(d, d_y, s, stats, shift, norm, k, site)

    def _norm_name(self, k: int, site: int) -> str:
        """Return the name of the LayerNorm behind a sublayer of layer k, `EncoderWeights.behind`."""
        if self.post:
            return f"layers.{k}.{'attention_norm' if site == 1 else 'mlp_norm'}"
        if site == 1:
            return f"layers.{k}.mlp_norm"
        return "final_norm" if k + 1 == len(self.weights.layers) else f"layers.{k + 1}.attention_norm"
