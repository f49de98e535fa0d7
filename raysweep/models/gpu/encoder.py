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

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from raysweep.models.gpu import kernels
from raysweep.models.packed import Rows

#: Programs that a sum over words is shared by; the order of its terms depends on them.
PROGRAMS = 264
#: Rows of both embeddings together up to which their gradient is a product with a matrix of zeros and ones.
_FEW = 1024
#: Elements of a tile, which a program has in registers, and those of a pass over a plain array.
_TILE = 2048
_ELEMENTS = 1024
_LEVELS = 1 << 32


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
    states: Tensor = seen
    return states


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

    Its gradients are there before the next one's, so that workers can add them up meanwhile.
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


@dataclass(frozen=True)
class _Site:
    """A place where dropout acts: its number, and the draw from which on it keeps an element."""

    number: int
    cut: int = 0
    scale: float = 1.0

    @classmethod
    def of(cls, number: int, p: float) -> _Site:
        # At least one level keeps, so the scale is finite.
        cut = min(round(p * _LEVELS), _LEVELS - 1)
        # As int32, so that the type of the kernels' argument does not depend on the value.
        return cls(number, cut if cut < _LEVELS // 2 else cut - _LEVELS, _LEVELS / (_LEVELS - cut))

    @property
    def drops(self) -> bool:
        return self.cut != 0


@cache
def _columns(width: int) -> int:
    """Return the power of two that holds `width` columns; products of tiles need sixteen."""
    return max(16, 1 << (width - 1).bit_length())


@dataclass(frozen=True)
class _Tile:
    """Rows of `width` columns that a program works on at once; numbers of a tile are powers of two."""

    width: int
    rows: int
    columns: int
    warps: int

    @classmethod
    @cache
    def of(cls, width: int) -> _Tile:
        columns = _columns(width)
        return cls(width, max(1, _TILE // columns), columns, min(16, max(8, columns // 256)))

    def grid(self, rows: int, most: int | None = None) -> tuple[int]:
        """Return the number of programs for `rows` rows, `most` at most."""
        needed = -(-rows // self.rows)
        return (needed if most is None else min(needed, most),)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in float32."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


@dataclass(frozen=True)
class _Linear:
    """A weight [O, I] and a bias [O] in low precision, and the parameters that they are made of."""

    weight: Tensor
    bias: Tensor
    modules: tuple[nn.Linear, ...]

    def apply(self, x: Tensor) -> Tensor:
        """Return x [N, I] times the weight, transposed, plus the bias."""
        return F.linear(x, self.weight, self.bias)

    def back(self, d: Tensor, x: Tensor, bias: Tensor, gradients: dict[int, Tensor]) -> Tensor:
        """Store the parameters' gradients; return that of x, given d [N, O] and its sums `bias` [O]."""
        weight = _product(d.T, x)
        size = len(weight) // len(self.modules)
        for module, of_weight, of_bias in zip(
            self.modules, weight.split(size), bias.split(size), strict=True
        ):
            gradients[id(module.weight)], gradients[id(module.bias)] = of_weight, of_bias
        return d @ self.weight


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
        self.linears = _low_precision(encoder.layers, dtype)
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
        _, seen = self._sum(x, None, None, self.first, None)
        return x, seen

    def begin_back(self, x: Tensor, later: Tensor, d_seen: Tensor) -> dict[int, Tensor]:
        """Return the gradient of each parameter of `begin` by its id, given those of its results."""
        gradients: dict[int, Tensor] = {}
        if self.first is None:
            later = later + d_seen
        else:
            later, _, _ = self._sum_back(x, self.first, None, d_seen, later, gradients)
        self._embed_back(later, gradients)
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
        active = _gelu(risen)
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
        d_risen, of_bias = _gelu_back(kept.risen, d_active)
        d_seen = up.back(d_risen, kept.inner, of_bias, found)
        later, d_y, of_bias = self._sum_back(
            kept.middle, inner_norm, self._site(number, 1), d_seen, later, found
        )
        d_mixed = output.back(d_y, kept.mixed, of_bias, found)
        if number == len(self.linears) - 1:
            d_mixed, later = self._spread(d_mixed, later)
        d_packed, of_bias = self._attend_back(kept.packed, d_mixed, self._site(number, 0))
        d_seen = projection.back(d_packed, kept.seen, of_bias, found)
        return later, d_seen, found

    def _site(self, layer: int, place: int) -> _Site:
        """Return a site of a layer: attention, the attention's output or that of the feed-forward block."""
        return _Site.of(1 + 3 * layer + place, self.p)

    def _norms(self, number: int) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        """Return the norms after a layer's attention and after its feed-forward block."""
        layers = self.encoder.layers
        layer = layers[number]
        if self.post:
            return layer.attention_norm, layer.mlp_norm
        last = number == len(layers) - 1
        return layer.mlp_norm, self.encoder.final_norm if last else layers[number + 1].attention_norm

    def _spread(self, *found: Tensor) -> list[Tensor]:
        """Return rows [M, D] each at their places among all, zero elsewhere."""
        source = _inverse(self.rows.masked, len(self.ids))
        return [torch.cat([x, x.new_zeros(1, x.shape[1])]).index_select(0, source) for x in found]

    def _embed(self) -> Tensor:
        encoder, site = self.encoder, _Site.of(0, self.p)
        norm, tile = encoder.embedding_norm, _Tile.of(encoder.width)
        words, places = encoder.token_embedding.weight, encoder.position_embedding.weight
        out = torch.empty(len(self.ids), encoder.width, device=words.device)
        kernels.embed[tile.grid(len(out))](
            self.ids, self.at, words, places, norm.weight, norm.bias, out,
            len(out), encoder.width, norm.eps, self.key, site.number, site.cut, site.scale,
            M=tile.rows, C=tile.columns, DROP=site.drops, num_warps=tile.warps,
        )  # fmt: skip
        return out

    def _embed_back(self, slope: Tensor, gradients: dict[int, Tensor]) -> None:
        encoder, site = self.encoder, _Site.of(0, self.p)
        norm, tile = encoder.embedding_norm, _Tile.of(encoder.width)
        words, places = encoder.token_embedding.weight, encoder.position_embedding.weight
        out = slope.new_empty(len(slope), 2, encoder.width, dtype=self.dtype)
        grid = tile.grid(len(slope), PROGRAMS)
        sums = slope.new_empty(*grid, 2, encoder.width)
        kernels.embed_back[grid](
            self.ids, self.at, words, places, norm.weight, slope, out, sums,
            len(out), encoder.width, norm.eps, self.key, site.number, site.cut, site.scale,
            M=tile.rows, C=tile.columns, DROP=site.drops, num_warps=tile.warps,
        )  # fmt: skip
        gradients[id(norm.weight)], gradients[id(norm.bias)] = sums.sum(dim=0)
        of_words, of_places = _tables_back(out, (self.ids, len(words)), (self.at, len(places)))
        gradients[id(words)], gradients[id(places)] = of_words, of_places

    def _sum(
        self,
        base: Tensor,
        before: nn.LayerNorm | None,
        y: Tensor | None,
        norm: nn.LayerNorm,
        site: _Site | None,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return b + dropout(y), or b without y, and its norm in `dtype` (default: that of products).

        b is `base`, or its norm by `before`.
        """
        tile, site = _Tile.of(self.encoder.width), site or _Site(0)
        stream = base if y is None else torch.empty_like(base)
        seen = torch.empty_like(base, dtype=dtype or self.dtype)
        first = before or norm
        kernels.residual[tile.grid(len(base))](
            base, first.weight, first.bias, y, norm.weight, norm.bias, stream, seen,
            len(base), tile.width, first.eps, norm.eps, self.key, site.number, site.cut, site.scale,
            M=tile.rows, C=tile.columns, NORMED=before is not None, ADD=y is not None,
            DROP=site.drops, num_warps=tile.warps,
        )  # fmt: skip
        return stream, seen

    def _sum_back(
        self,
        stream: Tensor,
        norm: nn.LayerNorm,
        site: _Site | None,
        d_seen: Tensor,
        later: Tensor | None,
        gradients: dict[int, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of b and y, and the sums of the latter [D]; without a site there is no y."""
        tile, adds, site = _Tile.of(self.encoder.width), site is not None, site or _Site(0)
        d_stream, grid = torch.empty_like(stream), tile.grid(len(stream), PROGRAMS)
        d_y = torch.empty_like(stream, dtype=self.dtype) if adds else d_seen
        sums = stream.new_empty(*grid, 3, tile.width)
        kernels.residual_back[grid](
            stream, norm.weight, d_seen, later, d_stream, d_y, sums,
            len(stream), tile.width, norm.eps, self.key, site.number, site.cut, site.scale,
            M=tile.rows, C=tile.columns, NORMED=self.post, LATER=later is not None, ADD=adds,
            DROP=site.drops, num_warps=tile.warps,
        )  # fmt: skip
        gradients[id(norm.weight)], gradients[id(norm.bias)], of_y = sums.sum(dim=0)
        return d_stream, d_y, of_y

    def _attend(self, packed: Tensor, site: _Site) -> Tensor:
        out = packed.new_empty(len(packed), self.encoder.width)
        kernels.attention[(len(self.rows.ids), self.heads)](
            packed, self.rows.sentence, out, self.heads, self.size, self.size**-0.5,
            self.key, site.number, site.cut, site.scale,
            W=self.rows.width, C=_columns(self.size), DROP=site.drops, num_warps=self._warps,
        )  # fmt: skip
        return out

    def _attend_back(self, packed: Tensor, slope: Tensor, site: _Site) -> tuple[Tensor, Tensor]:
        """Return the gradient of queries, keys and values, and its sums [3 D]."""
        out = torch.empty_like(packed)
        sums = packed.new_empty(len(self.rows.ids), packed.shape[1], dtype=torch.float32)
        kernels.attention_back[(len(self.rows.ids), self.heads)](
            packed, self.rows.sentence, slope, out, sums, self.heads, self.size, self.size**-0.5,
            self.key, site.number, site.cut, site.scale,
            W=self.rows.width, C=_columns(self.size), DROP=site.drops, num_warps=self._warps,
        )  # fmt: skip
        return out, sums.sum(dim=0)

    @property
    def _warps(self) -> int:
        return 8 if self.rows.width * _columns(self.size) > 4096 else 4


def _low_precision(layers: Any, dtype: torch.dtype) -> list[tuple[_Linear, ...]]:
    """Return the weights of each layer in `dtype`: queries with keys and values, output, up and down."""
    wide: list[Tensor] = []
    low: list[Tensor] = []
    found = []
    for layer in layers:
        made = []
        for modules in ((layer.query, layer.key, layer.value), (layer.output,), (layer.up,), (layer.down,)):
            given = modules[0].weight
            out, into = given.shape
            weight = given.new_empty(len(modules) * out, into, dtype=dtype)
            bias = given.new_empty(len(modules) * out, dtype=dtype)
            wide += [m.weight.detach() for m in modules] + [m.bias.detach() for m in modules]
            low += [*weight.split(out), *bias.split(out)]
            made.append(_Linear(weight, bias, modules))
        found.append(tuple(made))
    # One pass for all of them.
    torch._foreach_copy_(low, wide)
    return found


def _inverse(index: Tensor, size: int) -> Tensor:
    """Return where in `index` [M] each of 0 .. size-1 stands, M where it does not [size]."""
    found = torch.full((size,), len(index), device=index.device)
    return found.scatter_(0, index, torch.arange(len(index), device=index.device))


def _tables_back(slopes: Tensor, *tables: tuple[Tensor, int]) -> list[Tensor]:
    """Return the gradient of each table of embeddings, (index [N], number of rows), from `slopes` [N, 2, D].

    These are the gradient of each sum of embeddings and what it was rounded by.
    """
    sizes = [rows for _, rows in tables]
    if sum(sizes) > _FEW:
        # A product would take too long, and torch's kernel adds in a fixed order here
        # (`raysweep.models.reproducible`).
        whole = slopes.float().sum(dim=1)
        return [
            torch.ops.aten.embedding_dense_backward(whole, index, rows, -1, False) for index, rows in tables
        ]
    first = [0, *accumulate(sizes)]
    index = torch.stack([one + start for (one, _), start in zip(tables, first, strict=False)], dim=1)
    chosen = slopes.new_zeros(len(slopes), sum(sizes)).scatter_(1, index, 1.0)
    found = _product(chosen.T, slopes.flatten(1)).unflatten(1, (2, -1)).sum(dim=1)
    return list(found.split(sizes))


def _gelu(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.gelu[(-(-x.numel() // _ELEMENTS),)](x, out, x.numel(), B=_ELEMENTS)
    return out


def _gelu_back(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x [N, F], given that of gelu(x), and its sums over rows [F]."""
    width = x.shape[1]
    tile = _Tile.of(min(width, 128))
    across = -(-width // tile.columns)
    [down] = tile.grid(len(x), max(1, 2 * PROGRAMS // across))
    out, sums = torch.empty_like(x), x.new_empty(down, width, dtype=torch.float32)
    kernels.gelu_back[(down, across)](
        x, slope, out, sums, len(x), width, M=tile.rows, C=tile.columns, num_warps=tile.warps
    )
    return out, sums.sum(dim=0)
