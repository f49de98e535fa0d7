"""The interface of every model: hidden states, and logits at masked positions.

A masked language model maps sentences ids [B, T] to hidden states [B, T, D] (`encode`) and hidden states to
logits over `total_vocabulary` (`head`).  The first V logits are the language's words; then come padding, the
mask and the sentence-level token, and unused rows up to a multiple of 8.  The model's conditional is

    log f(x_t = w | visible words) = log_softmax(logits)[w],    w < V,

normalised over the total vocabulary, as training does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raysweep import seeding
from raysweep.languages.base import Language
from raysweep.models.batch import Batch
from raysweep.models.precision import multiplies_bfloat16, multiplies_in_vectors
from raysweep.registry import KindConfig

if TYPE_CHECKING:
    from raysweep.models.packed import Rows

SPECIAL_TOKENS = 3  # padding, mask, sentence-level token: see raysweep.languages.base
BERT_VOCABULARY = 30_522  # word pieces of BERT (uncased), which published sizes of models count in

#: The rows of an embedding: for the language's `own` words, or as many as BERT has (`faithful`).
Vocabulary = Literal["own", "faithful"]


def total_vocabulary(vocabulary_size: int, vocabulary: Vocabulary = "own") -> int:
    """Return the rows of an embedding: words and special tokens, rounded up to a multiple of 8.

    A `faithful` vocabulary has BERT's 30,522 rows, rounded up in the same way (as in Izsak, Berchansky and
    Levy, "How to train BERT with an academic budget", EMNLP 2021).  Rows after the language's own stay
    unused, but the loss is over all of them.

    >>> total_vocabulary(16), total_vocabulary(200), total_vocabulary(200, "faithful")
    (24, 208, 30528)
    """
    rows = BERT_VOCABULARY if vocabulary == "faithful" else vocabulary_size + SPECIAL_TOKENS
    return -(-rows // 8) * 8


class _NoDraws(TorchFunctionMode):
    """Leaves out normal draws, for which torch would import its compiler: seconds of CPU time."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **kwargs)


@contextmanager
def without_values() -> Iterator[None]:
    """Give the modules that are built inside shapes and no values, so that they take no memory."""
    with _NoDraws(), torch.device("meta"):
        yield


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters; tied ones count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def widened(x: Tensor) -> Tensor:
    """Return `x` in float32 where it is of half that width."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def mean_loss(logits: Tensor, targets: Tensor, count: int | Tensor) -> Tensor:
    """Return Σ -log f(target) / `count` of logits [M, total_vocabulary], a scalar, float32 or wider."""
    return F.cross_entropy(widened(logits), targets, reduction="sum") / count


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

    #: True where the sentence-level token stood before the sentences of pre-training.
    reads_cls: bool = False
    #: True where weights are gathered for their block's work alone (`raysweep.training.sharding`); compiled
    #: passes, which read all of them, do not serve such a model.
    sharded: bool = False

    #: The widths from which bfloat16 products make training on a CPU faster: where they are made in vectors
    #: (`raysweep.models.precision.multiplies_in_vectors`), and elsewhere; None if they never do.
    wide: ClassVar[tuple[int, int] | None] = None
    #: The module with compiled training for a CPU: `step(model, words, seed=..., dtype=...)`, a
    #: `raysweep.models.fused.step.Step`, and `hidden_at` of the same arguments.  Their dropout is keyed by
    #: `seed`, and not drawn from torch's generator.  It holds for this very class, not for subclasses.
    compiled: ClassVar[str | None] = None

    @property
    def fused(self) -> bool:
        """Whether `masked_loss` computes gradients along with the loss; backward then only returns them."""
        parameter = next(self.parameters())
        own = vars(type(self)).get("compiled") is not None and not self.sharded
        return own and parameter.device.type == "cpu" and parameter.dtype == torch.float32

    @abstractmethod
    def encode(self, ids: Tensor) -> Tensor:
        """Return hidden states [B, T, D] of `ids` [B, T]; padding has no influence on other positions.

        Hidden states at padding are finite and meaningless.
        """

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., total_vocabulary] of hidden states [..., D]."""

    @abstractmethod
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights that training starts from."""

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that `head` uses and `encode` does not."""
        return []

    def with_token(self) -> MaskedLM:
        """Return the model for sentences that already begin with the sentence-level token: itself by default.

        A model that puts the token in front of its sentences returns the one inside.
        """
        return self

    def blocks(self) -> dict[nn.Module, tuple[str, ...]]:
        """Return modules that work one after the other, with the methods beside `forward` that enter them.

        A sharded model gathers the weights of one such block at a time, and all others for the whole pass.
        """
        return {}

    def tie(self) -> None:
        """Tie parameters again that share their values."""

    def to_empty(self, *, device: str | torch.device | int | None, recurse: bool = True) -> Self:
        """Move to `device` without values; tied parameters stay tied."""
        # torch's own imports sympy for a model without values, which takes half a second.
        self._apply(
            lambda t: torch.empty_strided(
                t.size(), t.stride(), dtype=t.dtype, device=t.device if device is None else device
            ),
            recurse=recurse,
        )
        self.tie()
        return self

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, total_vocabulary] at one position a row.

        `ids` [B, T] already holds the mask token at `positions` [B].
        """
        rows = torch.arange(len(ids), device=ids.device)
        return self.head(self.encode(ids)[rows, positions])

    def precision(self, device: torch.device) -> torch.dtype:
        """Return the working precision in which the model trains fastest on `device`."""
        if device.type == "cpu":
            pays = self.wide is not None and self.width >= self.wide[0 if multiplies_in_vectors() else 1]
        else:
            pays = device.type == "cuda"
        return torch.bfloat16 if pays and multiplies_bfloat16(device) else torch.float32

    def masked_loss(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        """Return Σ -log f(target) / `words.count` over the masked words, a scalar to differentiate once.

        Matrix products are in `dtype`, float32 or bfloat16.  Dropout may be keyed by (`seed`, the sentences'
        `rows`); where it is not, it is drawn from torch's generator.
        """
        if self.fused:
            loss: Tensor = self.compiled_step(words, seed=seed, dtype=dtype).differentiable()
            return loss
        return self.plain_loss(words, dtype=dtype)

    def learn(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        """Add the gradient of `masked_loss` to `.grad`; return the loss, detached.

        It does without autograd, whose bookkeeping takes noticeable time for a small model, and so without
        hooks on parameters.  Raises `TypeError` for a model that is not `fused`.
        """
        loss: Tensor = self.compiled_step(words, seed=seed, dtype=dtype).learn()
        return loss

    def compiled_step(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Any:
        """Return the `raysweep.models.fused.step.Step` of `masked_loss`; raises `TypeError` as `learn`."""
        if not self.fused:
            raise TypeError(f"this {type(self).__name__} learns by `masked_loss` and its backward pass")
        # Imported here because it imports numba.
        return import_module(str(self.compiled)).step(self, words, seed=seed, dtype=dtype)

    def plain_loss(self, words: Batch, *, dtype: torch.dtype) -> Tensor:
        """Return the loss of `masked_loss` by the model's own modules; torch's generator draws dropout."""
        with torch.autocast(words.ids.device.type, dtype, enabled=dtype != torch.float32):
            at = self if words.single else self.logits_at
            logits: Tensor = at(words.ids, words.index)
        return mean_loss(logits, words.targets, words.count)

    def rows(self, words: Batch, *, dtype: torch.dtype) -> Rows | None:
        """Return the batch as `rows_loss` takes it; None where the loss in `dtype` is not made of it."""
        return None

    def rows_loss(self, rows: Rows, key: Tensor, count: Tensor) -> Tensor:
        """Return the loss of `masked_loss` from `rows`, the key of dropout and the divisor, scalars there.

        It depends on nothing but these tensors and the weights, and never waits for the GPU, so that it can
        be recorded (`raysweep.training.recorded`).  `count` is a tensor because a GPU divides by one with
        another rounding than by a number of Python's.
        """
        raise TypeError(f"{type(self).__name__} makes no loss of rows")

    def hidden_at(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        """Return hidden states [M, D] at `words.index`, none twice, float32 or wider, to differentiate once.

        It serves losses other than that of masked words, whose `targets` and `count` have no part in it.
        Products and dropout are as in `masked_loss`.
        """
        if self.fused:
            found: Tensor = import_module(str(self.compiled)).hidden_at(self, words, seed=seed, dtype=dtype)
            return found
        with torch.autocast(words.ids.device.type, dtype, enabled=dtype != torch.float32):
            return widened(self.encode(words.ids).flatten(0, 1)[words.flat_index])

    def read_at(self, ids: Tensor, index: Tensor) -> Tensor:
        """Return the hidden states [M, D] of `encode` at `index` [M], row * T + position, none twice.

        It is for evaluation.  `ids` [B, T] are what the model sees.  Where it is fused, the compiled pass
        reads them without padding and without gradients.
        """
        if not (self.fused and len(index)):
            return self.encode(ids).flatten(0, 1)[index]
        words = Batch(
            ids=ids,
            index=index,
            targets=torch.zeros_like(index),
            lengths=(ids != self.pad_id).sum(dim=1),
            count=len(index),
            rows=range(len(ids)),
            single=False,
        )
        with torch.no_grad():
            return self.hidden_at(words, seed=0, dtype=torch.float32)

    def logits_at(self, ids: Tensor, index: Tensor) -> Tensor:
        """Return logits [M, total_vocabulary] at `index` [M]: row * T + position, any number a row."""
        return self.head(self.encode(ids).flatten(0, 1)[index])


class ModelConfig(KindConfig):
    """Base of model configurations."""

    @property
    def label(self) -> str:
        """A short readable name that distinguishes this configuration from its neighbours in a sweep."""
        raise TypeError(f"{type(self).__name__} has no label")

    #: False where training starts from given weights, which no seed draws.
    seeded: ClassVar[bool] = True

    def content(self) -> dict[str, Any]:
        """Return the plain data that determines what the model computes: its part of a run's identity.

        By default that is every field.  A kind leaves out fields that change no result.
        """
        return self.encode()

    def problems(self, language: Language) -> list[tuple[str, str]]:
        """Return (field, message) for every value that does not fit the language; [] when all fit."""
        return []

    def module(self, language: Language) -> MaskedLM:
        """Return the model for `language`, its weights not initialised."""
        raise TypeError(f"{type(self).__name__} does not say how to build its model")

    def build(self, language: Language, *, seed: int) -> MaskedLM:
        """Return the model with its initial weights: a function of the configuration and `seed` alone."""
        # Shapes first, values later: the draws of torch's own constructors would touch the global generator.
        with without_values():
            model = self.module(language)
        model.to_empty(device="cpu")
        model.initialise(seeding.generator(seed, "init"))
        return model

    def parameters(self, language: Language) -> int:
        """Return the number of trainable parameters without allocating them."""
        with without_values():
            return parameter_count(self.module(language))

    def parameter_counts(self, language: Language) -> dict[Vocabulary, int]:
        """Return the number of trainable parameters for each vocabulary that fits the language."""
        return {"own": self.parameters(language)}


class DrawnConfig(ModelConfig):
    """Base of configurations with drawn initial weights and a choice of vocabulary.

    With `vocabulary: faithful` the embedding has the rows of BERT's 30,522 word pieces, as published model
    sizes do; by default it has one row for each word of the language.
    """

    #: Rows of the embedding: one for each word of the language (`own`), or BERT's 30,522 (`faithful`).
    vocabulary: Vocabulary = "own"

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
