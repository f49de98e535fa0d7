"""A model that reads the sentence-level token in front of every sentence.

    states of (x_1, ..., x_T)  =  states of words 1 .. T of the model inside on ([CLS], x_1, ..., x_T)

The token is no word of the language: it is never masked and never predicted, and exact conditionals,
positions and sentences are those of the language without it.  It has a learned embedding, a position, and a
state that the words attend to, and fine-tuning classifies with this state (Devlin, Chang, Lee and Toutanova,
"BERT", NAACL 2019).  Positions of words count from 1 inside.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.packed import Rows


def without_default_cls(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a model's configuration, without the field `cls` where that is False.

    So models that were trained before there was such a field keep their identity.
    """
    return {name: value for name, value in content.items() if name != "cls" or value}


class WithCLS(MaskedLM):
    """A masked language model around `inner`, which has one position more.

    It trains and evaluates on the paths of `inner`, so without padding where that has none.  Gradient norms
    of single inputs come from hooks.
    """

    def __init__(self, inner: MaskedLM) -> None:
        super().__init__()
        self.inner, self.cls_id = inner, inner.vocabulary_size + 2
        self.width, self.vocabulary_size, self.pad_id = inner.width, inner.vocabulary_size, inner.pad_id
        self.total_vocabulary, self.max_length = inner.total_vocabulary, inner.max_length - 1
        self.reads_cls = True

    @property
    def fused(self) -> bool:
        """Whether the model inside computes gradients along with the loss."""
        return self.inner.fused

    def with_token(self) -> MaskedLM:
        return self.inner

    def precision(self, device: torch.device) -> torch.dtype:
        return self.inner.precision(device)

    def initialise(self, generator: torch.Generator) -> None:
        self.inner.initialise(generator)

    def blocks(self) -> dict[nn.Module, tuple[str, ...]]:
        return self.inner.blocks()

    def tie(self) -> None:
        self.inner.tie()

    def head_parameters(self) -> list[nn.Parameter]:
        return self.inner.head_parameters()

    def encode(self, ids: Tensor) -> Tensor:
        return self.inner.encode(F.pad(ids, (1, 0), value=self.cls_id))[:, 1:]

    def head(self, hidden: Tensor) -> Tensor:
        return self.inner.head(hidden)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, total_vocabulary] at one position a row, as the model inside does."""
        logits: Tensor = self.inner(F.pad(ids, (1, 0), value=self.cls_id), positions + 1)
        return logits

    def masked_loss(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        return self.inner.masked_loss(words.after(self.cls_id), seed=seed, dtype=dtype)

    def compiled_step(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Any:
        return self.inner.compiled_step(words.after(self.cls_id), seed=seed, dtype=dtype)

    def rows(self, words: Batch, *, dtype: torch.dtype) -> Rows | None:
        return self.inner.rows(words.after(self.cls_id), dtype=dtype)

    def rows_loss(self, rows: Rows, key: Tensor, count: Tensor) -> Tensor:
        return self.inner.rows_loss(rows, key, count)

    def hidden_at(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        return self.inner.hidden_at(words.after(self.cls_id), seed=seed, dtype=dtype)
