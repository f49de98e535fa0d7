"""The masked-LM loss of an encoder with its gradient, on a processor: no padding, no autograd.

It computes what `raysweep.models.encoder.Encoder` does in training, on packed sentences chunk by chunk
(raysweep.models.fused.packing): matrix products are torch's, in bfloat16 or float32, and everything between
two of them is one compiled pass (raysweep.models.fused.kernels, .attention).  The residual stream, LayerNorm,
softmax, the loss and sums of gradients are float32.  The last layer asks, and computes all behind its
attention, for masked words alone.  Gradients are made right behind the loss of a chunk, while its activations
are in the cache, and are handed to autograd as those of one function of all parameters.

Cost, with D the width, F the intermediate size, L layers: the products of `training_flops`, and about
(20 D + 4 F) L bytes of activations for each word of a chunk in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from raysweep.models.base import MaskedWords
from raysweep.models.dropout import cut_of
from raysweep.models.encoder import Encoder, EncoderLayer
from raysweep.models.fused import attention, kernels
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.weights import Matrix, Vector, Weights, array, differentiable
from raysweep.seeding import derive

CHUNK = 2048  # words: with fewer, products are too small to be fast; with more, memory is slower than cache

_NOTHING = np.empty((0, 0), dtype=np.float32)


@dataclass(frozen=True)
class Norm:
    """A LayerNorm's two vectors, and its epsilon, which an enlarged model's are not alike in."""

    weight: Vector
    bias: Vector
    eps: np.float32


@dataclass(frozen=True)
class Layer:
    """A layer's parameters: `projection` are those of queries, keys and values, one below the other."""

    projection: Matrix
    projection_bias: Vector
    output: Matrix
    output_bias: Vector
    attention_norm: Norm
    up: Matrix
    up_bias: Vector
    down: Matrix
    down_bias: Vector
    mlp_norm: Norm


@dataclass
class Kept:
    """What the backward pass of a layer needs, by the names of `_Pass._layer`."""

    y: Tensor
    asking: Tensor
    query: Tensor
    key_value: Tensor
    mixed: Tensor
    s1: np.ndarray
    stats1: np.ndarray
    y1: Tensor
    u: Tensor
    g: Tensor
    s2: np.ndarray
    stats2: np.ndarray


class EncoderWeights(Weights):
    """The parameters of an encoder."""

    def __init__(self, model: Encoder, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.tokens = self._matrix(model.token_embedding.weight)
        self.positions = self._vector(model.position_embedding.weight)
        self.embedding_norm = self._norm(model.embedding_norm)
        self.layers = [self._layer(cast(EncoderLayer, layer)) for layer in model.layers]
        #: The LayerNorms behind the two sublayers of each layer: its own, or the next to come.
        self.behind = [(layer.attention_norm, layer.mlp_norm) for layer in self.layers]
        if model.final_norm is not None:
            entering = [*(layer.attention_norm for layer in self.layers[1:]), self._norm(model.final_norm)]
            own = [layer.mlp_norm for layer in self.layers]
            self.behind = list(zip(own, entering, strict=True))
        self.dense, self.dense_bias = self._linear(model.head_dense)
        self.head_norm = self._norm(model.head_norm)
        self.decoder_bias = self._vector(model.decoder.bias)
        self.token_values = array(model.token_embedding.weight)

    def _norm(self, module: nn.LayerNorm) -> Norm:
        return Norm(self._vector(module.weight), self._vector(module.bias), np.float32(module.eps))

    def _layer(self, layer: EncoderLayer) -> Layer:
        three: list[nn.Linear] = [layer.query, layer.key, layer.value]
        with torch.no_grad():
            weight = torch.cat([module.weight for module in three])
            bias = torch.cat([module.bias for module in three])
        sums, bias_sums = torch.zeros_like(weight), torch.zeros_like(bias)
        # The gradients of the three are parts of one.
        for module, of, of_bias in zip(three, sums.chunk(3), bias_sums.chunk(3), strict=True):
            self.sums[id(module.weight)], self.sums[id(module.bias)] = of, of_bias
        output, output_bias = self._linear(layer.output)
        up, up_bias = self._linear(layer.up)
        down, down_bias = self._linear(layer.down)
        return Layer(
            projection=Matrix(weight.to(self.dtype), sums),
            projection_bias=Vector(array(bias), array(bias_sums)),
            output=output,
            output_bias=output_bias,
            attention_norm=self._norm(layer.attention_norm),
            up=up,
            up_bias=up_bias,
            down=down,
            down_bias=down_bias,
            mlp_norm=self._norm(layer.mlp_norm),
        )


class _Pass:
    """Forward and backward pass of one chunk."""

    def __init__(self, model: Encoder, weights: EncoderWeights, chunk: Chunk, seed: int) -> None:
        self.weights, self.chunk = weights, chunk
        self.post = model.norm == "post"
        self.heads, self.width = model.shape.heads, model.width
        self.cut = cut_of(model.dropout.p) if model.training else 0
        self.stride = (model.max_length + 3) // 4
        # The streams of the sites: the embedding's, and three a layer.
        self.sites = [np.uint64(derive(seed, "site", k)) for k in range(1 + 3 * len(weights.layers))]
        self.kept: list[Kept] = []

    def loss(self, factor: float) -> float:
        """Return the sum of the losses; add `factor` times its gradient to the weights' sums."""
        chunk, w = self.chunk, self.weights
        total, d_y = self._head(self._forward(), factor)
        d = self._backward(d_y)
        kernels.embed_backward(
            chunk.ids, chunk.at, chunk.place, w.token_values, w.positions.value,
            w.embedding_norm.weight.value, self.sites[0], self.cut, self.embedding_stats, d,
            array(w.tokens.gradient), w.positions.gradient,
            w.embedding_norm.weight.gradient, w.embedding_norm.bias.gradient,
        )  # fmt: skip
        return total

    def _forward(self) -> Tensor:
        """Return the encoder's output [M, D] at masked words; keep what the backward pass needs."""
        chunk, w = self.chunk, self.weights
        N, D = len(chunk.ids), self.width
        r = _float(N, D)
        y, y_array = self.weights.low(N, D)
        self.embedding_stats, self.entering_stats = _float(N, 2), _float(N, 2)
        kernels.embed(
            chunk.ids, chunk.at, chunk.place, w.token_values, w.positions.value,
            w.embedding_norm.weight.value, w.embedding_norm.bias.value, w.embedding_norm.eps,
            self.sites[0], self.cut, self.embedding_stats, r, y_array,
        )  # fmt: skip
        self.embedded = r
        if not self.post:
            first = w.layers[0].attention_norm
            kernels.norm(r, first.weight.value, first.bias.value, first.eps, self.entering_stats, y_array)
        for k in range(len(w.layers)):
            r, y, keep = self._layer(k, r, y)
            self.kept.append(keep)
        return y

    def _backward(self, d_y: Tensor) -> np.ndarray:
        """Return the gradient [N, D] of the embedding, given that of the encoder's output."""
        d = np.zeros((len(self.chunk.masked), self.width), dtype=np.float32)
        for k in range(len(self.weights.layers) - 1, -1, -1):
            d, d_y = self._layer_backward(k, self.kept.pop(), d, d_y)
        if self.post:
            torch.from_numpy(d).add_(d_y)
        else:
            self._entering_backward(array(d_y), d)
        return d

    def _entering_backward(self, d_y: np.ndarray, d: np.ndarray) -> None:
        """Add to d what the gradient d_y of the first LayerNorm before a sublayer makes of its input's."""
        first = self.weights.layers[0].attention_norm
        kernels.norm_backward(
            self.embedded, first.weight.value, self.entering_stats, d_y, d,
            first.weight.gradient, first.bias.gradient,
        )  # fmt: skip

    def _layer(self, k: int, r: np.ndarray, y: Tensor) -> tuple[np.ndarray, Tensor, Kept]:
        """Return the residual stream and the next sublayer's input behind layer k."""
        chunk, layer, D = self.chunk, self.weights.layers[k], self.width
        one, two = self.weights.behind[k]
        last = k + 1 == len(self.weights.layers)
        if last:
            asking = y[torch.from_numpy(chunk.masked)]
            query = layer.projection.part(slice(0, D)).apply(asking)
            key_value = layer.projection.part(slice(D, None)).apply(y)
            r = r[chunk.masked]
        else:
            asking = y
            query = key_value = layer.projection.apply(y)
        n = len(r)
        mixed, mixed_array = self.weights.low(n, D)
        attention.attend(*self._attention(k, query, key_value), mixed_array)
        s1, stats1, out1, y1 = self._junction(r, layer.output.apply(mixed), layer.output_bias, one, k, 1)
        u = layer.up.apply(y1)
        g = torch.empty_like(u)
        kernels.gelu(array(u), layer.up_bias.value, array(g))
        s2, stats2, out2, y2 = self._junction(out1, layer.down.apply(g), layer.down_bias, two, k, 2)
        return out2, y2, Kept(y, asking, query, key_value, mixed, s1, stats1, y1, u, g, s2, stats2)

    def _junction(
        self, r: np.ndarray, o: Tensor, shift: Vector, norm: Norm, k: int, site: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
        """Return the sum, its statistics, the residual stream behind, and the next sublayer's input."""
        s, stats = np.empty_like(r), _float(len(r), 2)
        out = np.empty_like(r) if self.post else _NOTHING
        y, y_array = self.weights.low(*r.shape)
        kernels.junction(
            r, array(o), shift.value, self._places(k), self.sites[3 * k + 1 + site], self.cut,
            norm.weight.value, norm.bias.value, norm.eps, s, stats, out, y_array,
        )  # fmt: skip
        return s, stats, out if self.post else s, y

    def _junction_backward(
        self, d: np.ndarray, d_y: Tensor, s: np.ndarray, stats: np.ndarray, shift: Vector, norm: Norm,
        k: int, site: int,
    ) -> Tensor:  # fmt: skip
        """Turn d into the gradient of the residual stream before; return that of what was added to it."""
        d_o, d_o_array = self.weights.low(*d.shape)
        kernels.junction_backward(
            self.post, d, array(d_y), self._places(k), self.sites[3 * k + 1 + site], self.cut,
            norm.weight.value, s, stats, d_o_array, shift.gradient, norm.weight.gradient, norm.bias.gradient,
        )  # fmt: skip
        return d_o

    def _places(self, k: int) -> np.ndarray:
        """Return the numbers of the words for which layer k is computed."""
        place = self.chunk.place
        return place[self.chunk.masked] if k + 1 == len(self.weights.layers) else place

    def _attention(self, k: int, query: Tensor, key_value: Tensor) -> tuple[Any, ...]:
        """Return what both attention kernels take of layer k."""
        chunk, bias, D = self.chunk, self.weights.layers[k].projection_bias.value, self.width
        last = k + 1 == len(self.weights.layers)
        asking = chunk.asking if last else chunk.starts
        return (
            array(query), bias[:D] if last else bias, array(key_value), bias[D:] if last else bias,
            0 if last else D, chunk.starts, asking, chunk.longest, self.heads, self._places(k),
            self.sites[3 * k + 1], self.cut, self.stride,
        )  # fmt: skip

    def _layer_backward(self, k: int, kept: Kept, d: np.ndarray, d_y: Tensor) -> tuple[np.ndarray, Tensor]:
        """Return the gradients of the residual stream and of the sublayer's input before layer k."""
        chunk, layer, D = self.chunk, self.weights.layers[k], self.width
        one, two = self.weights.behind[k]
        d_m = self._junction_backward(d, d_y, kept.s2, kept.stats2, layer.down_bias, two, k, 2)
        d_g = layer.down.back(d_m, kept.g)
        kernels.gelu_backward(array(kept.u), layer.up_bias.value, array(d_g), layer.up_bias.gradient)
        d_y = layer.up.back(d_g, kept.y1)
        d_o = self._junction_backward(d, d_y, kept.s1, kept.stats1, layer.output_bias, one, k, 1)
        d_mixed = layer.output.back(d_o, kept.mixed)
        d_key_value = torch.empty_like(kept.key_value)
        bias, nothing = layer.projection_bias.gradient, np.zeros(D, dtype=np.float32)
        arguments = self._attention(k, kept.query, kept.key_value)
        if k + 1 < len(self.weights.layers):
            place = array(d_key_value)
            attention.attend_backward(*arguments, array(d_mixed), nothing, place, place, bias, bias)
            return d, layer.projection.back(d_key_value, kept.y)
        d_query = torch.empty_like(kept.query)
        attention.attend_backward(
            *arguments, array(d_mixed), nothing, array(d_query), array(d_key_value), bias[:D], bias[D:]
        )
        d_asking = layer.projection.part(slice(0, D)).back(d_query, kept.asking)
        d_y = layer.projection.part(slice(D, None)).back(d_key_value, kept.y)
        d_y[torch.from_numpy(chunk.masked)] += d_asking
        whole = np.zeros((len(chunk.ids), D), dtype=np.float32)
        whole[chunk.masked] = d
        return whole, d_y

    def _head(self, y: Tensor, factor: float) -> tuple[float, Tensor]:
        """Return the loss of the masked words, and the gradient of the encoder's output y [M, D]."""
        w, norm = self.weights, self.weights.head_norm
        z = w.dense.apply(y)
        t, stats = torch.empty_like(z), _float(len(z), 2)
        kernels.transform(
            array(z), w.dense_bias.value, norm.weight.value, norm.bias.value, norm.eps, stats, array(t)
        )
        logits = w.tokens.apply(t)
        bias = w.decoder_bias
        total: float = kernels.cross_entropy(
            array(logits), bias.value, self.chunk.targets, np.float32(factor), bias.gradient
        )
        d = w.tokens.back(logits, t)
        kernels.transform_backward(
            array(z), w.dense_bias.value, norm.weight.value, stats, array(d),
            w.dense_bias.gradient, norm.weight.gradient, norm.bias.gradient,
        )  # fmt: skip
        return total, w.dense.back(d, y)


def _float(rows: int, columns: int) -> np.ndarray:
    return np.empty((rows, columns), dtype=np.float32)


def masked_loss(model: Encoder, words: MaskedWords, *, seed: int, dtype: torch.dtype) -> Tensor:
    """Return the loss of `MaskedLM.masked_loss`; dropout is keyed by (seed, the sentences' rows).

    Raises `DataError` for words, positions or targets that the model does not have.
    """

    def loss(weights: EncoderWeights, chunk: Chunk) -> float:
        return _Pass(model, weights, chunk, seed).loss(1 / words.count)

    return differentiable(model, words, CHUNK, lambda: EncoderWeights(model, dtype), loss)
