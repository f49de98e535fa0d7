"""A bidirectional LSTM with a tied masked-LM head.

    x = E[ids]
    layer:   x = [L(x); R(x)]      L reads from left to right, R from right to left, D / 2 units each
    logits = E·x + c

with E the token embedding, D wide, and L, R the LSTM of PyTorch (Hochreiter and Schmidhuber, "Long short-term
memory", 1997).  A masked word is predicted from both sides, so every layer reads both ways; a model of one
direction would not see the words after the mask.  Dropout follows the embedding and every layer, and is never
between time steps (Zaremba, Sutskever and Vinyals, "Recurrent neural network regularization", 2014).

Liu, Xie, Li and Ma (ICML 2023, appendix A.4) give hidden sizes 128, 256, 512, 768, 1024 and 4, 6, 8, 12, 16
layers for data of a hidden Markov model, and sizes "from 10M to 135M", among them 67M.  In pairs, with BERT's
vocabulary, these shapes have about this many parameters:

    128/4    4.3M      256/6   10.2M      512/8   28.3M      768/12   66.0M      1024/16   132.1M
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from raysweep.languages.base import Language
from raysweep.models.base import DrawnConfig, MaskedLM, total_vocabulary
from raysweep.models.cls import WithCLS, without_default_cls
from raysweep.models.dropout import Dropout
from raysweep.models.shapes import check_sizes, numbers

EMBEDDING_STD = 1.0  # as PyTorch's own; with BERT's 0.02 hardly anything reaches the upper layers


class LSTMShape(NamedTuple):
    """The two sizes of an LSTM: `hidden` D of both directions together, and `layers`."""

    hidden: int
    layers: int

    def __str__(self) -> str:
        return f"{self.hidden}/{self.layers}"

    @classmethod
    def parse(cls, text: str) -> LSTMShape:
        """Read "hidden/layers"; raises `ValueError` with the remedy.

        >>> LSTMShape.parse("128/4")
        LSTMShape(hidden=128, layers=4)
        """
        found = numbers(text, 2)
        if found is None:
            raise ValueError(f"'{text}' is not two positive numbers; write hidden/layers, e.g. 128/4")
        shape = cls(*found)
        check_sizes(text, shape.layers, shape.hidden)
        if shape.hidden % 2:
            raise ValueError(
                f"'{text}': the two directions share the hidden size, and {shape.hidden} is odd; "
                f"use {shape.hidden + 1}"
            )
        return shape


class LSTMConfig(DrawnConfig):
    """Sizes of a bidirectional LSTM; `shape` is "hidden/layers", and each direction has half of `hidden`.

    With `cls` the sentence-level token stands in front of every sentence (`raysweep.models.cls`).
    """

    kind: Literal["lstm"] = "lstm"
    #: hidden/layers; each direction has half of `hidden`.
    shape: str
    #: Dropout of the embedding and after each layer.
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    #: Put the sentence-level token in front of every sentence (`raysweep.models.cls`).
    cls: bool = False

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(shape="12/2")

    @field_validator("shape")
    @classmethod
    def _shape_is_sound(cls, text: str) -> str:
        return str(LSTMShape.parse(text))

    @property
    def sizes(self) -> LSTMShape:
        """The shape as numbers."""
        return LSTMShape.parse(self.shape)

    @property
    def label(self) -> str:
        """The shape, then what differs from the defaults.

        >>> LSTMConfig(shape="128/4", dropout=0.0).label
        'lstm-128/4-dropout0'
        """
        parts = ["lstm", self.shape]
        fields = type(self).model_fields
        if self.dropout != fields["dropout"].default:
            parts.append(f"dropout{self.dropout:g}")
        if self.vocabulary != fields["vocabulary"].default:
            parts.append(self.vocabulary)
        if self.cls:
            parts.append("cls")
        return "-".join(parts)

    def content(self) -> dict[str, Any]:
        return without_default_cls(super().content())

    def module(self, language: Language) -> MaskedLM:
        made = LSTM(
            self.sizes,
            vocabulary_size=language.vocabulary_size,
            pad_id=language.pad_id,
            max_length=language.max_length + self.cls,
            dropout=self.dropout,
            total_vocabulary=total_vocabulary(language.vocabulary_size, self.vocabulary),
        )
        return WithCLS(made) if self.cls else made


class LSTMLayer(nn.Module):
    """One layer that reads in both directions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left_to_right = nn.LSTM(width, width // 2, batch_first=True)
        self.right_to_left = nn.LSTM(width, width // 2, batch_first=True)

    def forward(self, x: Tensor, backwards: Tensor) -> Tensor:
        """Map x [B, T, D] to [B, T, D]; `backwards` [B, T] are the positions of each row in reading order.

        Padding follows a sentence in either order, so neither direction meets padding before a word, and rows
        of several lengths need no packing.
        """
        index = backwards[:, :, None]
        back, _ = self.right_to_left(x.gather(1, index.expand_as(x)))
        # Reversing a sentence twice restores it.
        back = back.gather(1, index.expand_as(back))
        return torch.cat([self.left_to_right(x)[0], back], dim=-1)


class LSTM(MaskedLM):
    """The bidirectional LSTM; see the module's docstring for its equations."""

    wide = (32, 32)
    compiled = "raysweep.models.fused.lstm"

    def __init__(
        self,
        shape: LSTMShape,
        *,
        vocabulary_size: int,
        pad_id: int,
        max_length: int,
        dropout: float,
        total_vocabulary: int,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.width, self.vocabulary_size, self.pad_id = shape.hidden, vocabulary_size, pad_id
        self.total_vocabulary, self.max_length = total_vocabulary, max_length
        self.token_embedding = nn.Embedding(self.total_vocabulary, shape.hidden)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(LSTMLayer(shape.hidden) for _ in range(shape.layers))
        self.decoder = nn.Linear(shape.hidden, self.total_vocabulary)
        self.tie()

    def blocks(self) -> dict[nn.Module, tuple[str, ...]]:
        return dict.fromkeys(self.layers, ())

    def tie(self) -> None:
        self.decoder.weight = self.token_embedding.weight

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        bound = 1 / math.sqrt(self.width // 2)
        self.token_embedding.weight.normal_(std=EMBEDDING_STD, generator=generator)
        self.decoder.bias.zero_()
        for parameter in self.layers.parameters():
            parameter.uniform_(-bound, bound, generator=generator)

    def head_parameters(self) -> list[nn.Parameter]:
        return [self.decoder.bias]

    def encode(self, ids: Tensor) -> Tensor:
        backwards = self._backwards(ids)
        x = self.dropout(self.token_embedding(ids))
        for layer in self.layers:
            x = self.dropout(layer(x, backwards))
        return x

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.decoder(hidden)
        return logits

    def _backwards(self, ids: Tensor) -> Tensor:
        """Return positions [B, T]: each sentence from its last word to its first, then padding."""
        at = torch.arange(ids.shape[1], device=ids.device)
        mirrored = (ids != self.pad_id).sum(dim=1, keepdim=True) - 1 - at
        return torch.where(mirrored >= 0, mirrored, at)
