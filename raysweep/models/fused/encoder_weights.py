"""The parameters of an encoder as its compiled passes take them (`.encoder`, `.whole`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from raysweep.models.encoder import Encoder, EncoderLayer
from raysweep.models.fused import kernels
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.products import MANY, array
from raysweep.models.fused.tables import serves
from raysweep.models.fused.weights import Matrix, Vector, Weights
from raysweep.models.fused.whole import Whole


@dataclass(frozen=True)
class Norm:
    """The two vectors of a LayerNorm, and its epsilon: the norms of an enlarged model differ in it."""

    weight: Vector
    bias: Vector
    eps: np.float32

    def observe(self, d_y: np.ndarray, x: Callable[[], np.ndarray], stats: np.ndarray) -> None:
        """Do nothing with d_y [M, D], the gradient of LN(x) in the head, whose kernel adds to the sums.

        `x` returns the inputs [M, D], whose statistics are `stats`.  A subclass takes from these, here and
        below, what it wants to know of single sentences.
        """

    def backward(self, x: np.ndarray, stats: np.ndarray, d_y: np.ndarray, d: np.ndarray) -> None:
        """Add the gradient of x [N, D] to d, given d_y, that of LN(x); add to the parameters' gradients."""
        kernels.norm_backward(x, self.weight.value, stats, d_y, d, self.weight.gradient, self.bias.gradient)

    def junction_backward(
        self, post: bool, d: np.ndarray, d_y: np.ndarray, place: np.ndarray, key: np.uint64, cut: int,
        s: np.ndarray, stats: np.ndarray, d_o: np.ndarray, d_shift: np.ndarray,
    ) -> None:  # fmt: skip
        """Do what `kernels.junction_backward` does with this LayerNorm."""
        kernels.junction_backward(
            post, d, d_y, place, key, cut, self.weight.value, s, stats, d_o,
            d_shift, self.weight.gradient, self.bias.gradient,
        )  # fmt: skip


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


class EncoderWeights(Weights):
    """The parameters of an encoder."""

    def __init__(self, model: Encoder, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        self._norms: list[tuple[nn.LayerNorm, float]] = []
        self.tokens = self._matrix(model.token_embedding.weight)
        self.positions = self._vector(model.position_embedding.weight)
        self.embedding_norm = self._norm(model.embedding_norm)
        self.layers = [self._layer(cast(EncoderLayer, layer)) for layer in model.layers]
        #: The LayerNorm behind the last layer of a pre-norm encoder; a post-norm encoder has none.
        self.final_norm = None if model.final_norm is None else self._norm(model.final_norm)
        self.dense, self.dense_bias = self._linear(model.head_dense)
        self.head_norm = self._norm(model.head_norm)
        self.decoder_bias = self._vector(model.decoder.bias)
        self.token_values = array(model.token_embedding.weight)
        self.heads = model.shape.heads

    def whole_for(self, chunk: Chunk) -> Whole | None:
        """Return the passes of chunks in one call each; None for few words, or where that does not serve."""
        return self._whole if len(chunk.ids) >= MANY[self.dtype] else None

    @cached_property
    def _whole(self) -> Whole | None:
        return Whole(self) if serves(self) else None

    def rest(self) -> bool:
        made = self.__dict__.get("_whole")
        if made is not None:
            made.forget()
        return super().rest()

    def behind(self, k: int) -> tuple[Norm, Norm]:
        """Return the LayerNorms behind the two sublayers of layer k: its own, or the next ones."""
        layer = self.layers[k]
        if self.final_norm is None:
            return layer.attention_norm, layer.mlp_norm
        last = k + 1 == len(self.layers)
        return layer.mlp_norm, self.final_norm if last else self.layers[k + 1].attention_norm

    def serve(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> bool:
        same = all(module.eps == eps for module, eps in self._norms)
        return same and super().serve(parameters, dtype)

    def _norm(self, module: nn.LayerNorm) -> Norm:
        self._norms.append((module, module.eps))
        return Norm(self._vector(module.weight), self._vector(module.bias), np.float32(module.eps))

    def _layer(self, layer: EncoderLayer) -> Layer:
        three: list[nn.Linear] = [layer.query, layer.key, layer.value]
        output, output_bias = self._linear(layer.output)
        up, up_bias = self._linear(layer.up)
        down, down_bias = self._linear(layer.down)
        return Layer(
            projection=self._matrix(*(module.weight for module in three)),
            projection_bias=self._vector(*(module.bias for module in three)),
            output=output,
            output_bias=output_bias,
            attention_norm=self._norm(layer.attention_norm),
            up=up,
            up_bias=up_bias,
            down=down,
            down_bias=down_bias,
            mlp_norm=self._norm(layer.mlp_norm),
        )
