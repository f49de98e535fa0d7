"""What every model offers: hidden states, and logits at masked positions.

A masked language model maps sentences ids [B, T] to hidden states [B, T, D] (`encode`) and hidden states to
logits over `total_vocabulary` (`head`).  The first V logits are the language's words; then come padding, the
mask and the sentence-level token, and unused rows up to a multiple of 8.  The model's conditional is

    log f(x_t = w | visible words) = log_softmax(logits)[w],    w < V,

normalised over the total vocabulary, as training does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep import seeding
from raysweep.languages.base import Language
from raysweep.models.precision import multiplies_bfloat16
from raysweep.registry import Config

SPECIAL_TOKENS = 3  # padding, mask, sentence-level token: see raysweep.languages.base
BERT_VOCABULARY = 30_522  # word pieces of BERT (uncased), which published sizes of models count in

#: The rows of an embedding: for the language's `own` words, or as many as BERT has (`faithful`).
Vocabulary = Literal["own", "faithful"]


def total_vocabulary(vocabulary_size: int, vocabulary: Vocabulary = "own") -> int:
    """Return the rows of an embedding: words and special tokens, rounded up to a multiple of 8.

    Where the vocabulary is `faithful` they are BERT's 30,522, rounded up in the same way (as do Izsak,
    Berchansky and Levy, "How to train BERT with an academic budget", EMNLP 2021); the rows behind the
    language's own stay unused, but the loss is over all of them.

    >>> total_vocabulary(16), total_vocabulary(200), total_vocabulary(200, "faithful")
    (24, 208, 30528)
    """
    rows = BERT_VOCABULARY if vocabulary == "faithful" else vocabulary_size + SPECIAL_TOKENS
    return -(-rows // 8) * 8


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters; tied ones count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class MaskedWords(Protocol):
    """Sentences with masked words, to be predicted all of them; see `raysweep.training.data.Batch`."""

    @property
    def ids(self) -> Tensor:
        """Sentences [b, T], masked words hidden."""

    @property
    def index(self) -> Tensor:
        """Of each masked word row * T + position [M], none twice; the positions [b] where `single`."""

    @property
    def targets(self) -> Tensor:
        """The words that are hidden [M]."""

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence [b], on the processor."""

    @property
    def count(self) -> int:
        """By how much the sum of losses is divided."""

    @property
    def rows(self) -> range:
        """The sentences' numbers within the batch [b]."""

    @property
    def single(self) -> bool:
        """Whether every sentence has one masked word."""


class MaskedLM(nn.Module, ABC):
    """Base of masked language models.

    Attributes: `width` (D), `vocabulary_size` (V, words), `total_vocabulary`, `pad_id`, `max_length` (most
    positions of a sentence).
    """

    width: int
    vocabulary_size: int
    total_vocabulary: int
    pad_id: int
    max_length: int

    #: The width from which it trains faster on a processor with products in bfloat16; None where none does.
    wide: ClassVar[int | None] = None

    @property
    def fused(self) -> bool:
        """Whether `masked_loss` makes the gradients along with the loss, and backward only hands them out."""
        return False

    @abstractmethod
    def encode(self, ids: Tensor) -> Tensor:
        """Return hidden states [B, T, D] of `ids` [B, T]; nothing depends on what stands at padding.

        Hidden states at padding are finite and meaningless.
        """

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., total_vocabulary] of hidden states [..., D]."""

    @abstractmethod
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights that training starts from."""

    def tie(self) -> None:
        """Make parameters that are tied one and the same again."""

    def to_empty(self, *, device: str | torch.device | int | None, recurse: bool = True) -> Self:
        """Move to `device` without values; tied parameters stay tied."""
        super().to_empty(device=device, recurse=recurse)
        self.tie()
        return self

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, total_vocabulary] at one position a row.

        `ids` [B, T] already holds the mask token at `positions` [B].
        """
        rows = torch.arange(len(ids), device=ids.device)
        return self.head(self.encode(ids)[rows, positions])

    def precision(self, device: torch.device) -> torch.dtype:
        """Return the working precision in which it trains the fastest on `device`."""
        if device.type == "cpu":
            pays = self.wide is not None and self.width >= self.wide
        else:
            pays = device.type == "cuda"
        return torch.bfloat16 if pays and multiplies_bfloat16(device) else torch.float32

    def masked_loss(self, words: MaskedWords, *, seed: int, dtype: torch.dtype) -> Tensor:
        """Return Σ -log f(target) / `words.count` over the masked words, a scalar to differentiate once.

        Matrix products are in `dtype`, float32 or bfloat16.  Dropout may be keyed by (`seed`, the sentences'
        `rows`); where it is not, it is drawn from torch's generator.
        """
        with torch.autocast(words.ids.device.type, dtype, enabled=dtype != torch.float32):
            at = self if words.single else self.logits_at
            logits: Tensor = at(words.ids, words.index)
        if dtype != torch.float32:
            logits = logits.float()
        return F.cross_entropy(logits, words.targets, reduction="sum") / words.count

    def logits_at(self, ids: Tensor, index: Tensor) -> Tensor:
        """Return logits [M, total_vocabulary] at `index` [M]: row * T + position, any number a row."""
        return self.head(self.encode(ids).flatten(0, 1)[index])


class ModelConfig(Config):
    """Base of model configurations."""

    kind: str

    @property
    def label(self) -> str:
        """A short readable name that tells this configuration from its neighbours in a sweep."""
        raise TypeError(f"{type(self).__name__} has no label")

    #: False where training starts from weights that no seed draws.
    seeded: ClassVar[bool] = True

    def content(self) -> dict[str, Any]:
        """Return plain data of all that determines what the model computes: its part of a run's identity.

        By default every field.  A kind leaves out what changes no result, and a field added to it later
        where that has the value which leaves the model as it was.
        """
        return self.encode()

    def problems(self, language: Language) -> list[tuple[str, str]]:
        """Return (field, message) for every value that does not fit the language; [] when all fit."""
        return []

    def module(self, language: Language) -> MaskedLM:
        """Return the model for `language` with weights that mean nothing yet."""
        raise TypeError(f"{type(self).__name__} does not say how to build its model")

    def build(self, language: Language, *, seed: int) -> MaskedLM:
        """Return the model with its initial weights: a function of the configuration and `seed` alone."""
        # Shapes first, values later: the draws of torch's own constructors would touch the global generator.
        with torch.device("meta"):
            model = self.module(language)
        model.to_empty(device="cpu")
        model.initialise(seeding.generator(seed, "init"))
        return model

    def parameters(self, language: Language) -> int:
        """Return the number of trainable parameters, allocating none of them."""
        with torch.device("meta"):
            return parameter_count(self.module(language))

    def parameter_counts(self, language: Language) -> dict[Vocabulary, int]:
        """Return the number of trainable parameters by vocabulary, as far as they can be had."""
        return {"own": self.parameters(language)}


class DrawnConfig(ModelConfig):
    """Base of configurations whose initial weights are drawn, for a vocabulary that can be chosen.

    With `vocabulary: faithful` the embedding has the rows of BERT's 30,522 word pieces, as in published
    sizes of models; by default it has those of the language's own words.
    """

    vocabulary: Vocabulary = "own"

    def content(self) -> dict[str, Any]:
        data = self.encode()
        if self.vocabulary == "own":
            del data["vocabulary"]
        return data

    def problems(self, language: Language) -> list[tuple[str, str]]:
        words = language.vocabulary_size
        if self.vocabulary == "own" or words + SPECIAL_TOKENS <= BERT_VOCABULARY:
            return []
        return [
            (
                "vocabulary",
                f"'faithful' has {BERT_VOCABULARY} tokens, the language {words} words and {SPECIAL_TOKENS} "
                "special tokens; use 'own'",
            )
        ]

    def parameter_counts(self, language: Language) -> dict[Vocabulary, int]:
        both: tuple[Vocabulary, ...] = ("own", "faithful")
        configs = {v: self.model_copy(update={"vocabulary": v}) for v in both}
        return {v: c.parameters(language) for v, c in configs.items() if not c.problems(language)}
