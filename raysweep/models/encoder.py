"""A bidirectional Transformer encoder with a tied masked-LM head.

    x = LN(E[ids] + P[0..T-1])
    pre-norm layer:   x += O·Attention(LN x);   x += W2·gelu(W1·LN x);   after the last layer x = LN x
    post-norm layer:  x = LN(x + O·Attention(x));   x = LN(x + W2·gelu(W1·x))
    logits = E·LN(gelu(W·x + b)) + c

with learned positions P, the exact (erf) GELU, heads of width D / heads, and the decoder's weight being the
token embedding E.  Post-norm is BERT (Devlin et al., 2019) without segment embeddings; pre-norm is its
rearrangement (Xiong et al., "On layer normalization in the transformer architecture", ICML 2020) as in
RobertaPreLayerNorm.  Dropout acts on the embedding, on the attention weights and on each sublayer's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from raysweep.errors import DataError
from raysweep.languages.base import Language
from raysweep.models import gpu, packed
from raysweep.models.base import DrawnConfig, MaskedLM, mean_loss, total_vocabulary, widened
from raysweep.models.batch import Batch, dropout_key
from raysweep.models.cls import WithCLS, without_default_cls
from raysweep.models.dropout import Dropout
from raysweep.models.shapes import Shape

INITIAL_STD = 0.02  # of all matrices and embeddings, as in BERT
# Kernels that can add in a fixed order; the second serves where the first cannot.
_ATTENTIONS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class EncoderConfig(DrawnConfig):
    """Sizes and form of an encoder.

    `shape` is "width/heads/layers/intermediate", or a name of `raysweep.models.shapes` that stands for these
    numbers.  With `checkpointing` the backward pass computes the layers' activations again instead of keeping
    them (Chen et al., "Training deep nets with sublinear memory cost", 2016): less memory, about a third more
    time, and bitwise the same gradients as the modules without it.  On a GPU in bfloat16, encoders without it
    are trained by kernels instead (`raysweep.models.gpu`), with other dropout masks.  With `cls` the
    sentence-level token stands in front of every sentence (`raysweep.models.cls`).
    """

    kind: Literal["encoder"] = "encoder"
    #: width/heads/layers/intermediate, or a name that stands for these numbers (`raysweep.models.shapes`).
    shape: str
    #: LayerNorm before each sublayer, or after it as in BERT.
    norm: Literal["pre", "post"] = "pre"
    #: Dropout of the embedding, of the attention weights and of each sublayer's output.
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    #: Added to the variance in LayerNorm.
    layer_norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    checkpointing: bool = False
    #: Put the sentence-level token in front of every sentence (`raysweep.models.cls`).
    cls: bool = False

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(shape="8/2/2/12")

    @field_validator("shape")
    @classmethod
    def _shape_is_sound(cls, text: str) -> str:
        return str(Shape.parse(text))

    @property
    def sizes(self) -> Shape:
        """The shape as numbers."""
        return Shape.parse(self.shape)

    @property
    def label(self) -> str:
        """The shape, then what differs from the defaults.

        >>> EncoderConfig(shape="64/1/2/256").label
        '64/1/2/256'
        >>> EncoderConfig(shape="64/1/2/256", norm="post", dropout=0.0).label
        '64/1/2/256-post-dropout0'
        """
        parts = [self.shape]
        fields = type(self).model_fields
        if self.norm != fields["norm"].default:
            parts.append(self.norm)
        if self.dropout != fields["dropout"].default:
            parts.append(f"dropout{self.dropout:g}")
        if self.layer_norm_eps != fields["layer_norm_eps"].default:
            parts.append(f"eps{self.layer_norm_eps:g}")
        if self.vocabulary != fields["vocabulary"].default:
            parts.append(self.vocabulary)
        if self.cls:
            parts.append("cls")
        return "-".join(parts)

    def content(self) -> dict[str, Any]:
        data = super().content()
        del data["checkpointing"]  # changes no result
        return without_default_cls(data)

    def module(self, language: Language) -> MaskedLM:
        made = Encoder(
            self.sizes,
            vocabulary_size=language.vocabulary_size,
            pad_id=language.pad_id,
            max_length=language.max_length + self.cls,
            norm=self.norm,
            dropout=self.dropout,
            layer_norm_eps=self.layer_norm_eps,
            total_vocabulary=total_vocabulary(language.vocabulary_size, self.vocabulary),
            checkpointing=self.checkpointing,
        )
        return WithCLS(made) if self.cls else made


class EncoderLayer(nn.Module):
    """One attention and one feed-forward sublayer."""

    def __init__(self, shape: Shape, *, pre_norm: bool, dropout: float, eps: float) -> None:
        super().__init__()
        width = shape.width
        self.heads, self.pre_norm = shape.heads, pre_norm
        self.scale = 1.0 / math.sqrt(width // shape.heads)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=eps)
        self.up = nn.Linear(width, shape.intermediate)
        self.down = nn.Linear(shape.intermediate, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, padding: Tensor | None, positions: Tensor | None) -> Tensor:
        """Map x [B, T, D] to [B, T, D], or to [B, 1, D] at `positions` [B] only.

        `padding` [B, T] marks the positions that no position attends to; None without padding.
        """
        seen = self.attention_norm(x) if self.pre_norm else x
        asking = seen
        if positions is not None:
            # Keys and values are needed everywhere, everything else at one position a row.
            index = positions + torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)
            x = x.flatten(0, 1).index_select(0, index)[:, None]
            asking = seen.flatten(0, 1).index_select(0, index)[:, None] if self.pre_norm else x
        return self._sublayers(x, self._attend(asking, seen, padding))

    def packed(self, x: Tensor, visible: Tensor, places: Tensor | None) -> Tensor:
        """Map packed sentences x [R, W, D] to [R, W, D], or to [M, D] at `places` [M] only.

        `visible` [R, 1, W, W] says which place (last) each place may attend to; a place is row * W + column.
        """
        seen = self.attention_norm(x) if self.pre_norm else x
        query, key, value = (
            part(seen).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        with sdpa_kernel(_ATTENTIONS):
            mixed = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=visible,
                dropout_p=self.dropout.p if self.dropout.training else 0.0,
                scale=self.scale,
            )
        mixed = mixed.transpose(1, 2).flatten(-2)
        if places is not None:
            x, mixed = (t.flatten(0, 1).index_select(0, places) for t in (x, mixed))
        return self._sublayers(x, mixed)

    def _sublayers(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output; x [..., D] is its input, `mixed` [..., D] its attention's."""
        x = x + self.dropout(self.output(mixed))
        if not self.pre_norm:
            x = self.attention_norm(x)
        x = x + self.dropout(self.down(F.gelu(self.up(self.mlp_norm(x) if self.pre_norm else x))))
        return x if self.pre_norm else self.mlp_norm(x)

    def _attend(self, asking: Tensor, seen: Tensor, padding: Tensor | None) -> Tensor:
        """Return the attention's mixture of values [B, S, D]; `asking` [B, S, D], `seen` [B, T, D]."""
        query, key, value = self.query(asking), self.key(seen), self.value(seen)
        if self.heads > 1:
            query, key, value = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (query, key, value)
            )
        # At the lengths of synthetic languages a plain product and softmax is faster than the fused kernels.
        scores = (query * self.scale) @ key.transpose(-1, -2)
        if padding is not None:
            hidden = padding[:, None, :] if self.heads == 1 else padding[:, None, None, :]
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        mixed = self.dropout(scores.softmax(dim=-1)) @ value
        heads: Tensor = mixed.transpose(1, 2).flatten(-2) if self.heads > 1 else mixed
        return heads


class Encoder(MaskedLM):
    """The encoder; see the module's docstring for its equations.

    Every parameter belongs to a plain `nn.Linear`, `nn.LayerNorm` or `nn.Embedding` that is called as a
    module, so hooks see the whole computation; `masked_loss` and `hidden_at` call none of them where compiled
    passes do the work.  A subclass trains through its own `forward` and `logits_at`, unless it names
    a `compiled` loss of its own or overrides `packs`.

    Attributes beside those of `MaskedLM`: `shape`, `norm`, and `checkpointing`, which may be set at any time.
    """

    wide = (32, 64)
    compiled = "raysweep.models.fused.encoder"

    def __init__(
        self,
        shape: Shape,
        *,
        vocabulary_size: int,
        pad_id: int,
        max_length: int,
        norm: Literal["pre", "post"],
        dropout: float,
        layer_norm_eps: float,
        total_vocabulary: int,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.norm, self.checkpointing = shape, norm, checkpointing
        self.width, self.vocabulary_size, self.pad_id = shape.width, vocabulary_size, pad_id
        self.total_vocabulary, self.max_length = total_vocabulary, max_length
        pre_norm = norm == "pre"
        self.token_embedding = nn.Embedding(self.total_vocabulary, shape.width)
        self.position_embedding = nn.Embedding(max_length, shape.width)
        self.embedding_norm = nn.LayerNorm(shape.width, eps=layer_norm_eps)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(shape, pre_norm=pre_norm, dropout=dropout, eps=layer_norm_eps)
            for _ in range(shape.layers)
        )
        self.final_norm = nn.LayerNorm(shape.width, eps=layer_norm_eps) if pre_norm else None
        self.head_dense = nn.Linear(shape.width, shape.width)
        self.head_norm = nn.LayerNorm(shape.width, eps=layer_norm_eps)
        self.decoder = nn.Linear(shape.width, self.total_vocabulary)
        self.tie()

    def blocks(self) -> dict[nn.Module, tuple[str, ...]]:
        return dict.fromkeys(self.layers, ("packed",))

    def tie(self) -> None:
        self.decoder.weight = self.token_embedding.weight

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                if module is not self.decoder:
                    module.weight.normal_(std=INITIAL_STD, generator=generator)
                if isinstance(module, nn.Linear):
                    module.bias.zero_()

    def head_parameters(self) -> list[nn.Parameter]:
        return [*self.head_dense.parameters(), *self.head_norm.parameters(), self.decoder.bias]

    @property
    def packs(self) -> bool:
        """Whether `masked_loss` packs sentences into rows (`raysweep.models.packed`)."""
        return type(self) is Encoder and self.token_embedding.weight.is_cuda

    def masked_loss(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        if self.packs:
            return self.packed_loss(words, seed=seed, dtype=dtype)
        return super().masked_loss(words, seed=seed, dtype=dtype)

    def packed_loss(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        """Return the loss of `masked_loss`, computed on packed rows.

        Raises `DataError` for sentences longer than the model has positions.
        """
        rows = self._rows(words)
        if self._compiled_on_gpu(dtype, rows.width):
            count = torch.full((), float(words.count), dtype=torch.float32, device=words.ids.device)
            return self.rows_loss(rows, dropout_key(words, seed), count)
        with torch.autocast(words.ids.device.type, dtype, enabled=dtype != torch.float32):
            logits = self.head(self.encode_rows(rows))
        return mean_loss(logits, words.targets, words.count)

    def rows(self, words: Batch, *, dtype: torch.dtype) -> packed.Rows | None:
        serves = self.packs and words.single
        if not serves or not self._compiled_on_gpu(dtype, packed.row_width(self.max_length)):
            return None
        return self._rows(words)

    def rows_loss(self, rows: packed.Rows, key: Tensor, count: Tensor) -> Tensor:
        # Imported here because a processor lacks what it needs.
        from raysweep.models.gpu.encoder import states
        from raysweep.models.gpu.head import loss

        return loss(self, states(self, rows, key), rows.targets, count)

    def hidden_at(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        if not self.packs:
            return super().hidden_at(words, seed=seed, dtype=dtype)
        rows = self._rows(words)
        if self._compiled_on_gpu(dtype, rows.width):
            from raysweep.models.gpu.encoder import states

            return states(self, rows, dropout_key(words, seed))
        with torch.autocast(words.ids.device.type, dtype, enabled=dtype != torch.float32):
            return widened(self.encode_rows(rows))

    def _compiled_on_gpu(self, dtype: torch.dtype, width: int) -> bool:
        """Whether `raysweep.models.gpu` computes states in `dtype` on rows of `width` places."""
        plain = not (self.sharded or self.checkpointing)
        small = width <= gpu.WIDEST and width * self.shape.width // self.shape.heads <= gpu.LARGEST
        return plain and small and dtype == torch.bfloat16 and gpu.available()

    def _rows(self, words: Batch) -> packed.Rows:
        """Return a batch in rows; raise `DataError` for longer sentences than the model has positions."""
        lengths = words.lengths.numpy()
        self.check_length(int(lengths.max()))
        return packed.lay_out(words, packed.pack(lengths, packed.row_width(self.max_length)), self.pad_id)

    def encode(self, ids: Tensor) -> Tensor:
        return self._encode(ids, None)

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.decoder(self.head_norm(F.gelu(self.head_dense(hidden))))
        return logits

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, total_vocabulary] at one position a row.

        `ids` [B, T] already holds the mask token at `positions` [B].  The last layer computes queries, and
        everything after its attention, at these positions alone: its modules see [B, 1, D].
        """
        return self.head(self._encode(ids, positions)[:, 0])

    def check_length(self, positions: int) -> None:
        """Raise `DataError` for sentences of more positions than the model has."""
        if positions > self.max_length:
            raise DataError(
                f"sentences of {positions} positions, but the model has {self.max_length}; "
                "build it for a language with this max_length"
            )

    def encode_rows(self, rows: packed.Rows) -> Tensor:
        """Return final hidden states [M, D] of the masked words of packed sentences."""
        return self._through(
            self._embed(rows.ids, rows.at),
            lambda layer, x, last: layer.packed(x, rows.visible, rows.masked if last else None),
        )

    def _encode(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        """Return final hidden states [B, T, D], or [B, 1, D] at `positions` [B]."""
        self.check_length(ids.shape[1])
        padding = self._padding(ids)
        # One position id a token, not one a column: a hook on the embedding then sees every sentence's own
        # gradient, at about 1 % of a training step.
        at = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self._through(
            self._embed(ids, at), lambda layer, x, last: layer(x, padding, positions if last else None)
        )

    def _embed(self, ids: Tensor, at: Tensor) -> Tensor:
        """Return the input of the first layer for words `ids` at positions `at`."""
        x: Tensor = self.dropout(self.embedding_norm(self.token_embedding(ids) + self.position_embedding(at)))
        return x

    def _through(self, x: Tensor, call: Callable[[EncoderLayer, Tensor, bool], Tensor]) -> Tensor:
        """Return the output of all layers; `call` takes a layer, its input, and whether it is the last."""
        for i, module in enumerate(self.layers, start=1):
            layer, last = cast(EncoderLayer, module), i == len(self.layers)
            if self.checkpointing and self.training and torch.is_grad_enabled():
                # Recomputation restores the generator's state, so dropout masks are the same.
                x = checkpoint(call, layer, x, last, use_reentrant=False)
            else:
                x = call(layer, x, last)
        hidden: Tensor = x if self.final_norm is None else self.final_norm(x)
        return hidden

    def _padding(self, ids: Tensor) -> Tensor | None:
        """Return where `ids` [B, T] are padding; None if there is none."""
        padding = ids == self.pad_id
        # Reading a flag back would stall a GPU, so there the mask is always applied.
        return None if ids.device.type == "cpu" and not bool(padding.any()) else padding
