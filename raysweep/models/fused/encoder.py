"""The masked-LM loss of an encoder with its gradient, on a processor, without padding.

It computes what `raysweep.models.encoder.Encoder` does in training, on packed sentences chunk by chunk
(raysweep.models.fused.packing).  Matrix products are compiled ones where the processor has the instructions
(.products), and torch's elsewhere; everything between two of them is one compiled pass (.kernels,
.attention).  The residual stream, LayerNorm, softmax, the loss and sums of gradients are float32.  The last
layer has queries, and everything behind its attention, for masked words alone, and keys and values only where
many words are masked (.sublayer).  The gradients of a chunk are computed right after its loss, while its
activations are in the cache (`step`).  Where all products are compiled ones, a chunk is one call (.whole).

Cost, with D the width, F the intermediate size, L layers: at most the products of `training_flops`, and about
(20 D + 4 F) L bytes of activations for each word of a chunk in bfloat16.  Weights are laid out twice for
compiled products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysweep.models.batch import Batch
from raysweep.models.dropout import cut_of, streams
from raysweep.models.encoder import Encoder
from raysweep.models.fused import kernels
from raysweep.models.fused.encoder_weights import EncoderWeights, Norm
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.rows import add, sum_rows
from raysweep.models.fused.states import states
from raysweep.models.fused.step import Step
from raysweep.models.fused.sublayer import Attended, Site
from raysweep.models.fused.weights import Vector

CHUNK = 2048  # words: with fewer, products are too small to be fast; with more, memory is slower than cache

_NOTHING = np.empty((0, 0), dtype=np.float32)


@dataclass
class Kept:
    """The arrays that the backward pass of a layer needs, by their names in `Pass._layer`."""

    attended: Attended
    s1: np.ndarray
    stats1: np.ndarray
    y1: np.ndarray
    slope: np.ndarray
    g: np.ndarray
    s2: np.ndarray
    stats2: np.ndarray


@dataclass(frozen=True)
class Head:
    """The arrays of the head at M masked words.

    `hidden` [M, D] is the encoder's output, z the dense layer's, `inputs` [M, D] enter the decoder.
    """

    hidden: np.ndarray
    z: np.ndarray
    inputs: np.ndarray
    stats: np.ndarray


class Pass:
    """The forward and the backward pass of one chunk.

    Call `forward` first, then `backward`, which adds the gradients of all parameters behind the embedding to
    the weights' sums.  Dropout is keyed by `seed`, and off where that is None or the model is in evaluation
    mode.  Arrays are as `raysweep.models.fused.products.array` returns them.

    Without dropout, equal words in equal places are equal up to the first attention.  Where all pairs of a
    word and a place are at most half as many as the chunk's words, what comes before that is computed for
    these pairs.  Their gradients are summed, unless these are to be `apart` for each word of the chunk.
    `ids` and `at` are the words that enter.
    """

    head: Head

    def __init__(
        self,
        model: Encoder,
        weights: EncoderWeights,
        chunk: Chunk,
        seed: int | None,
        *,
        apart: bool = False,
    ) -> None:
        self.weights, self.chunk = weights, chunk
        self.post = model.norm == "post"
        self.heads, self.width = model.shape.heads, model.width
        self.cut, self.stride, self.sites = dropped(model, seed)
        # The numbers of the words for which each layer is computed.
        self._places = [chunk.place] * (len(weights.layers) - 1) + [chunk.place[chunk.masked]]
        pairs = None if self.cut else chunk.distinct(model.total_vocabulary)
        self.which: np.ndarray | None = None
        self.ids, self.at = chunk.ids, chunk.at
        if pairs is not None:
            self.ids, self.at, self.which = pairs
        self._apart = apart
        self.embedding_stats, self.entering_stats = _float(len(self.ids), 2), _float(len(self.ids), 2)
        self._kept: list[Kept] = []

    def forward(self) -> np.ndarray:
        """Return the logits [M, V] at masked words, without the decoder's bias."""
        w, norm, hidden = self.weights, self.weights.head_norm, self.encode()
        z = w.dense.apply(hidden)
        self.head = Head(hidden=hidden, z=z, inputs=w.low(*z.shape), stats=_float(len(z), 2))
        kernels.transform(
            z, w.dense_bias.value, norm.weight.value, norm.bias.value, norm.eps,
            self.head.stats, self.head.inputs,
        )  # fmt: skip
        return w.tokens.apply(self.head.inputs)

    def backward(self, d_logits: np.ndarray, *, again: bool = False) -> np.ndarray:
        """Return the gradient of the embedded words, given that of the logits [M, V].

        It has a row for each word that enters, or for each word of the chunk if gradients are `apart`.
        The arrays of a layer are freed behind it, unless `again` says that another backward pass follows.
        """
        return self._body_backward(self._head_backward(d_logits), again=again)

    def _body_backward(self, d_y: np.ndarray, *, again: bool = False) -> np.ndarray:
        """Return what `backward` returns, given the gradient of the encoder's output [M, D]."""
        kept = list(self._kept) if again else []
        d = np.zeros((len(self.chunk.masked), self.width), dtype=np.float32)
        for k in range(len(self.weights.layers) - 1, -1, -1):
            d, d_y = self._layer_backward(k, self._kept.pop(), d, d_y)
        self._kept = kept
        if self.which is not None and not self._apart:
            total = np.zeros((len(self.ids), self.width), dtype=np.float32)
            sum_rows(d, self.which[self.chunk.masked] if self._last(0) else self.which, total)
            d = total
            if self._last(0):
                d_y = self._site(0).summed(d_y, len(self.ids))
        if self.post:
            add(d_y, d)
        else:
            first = self.weights.layers[0].attention_norm
            first.backward(self.entered(self.embedded), self.entered(self.entering_stats), d_y, d)
        return d

    def entered(self, x: np.ndarray) -> np.ndarray:
        """Return x, which has a row for each word that enters, with the rows of what `backward` returns."""
        return x.take(self.which, axis=0) if self.which is not None and self._apart else x

    def learn(self, d_logits: np.ndarray) -> None:
        """Do the backward pass, and add the gradients of the embedding to the weights' sums as well."""
        self._embed_backward(self.backward(d_logits))

    def learn_states(self, d_states: np.ndarray) -> None:
        """Do what `learn` does, given the gradient of the encoder's output [M, D]; the head has no part."""
        self._embed_backward(self._body_backward(d_states))

    def _embed_backward(self, d: np.ndarray) -> None:
        """Add the gradients of the embedding's parameters, given what `backward` returns."""
        w, (ids, at) = self.weights, (self.ids, self.at)
        if self._apart:
            ids, at = self.chunk.ids, self.chunk.at
        kernels.embed_backward(
            ids, at, self.chunk.place, w.token_values, w.positions.value,
            w.embedding_norm.weight.value, self.sites[0], self.cut, self.entered(self.embedding_stats),
            d, w.tokens.gradient, w.positions.gradient,
            w.embedding_norm.weight.gradient, w.embedding_norm.bias.gradient,
        )  # fmt: skip

    def encode(self) -> np.ndarray:
        """Return the encoder's output [M, D] at masked words; keep the arrays of the backward pass."""
        w, N, D = self.weights, len(self.ids), self.width
        r = _float(N, D)
        y = self.weights.low(N, D)
        kernels.embed(
            self.ids, self.at, self.chunk.place, w.token_values, w.positions.value,
            w.embedding_norm.weight.value, w.embedding_norm.bias.value, w.embedding_norm.eps,
            self.sites[0], self.cut, self.embedding_stats, r, y,
        )  # fmt: skip
        self.embedded = r
        if not self.post:
            first = w.layers[0].attention_norm
            kernels.norm(r, first.weight.value, first.bias.value, first.eps, self.entering_stats, y)
        for k in range(len(w.layers)):
            r, y, keep = self._layer(k, r, y)
            self._kept.append(keep)
        return y

    def _layer(self, k: int, r: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, Kept]:
        """Return the residual stream and the next sublayer's input behind layer k."""
        layer = self.weights.layers[k]
        one, two = self.weights.behind(k)
        attended = self._site(k).attend(y)
        which = self.which if k == 0 else None
        if self._last(k):
            r = r.take(self.chunk.masked if which is None else which[self.chunk.masked], axis=0)
        elif which is not None:
            r = r.take(which, axis=0)
        o = layer.output.apply(attended.mixed)
        s1, stats1, out1, y1 = self._junction(r, o, layer.output_bias, one, k, 1)
        slope = layer.up.apply(y1)
        g = self.weights.low(*slope.shape)
        kernels.gelu(slope, layer.up_bias.value, g)
        s2, stats2, out2, y2 = self._junction(out1, layer.down.apply(g), layer.down_bias, two, k, 2)
        return out2, y2, Kept(attended, s1, stats1, y1, slope, g, s2, stats2)

    def _junction(
        self, r: np.ndarray, o: np.ndarray, shift: Vector, norm: Norm, k: int, site: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the sum, its statistics, the residual stream behind, and the next sublayer's input."""
        s, stats = np.empty_like(r), _float(len(r), 2)
        out = np.empty_like(r) if self.post else _NOTHING
        y = self.weights.low(*r.shape)
        kernels.junction(
            r, o, shift.value, self._places[k], self.sites[3 * k + 1 + site], self.cut,
            norm.weight.value, norm.bias.value, norm.eps, s, stats, out, y,
        )  # fmt: skip
        return s, stats, out if self.post else s, y

    def _junction_backward(
        self, d: np.ndarray, d_y: np.ndarray, s: np.ndarray, stats: np.ndarray, shift: Vector, norm: Norm,
        k: int, site: int,
    ) -> np.ndarray:  # fmt: skip
        """Turn d into the gradient of the residual stream before; return that of the sublayer's output."""
        d_o = self.weights.low(*d.shape)
        norm.junction_backward(
            self.post, d, d_y, self._places[k], self.sites[3 * k + 1 + site], self.cut,
            s, stats, d_o, shift.gradient,
        )  # fmt: skip
        return d_o

    def _last(self, k: int) -> bool:
        return k + 1 == len(self.weights.layers)

    def _site(self, k: int) -> Site:
        """Return where the attention of layer k stands."""
        layer = self.weights.layers[k]
        return Site(
            layer.projection, layer.projection_bias, self.chunk, self.heads, self._last(k), self._places[k],
            self.which if k == 0 else None, self._apart, self.sites[3 * k + 1], self.cut, self.stride,
        )  # fmt: skip

    def _layer_backward(
        self, k: int, kept: Kept, d: np.ndarray, d_y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of the residual stream and of the sublayer's input before layer k."""
        layer = self.weights.layers[k]
        one, two = self.weights.behind(k)
        d_m = self._junction_backward(d, d_y, kept.s2, kept.stats2, layer.down_bias, two, k, 2)
        d_g = layer.down.back(d_m, kept.g)
        kernels.gelu_backward(kept.slope, d_g, layer.up_bias.gradient)
        d_y = layer.up.back(d_g, kept.y1)
        d_o = self._junction_backward(d, d_y, kept.s1, kept.stats1, layer.output_bias, one, k, 1)
        d_y = kept.attended.backward(layer.output.back(d_o, kept.attended.mixed))
        if not self._last(k) or (k == 0 and self.which is not None and not self._apart):
            return d, d_y
        whole = np.zeros((len(self.chunk.ids), self.width), dtype=np.float32)
        whole[self.chunk.masked] = d
        return whole, d_y

    def _head_backward(self, d_logits: np.ndarray) -> np.ndarray:
        """Return the gradient of the encoder's output [M, D], given that of the logits."""
        w, head, bias = self.weights, self.head, self.weights.dense_bias
        d = w.tokens.back(d_logits, head.inputs)
        w.head_norm.observe(d, lambda: _gelu(head.z, bias.value), head.stats)
        kernels.transform_backward(
            head.z, bias.value, w.head_norm.weight.value, head.stats, d,
            bias.gradient, w.head_norm.weight.gradient, w.head_norm.bias.gradient,
        )  # fmt: skip
        return w.dense.back(d, head.hidden)


def _gelu(z: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return gelu(z + shift), float32, of z [M, D] in float32."""
    slope, found = z.copy(), np.empty_like(z)
    kernels.gelu(slope, shift, found)
    return found


def _float(rows: int, columns: int) -> np.ndarray:
    return np.empty((rows, columns), dtype=np.float32)


def dropped(model: Encoder, seed: int | None) -> tuple[int, int, tuple[np.uint64, ...]]:
    """Return the levels of dropout, the length of a query's stream, and the keys of the streams of its sites.

    These are the embedding's, and three a layer.
    """
    cut = cut_of(model.dropout.p) if model.training and seed is not None else 0
    # Without dropout they are not used, and those of one seed are at hand.
    sites = streams(seed if seed and cut else 0, 1 + 3 * len(model.layers))
    return cut, (model.max_length + 3) // 4, sites


class EncoderStep(Step[EncoderWeights]):
    """A step whose chunks are one call of compiled code each, where there is such a call."""

    def __init__(self, model: Encoder, words: Batch, seed: int, dtype: torch.dtype) -> None:
        def begin(weights: EncoderWeights, chunk: Chunk) -> Pass:
            return Pass(model, weights, chunk, seed)

        super().__init__(model, words, CHUNK, dtype, EncoderWeights, begin)
        self._encoder, self._seed = model, seed

    def _loss(self, weights: EncoderWeights, chunk: Chunk) -> float:
        whole = weights.whole_for(chunk)
        if whole is None:
            return super()._loss(weights, chunk)
        return whole.learn(chunk, np.float32(1 / self.words.count), *dropped(self._encoder, self._seed))


def step(model: Encoder, words: Batch, *, seed: int, dtype: torch.dtype) -> EncoderStep:
    """Return the step with `MaskedLM.masked_loss` as its loss; dropout is keyed by (seed, sentences' rows).

    Its methods raise `DataError` for words, positions or targets that the model does not have.
    """
    return EncoderStep(model, words, seed, dtype)


def hidden_at(model: Encoder, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
    """Return the hidden states of `MaskedLM.hidden_at`; dropout is keyed as in `masked_loss`.

    Raises `DataError` for words and positions that the model does not have.
    """

    def begin(weights: EncoderWeights, chunk: Chunk) -> Pass:
        return Pass(model, weights, chunk, seed)

    def read(weights: EncoderWeights, chunk: Chunk) -> np.ndarray | None:
        whole = weights.whole_for(chunk)
        return None if whole is None else whole.encode(chunk, *dropped(model, seed))

    return states(model, words, CHUNK, lambda: EncoderWeights(model, dtype), begin, read)
