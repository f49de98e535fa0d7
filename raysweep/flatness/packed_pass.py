"""The compiled forward and backward pass of an encoder with norms in the place of gradients.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep.flatness import packed_kernels
from raysweep.flatness.packed import Maker
from raysweep.flatness.packed_taps import Norms, Sink, Tapped
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
    """One chunk: logits, a test vector of each made by `make`, and the norms of all parameters' gradients."""

    weights: GhostWeights

    def __init__(
        self, model: Encoder, weights: GhostWeights, chunk: Chunk, rows: Tensor, make: Maker
    ) -> None:
        _Pass.__init__(self, model, weights, chunk, 0)
        Norms.__init__(self, rows, make)
        self.cut = 0  # no dropout

    def _run(self) -> None:
        chunk, w, D = self.chunk, self.weights, self.width
        N = len(chunk.ids)
        first_norm = w.embedding_norm.weight, w.embedding_norm.bias
        stats0, r = np.empty((N, 2), np.float32), np.empty((N, D), np.float32)
        y, y_array = w.low(N, D)
        kernels.embed(
            chunk.ids, chunk.at, chunk.place, w.token_values, w.positions.value,
            first_norm[0].value, first_norm[1].value, w.embedding_norm.eps, self.sites[0], 0,
            stats0, r, y_array,
        )  # fmt: skip
        embedded, stats1 = r, np.empty((N, 2), np.float32)
        if not self.post:
            norm = w.layers[0].attention_norm
            kernels.norm(r, norm.weight.value, norm.bias.value, norm.eps, stats1, y_array)
        kept = []
        for k in range(len(w.layers)):
            r, y, keep = self._layer(k, r, y)
            kept.append(keep)
        _, d_y = self._head(y, 1.0)
        d = np.zeros((len(chunk.masked), D), dtype=np.float32)
        for k in range(len(w.layers) - 1, -1, -1):
            d, d_y = self._layer_backward(k, kept.pop(), d, d_y)
        if self.post:
            torch.from_numpy(d).add_(d_y)
        else:
            self._scale("layers.0.attention_norm", d, array(d_y), embedded, stats1, through=False)
            self._below(embedded, norm.weight, stats1, array(d_y), d)
        x = w.token_values[chunk.ids] + w.positions.value[chunk.at]
        self._scale("embedding_norm", d, d, x, stats0, through=False)
        d_x = np.zeros_like(d)
        self._below(x, first_norm[0], stats0, d, d_x)
        self._found["position_embedding.weight"] = self._tied(d_x, *self._last)

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
        packed_kernels.scale(d, d_y, s, stats, through, bounds, weight, bias)
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

    def _head(self, y: Tensor, factor: float) -> tuple[float, Tensor]:
        """Return 0, and the gradient of the encoder's output y [M, D] with cotangents from `make`."""
        w, norm = self.weights, self.weights.head_norm
        z = w.dense.apply(y)
        t, stats = torch.empty_like(z), np.empty((len(z), 2), np.float32)
        kernels.transform(
            array(z), w.dense_bias.value, norm.weight.value, norm.bias.value, norm.eps, stats, array(t)
        )
        v, d = self._decoded(t, y)
        self._last = t, v
        inner = F.gelu(z + torch.from_numpy(w.dense_bias.value))
        self._scale("head_norm", array(d), array(d), inner.numpy(), stats, through=False)
        junk = np.zeros(self.width, dtype=np.float32)
        kernels.transform_backward(
            array(z), w.dense_bias.value, norm.weight.value, stats, array(d), junk, junk, junk
        )
        return 0.0, w.dense.back(d, y)
