"""The hidden states of an encoder with their gradient, on a GPU: few kernels, and no padding.

It computes what `raysweep.models.encoder.Encoder` does in training, on sentences packed into rows
(raysweep.models.packed).  With k counting the sublayers, y_k being the output of one, LN_k the norm after it
and b_0 the embedding,

    s_k = b_{k-1} + dropout(y_k),    seen_k = LN_k(s_k),    b_k = s_k (pre-norm) or LN_k(s_k) (post-norm)

and y_{k+1} = sublayer(seen_k).  One kernel makes s_k and seen_k, and one takes both apart in the backward
pass (raysweep.models.gpu.kernels).  Matrix products are torch's, in bfloat16 with float32 sums; the stream s,
norms, softmax and sums of gradients are float32.  In post-norm b_k is not stored but computed from s_k.  The
last layer's feed-forward block computes masked words alone.

Memory, with D the width and F the intermediate size: 20 D + 4 F bytes of activations a layer and place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from raysweep.models.gpu import kernels
from raysweep.models.gpu.parts import (
    PROGRAMS,
    Site,
    Tile,
    columns_of,
    gelu,
    gelu_back,
    low_precision,
    normed,
    normed_back,
    spread,
    tables_back,
    total,
)
from raysweep.models.packed import Rows


def states(encoder: Any, rows: Rows, key: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return the final hidden states [M, D] of masked words in float32, to differentiate once.

    `key`, an int64 scalar on the device, is that of dropout; factors of products are in `dtype`.
    """
    # Triton starts kernels on the current GPU; the backward pass runs on that of its tensors.
    with torch.cuda.device_of(key):
        work = _Pass(encoder, rows, key, dtype)
        stream, seen = _Embedding.apply(work, *work.first_parameters)
        for number in range(len(encoder.layers)):
            stream, seen = _Layer.apply(work, number, stream, seen, *work.parameters(number))
    found: Tensor = seen
    return found


class _Embedding(torch.autograd.Function):
    """The embedding, and what the first layer sees of it."""

    @staticmethod
    def forward(ctx: Any, work: _Pass, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        stream, seen = work.begin()
        ctx.work, ctx.parameters = work, parameters
        ctx.save_for_backward(stream)
        return stream, seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        [stream] = ctx.saved_tensors
        gradients = ctx.work.begin_back(stream, *given)
        return None, *(gradients[id(p)] for p in ctx.parameters)


class _Layer(torch.autograd.Function):
    """One layer, with its parameters and those of the norm after it.

    Autograd has the gradients of a layer before those of the layer below, so workers add them up meanwhile.
    """

    @staticmethod
    def forward(
        ctx: Any, work: _Pass, number: int, stream: Tensor, seen: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        kept, seen = work.layer(number, stream, seen)
        ctx.work, ctx.number, ctx.parameters = work, number, parameters
        # Autograd keeps them until the backward pass, without a cycle of references.
        ctx.save_for_backward(*kept)
        # The stream of the last layer goes nowhere.
        ctx.set_materialize_grads(False)
        return kept.ended, seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, later: Tensor | None, d_seen: Tensor) -> tuple[Tensor | None, ...]:
        kept = _Kept(*ctx.saved_tensors)
        later, d_seen, gradients = ctx.work.layer_back(ctx.number, kept, d_seen, later)
        return None, None, later, d_seen, *(gradients[id(p)] for p in ctx.parameters)


class _Kept(NamedTuple):
    """The tensors that the backward pass of a layer needs: input, those between its products, and streams."""

    seen: Tensor
    packed: Tensor
    mixed: Tensor
    middle: Tensor
    inner: Tensor
    risen: Tensor
    active: Tensor
    ended: Tensor


class _Pass:
    """The work of one batch, layer by layer, forwards and backwards.

    The gradient of a stream is that of b_k: in post-norm that of its norm.
    """

    def __init__(self, encoder: Any, rows: Rows, key: Tensor, dtype: torch.dtype) -> None:
        self.encoder, self.rows, self.key, self.dtype = encoder, rows, key, dtype
        self.post = encoder.norm == "post"
        self.p = encoder.dropout.p if encoder.training else 0.0
        self.heads, self.size = encoder.shape.heads, encoder.shape.width // encoder.shape.heads
        self.ids, self.at = rows.ids.flatten(), rows.at.flatten()
        groups = [
            group
            for layer in encoder.layers
            for group in ((layer.query, layer.key, layer.value), (layer.output,), (layer.up,), (layer.down,))
        ]
        made = low_precision(groups, dtype)
        #: Queries with keys and values, output, up and down of each layer.
        self.linears = [made[k : k + 4] for k in range(0, len(made), 4)]
        #: The norm before the first layer, where there is one.
        self.first = None if self.post else encoder.layers[0].attention_norm

    @property
    def first_parameters(self) -> list[Tensor]:
        """The parameters of `begin`."""
        encoder = self.encoder
        norms = [encoder.embedding_norm, *([] if self.first is None else [self.first])]
        tables = [encoder.token_embedding.weight, encoder.position_embedding.weight]
        return [*tables, *(p for norm in norms for p in norm.parameters())]

    def parameters(self, number: int) -> list[Tensor]:
        """Return the parameters of `layer`."""
        linears = (m for linear in self.linears[number] for m in linear.modules)
        return [p for module in (*linears, *self._norms(number)) for p in module.parameters()]

    def begin(self) -> tuple[Tensor, Tensor]:
        """Return b_0 and what the first layer sees [N, D]."""
        x = self._embed()
        if self.first is None:
            return x, x.to(self.dtype)
        return x, normed(x, self.first, self.dtype)

    def begin_back(self, x: Tensor, later: Tensor, d_seen: Tensor) -> dict[int, Tensor]:
        """Return the gradient of each parameter of `begin` by its id, given those of its results."""
        gradients: dict[int, Tensor] = {}
        more: Tensor | None = d_seen
        if self.first is not None:
            later = normed_back(x, self.first, d_seen, later, gradients)
            more = None
        self._embed_back(later, more, gradients)
        return gradients

    def layer(self, number: int, stream: Tensor, seen: Tensor) -> tuple[_Kept, Tensor]:
        """Return what the backward pass needs, and what the next layer sees; the last one's is float32."""
        projection, output, up, down = self.linears[number]
        inner_norm, outer_norm = self._norms(number)
        before = self._norms(number - 1)[1] if self.post and number else None
        last = number == len(self.linears) - 1
        packed = projection.apply(seen)
        mixed = self._attend(packed, self._site(number, 0))
        if last:
            # Everything behind the last attention is for masked words alone.
            mixed, stream = (x.index_select(0, self.rows.masked) for x in (mixed, stream))
        middle, inner = self._sum(stream, before, output.apply(mixed), inner_norm, self._site(number, 1))
        risen = up.apply(inner)
        active = gelu(risen)
        ended, outer = self._sum(
            middle, inner_norm if self.post else None, down.apply(active), outer_norm, self._site(number, 2),
            torch.float32 if last else self.dtype,
        )  # fmt: skip
        return _Kept(seen, packed, mixed, middle, inner, risen, active, ended), outer

    def layer_back(
        self, number: int, kept: _Kept, d_seen: Tensor, later: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Return the gradients of `layer`'s stream, of what it saw, and of each parameter by its id.

        Given are those of its results, None where there is none for the stream.
        """
        projection, output, up, down = self.linears[number]
        inner_norm, outer_norm = self._norms(number)
        found: dict[int, Tensor] = {}
        later, d_y, of_bias = self._sum_back(
            kept.ended, outer_norm, self._site(number, 2), d_seen.contiguous(), later, found
        )
        d_active = down.back(d_y, kept.active, of_bias, found)
        d_risen, of_bias = gelu_back(kept.risen, d_active)
        d_seen = up.back(d_risen, kept.inner, of_bias, found)
        later, d_y, of_bias = self._sum_back(
            kept.middle, inner_norm, self._site(number, 1), d_seen, later, found
        )
        d_mixed = output.back(d_y, kept.mixed, of_bias, found)
        if number == len(self.linears) - 1:
            d_mixed, later = (spread(x, self.rows.masked, len(self.ids)) for x in (d_mixed, later))
        d_packed, of_bias = self._attend_back(kept.packed, d_mixed, self._site(number, 0))
        d_seen = projection.back(d_packed, kept.seen, of_bias, found)
        return later, d_seen, found

    def _site(self, layer: int, place: int) -> Site:
        """Return a site of a layer: attention, the attention's output or that of the feed-forward block."""
        return Site.of(1 + 3 * layer + place, self.p)

    def _norms(self, number: int) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        """Return the norms after a layer's attention and after its feed-forward block."""
        layers = self.encoder.layers
        layer = layers[number]
        if self.post:
            return layer.attention_norm, layer.mlp_norm
        last = number == len(layers) - 1
        return layer.mlp_norm, self.encoder.final_norm if last else layers[number + 1].attention_norm

    def _embed(self) -> Tensor:
        encoder, site = self.encoder, Site.of(0, self.p)
        norm, tile = encoder.embedding_norm, Tile.of(encoder.width)
        words, places = encoder.token_embedding.weight, encoder.position_embedding.weight
        out = words.new_empty(len(self.ids), encoder.width, dtype=torch.float32)
        kernels.embed[tile.grid(len(out))](
            self.ids, self.at, words, places, norm.weight, norm.bias, out,
            len(out), encoder.width, norm.eps, self.key, site.number, site.cut, site.scale,
            M=tile.rows, C=tile.columns, DROP=site.drops, num_warps=tile.warps,
        )  # fmt: skip
        return out

    def _embed_back(self, slope: Tensor, more: Tensor | None, gradients: dict[int, Tensor]) -> None:
        """Store the gradients of embeddings, given that of their sum: `slope`, or it and `more`."""
        encoder, site = self.encoder, Site.of(0, self.p)
        norm, tile = encoder.embedding_norm, Tile.of(encoder.width)
        words, places = encoder.token_embedding.weight, encoder.position_embedding.weight
        out = slope.new_empty(len(slope), 2, encoder.width, dtype=self.dtype)
        grid = tile.grid(len(slope), PROGRAMS)
        sums = slope.new_empty(*grid, 2, encoder.width)
        kernels.embed_back[grid](
            self.ids, self.at, words, places, norm.weight, slope, more, out, sums,
            len(out), encoder.width, norm.eps, self.key, site.number, site.cut, site.scale,
            M=tile.rows, C=tile.columns, MORE=more is not None, DROP=site.drops, STAGES=tile.stages,
            num_warps=tile.warps,
        )  # fmt: skip
        gradients[id(norm.weight)], gradients[id(norm.bias)] = total(sums)
        of_words, of_places = tables_back(out, (self.ids, len(words)), (self.at, len(places)))
        gradients[id(words)], gradients[id(places)] = of_words, of_places

    def _sum(
        self,
        base: Tensor,
        before: nn.LayerNorm | None,
        y: Tensor,
        norm: nn.LayerNorm,
        site: Site,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return b + dropout(y), and its norm in `dtype` (default: that of products).

        b is `base`, or its norm by `before`.
        """
        tile, stream = Tile.of(self.encoder.width), torch.empty_like(base)
        seen = torch.empty_like(base, dtype=dtype or self.dtype)
        first = before or norm
        kernels.residual[tile.grid(len(base))](
            base, first.weight, first.bias, y, norm.weight, norm.bias, stream, seen,
            len(base), tile.width, first.eps, norm.eps, self.key, site.number, site.cut, site.scale,
            M=tile.rows, C=tile.columns, NORMED=before is not None, ADD=True,
            DROP=site.drops, num_warps=tile.warps,
        )  # fmt: skip
        return stream, seen

    def _sum_back(
        self,
        stream: Tensor,
        norm: nn.LayerNorm,
        site: Site,
        d_seen: Tensor,
        later: Tensor | None,
        gradients: dict[int, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of b and y, and the sums of the latter [D]."""
        tile = Tile.of(self.encoder.width)
        d_stream, grid = torch.empty_like(stream), tile.grid(len(stream), PROGRAMS)
        d_y = torch.empty_like(stream, dtype=self.dtype)
        sums = stream.new_empty(*grid, 3, tile.width)
        kernels.residual_back[grid](
            stream, norm.weight, d_seen, later, d_stream, d_y, sums,
            len(stream), tile.width, norm.eps, self.key, site.number, site.cut, site.scale,
            M=tile.rows, C=tile.columns, NORMED=self.post, LATER=later is not None, ADD=True,
            DROP=site.drops, STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        gradients[id(norm.weight)], gradients[id(norm.bias)], of_y = total(sums)
        return d_stream, d_y, of_y

    def _attend(self, packed: Tensor, site: Site) -> Tensor:
        out = packed.new_empty(len(packed), self.encoder.width)
        kernels.attention[(len(self.rows.ids), self.heads)](
            packed, self.rows.sentence, out, self.heads, self.size, self.size**-0.5,
            self.key, site.number, site.cut, site.scale,
            W=self.rows.width, C=columns_of(self.size), DROP=site.drops, num_warps=self._warps,
        )  # fmt: skip
        return out

    def _attend_back(self, packed: Tensor, slope: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        """Return the gradient of queries, keys and values, and its sums [3 D]."""
        out = torch.empty_like(packed)
        sums = packed.new_empty(len(self.rows.ids), packed.shape[1], dtype=torch.float32)
        kernels.attention_back[(len(self.rows.ids), self.heads)](
            packed, self.rows.sentence, slope, out, sums, self.heads, self.size, self.size**-0.5,
            self.key, site.number, site.cut, site.scale,
            W=self.rows.width, C=columns_of(self.size), DROP=site.drops, num_warps=self._warps,
        )  # fmt: skip
        return out, total(sums)

    @property
    def _warps(self) -> int:
        return 8 if self.rows.width * columns_of(self.size) > 4096 else 4
