"""A bag of words: every position sees its own word and the mean of all others."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM, ModelConfig, total_vocabulary


class BagConfig(ModelConfig):
    """A bag of words of width `width`."""

    kind: Literal["bag"] = "bag"
    width: int = Field(default=32, ge=1)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(width=12)

    @property
    def label(self) -> str:
        return f"bag-{self.width}"

    def module(self, language: Language) -> Bag:
        return Bag(language, self.width)


class Bag(MaskedLM):
    """An embedding, a mixture of each word with the mean of its sentence, and a decoder."""

    def __init__(self, language: Language, width: int) -> None:
        super().__init__()
        self.width, self.vocabulary_size = width, language.vocabulary_size
        self.total_vocabulary = total_vocabulary(language.vocabulary_size)
        self.pad_id, self.max_length = language.pad_id, language.max_length
        self.token_embedding = nn.Embedding(self.total_vocabulary, width)
        self.mix = nn.Linear(2 * width, width)
        self.decoder = nn.Linear(width, self.total_vocabulary)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        for parameter in self.parameters():
            parameter.normal_(std=0.3, generator=generator)

    def encode(self, ids: Tensor) -> Tensor:
        words = self.token_embedding(ids)
        real = (ids != self.pad_id)[:, :, None]
        mean = (words * real).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True)
        hidden: Tensor = self.mix(torch.cat([words, mean.expand_as(words)], dim=-1)).relu()
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.decoder(hidden)
        return logits
