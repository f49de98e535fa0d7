"""The subject of an evaluation: what answers masked sentences of a language, usually a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.languages.base import Language
from raysweep.languages.training_set import TrainingSet
from raysweep.models.base import MaskedLM
from raysweep.models.representation import Layers, Representation, misfits, represent

#: Logits in float64 at once: 64 MB.
_LOGITS = 1 << 23

#: Rows of a batch, and words of one on the compiled path, which works in chunks of its own.
_ROWS, _WORDS = 256, 1 << 14


class Subject(Protocol):
    """A trained model, or what stands in its place, with the language that it models."""

    language: Language

    def log_probs(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return log f(x_t = word | x_-t) [B, V] in nats: `ids` [B, T] unmasked, `positions` [B] masked."""

    def word_log_probs(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return log f(x_t = the word of `ids` | words that are not marked) [M] in nats, float64.

        `ids` [B, T] are unmasked; `mask` [B, T] marks M words, any number a row, in the order of `ids[mask]`.
        """

    def features(
        self, ids: Tensor, representation: Representation = "concatenated", layers: Layers = "last"
    ) -> Tensor:
        """Return representations [B, F] of sentences (`raysweep.models.representation`).

        With `layers` "all" they are [B, L, F].  Raises `ConfigError` for what the subject does not have.
        """


class ModelSubject:
    """A model, put into evaluation mode, with the language that it models.

    `training` are the sentences that it was trained on, where they are known.  Results are on the model's
    device.  Rows go through the model in batches of `batch` (256, or more where there is a compiled pass),
    sorted by length, so that little of a batch is padding.  Raises `ConfigError` for a model of another
    vocabulary or of shorter sentences.
    """

    def __init__(
        self,
        language: Language,
        model: MaskedLM,
        *,
        training: TrainingSet | None = None,
        batch: int | None = None,
    ) -> None:
        for field in ("vocabulary_size", "pad_id"):
            if getattr(model, field) != getattr(language, field):
                raise ConfigError(
                    f"the model has {field} {getattr(model, field)}, its language "
                    f"{getattr(language, field)}; evaluate it with the language it was trained on"
                )
        if model.max_length < language.max_length:
            raise ConfigError(
                f"the model takes {model.max_length} positions, its language has {language.max_length}; "
                "evaluate it with the language it was trained on"
            )
        self.language = language
        self.model = model.eval()
        self.training = training
        self.batch = batch or max(_ROWS, _WORDS // language.max_length if model.fused else 0)

    def _batches(self, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (row numbers [b], their ids [b, T'] cut to the longest sentence)."""
        lengths = self.language.lengths(ids)
        for rows in torch.split(lengths.argsort(stable=True), self.batch):
            yield rows, ids[rows, : int(lengths[rows[-1]])]

    @torch.inference_mode()
    def log_probs(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return log f(x_t = word | x_-t) [B, V] in nats, float64."""
        device = next(self.model.parameters()).device
        ids, positions = ids.to(device), positions.to(device)
        masked = ids.scatter(1, positions[:, None], self.language.mask_id)
        words = self.language.vocabulary_size
        out = torch.empty(len(ids), words, dtype=torch.float64, device=device)
        for rows, part in self._batches(masked):
            if not self.model.fused:
                out[rows] = self.model(part, positions[rows]).double().log_softmax(dim=-1)[:, :words]
                continue
            first = torch.arange(0, part.numel(), part.shape[1])
            hidden = self.model.read_at(part, first + positions[rows])
            for piece in self._pieces(len(rows)):
                logits = self.model.head(hidden[piece]).double()
                out[rows[piece]] = logits.log_softmax(dim=-1)[:, :words]
        return out

    def _pieces(self, rows: int) -> Iterator[slice]:
        """Yield parts of so many rows of hidden states, for which the logits are computed at once."""
        most = max(1, _LOGITS // self.model.total_vocabulary)
        for k in range(0, rows, most):
            yield slice(k, k + most)

    @torch.inference_mode()
    def word_log_probs(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return log f(x_t = the word of `ids` | words that are not marked) [M] in nats, float64."""
        device = next(self.model.parameters()).device
        ids, mask = ids.to(device), mask.to(device)
        hidden = ids.masked_fill(mask, self.language.mask_id)
        out = torch.empty(ids.shape, dtype=torch.float64, device=device)
        for rows, part in self._batches(hidden):
            width = part.shape[1]
            r, t = mask[rows, :width].nonzero(as_tuple=True)
            states = self.model.read_at(part, r * width + t)
            words = ids[rows[r], t]
            for piece in self._pieces(len(r)):
                logits = self.model.head(states[piece]).double()
                chosen = logits.gather(1, words[piece, None])[:, 0]
                out[rows[r[piece]], t[piece]] = chosen - logits.logsumexp(dim=-1)
        return out[mask]

    @torch.inference_mode()
    def features(
        self, ids: Tensor, representation: Representation = "concatenated", layers: Layers = "last"
    ) -> Tensor:
        """Return representations [B, F] of sentences, or those of all layers [B, L, F].

        Raises `ConfigError` for what the model does not have.
        """
        for field, message in misfits(self.model, self.language, representation, layers):
            raise ConfigError(f"{field}: {message}")
        ids = ids.to(next(self.model.parameters()).device)
        out: Tensor | None = None
        for rows, part in self._batches(ids):
            found = represent(self.model, part, representation, layers, length=self.language.max_length)
            if out is None:
                out = found.new_empty(len(ids), *found.shape[1:])
            out[rows] = found
        if out is None:
            raise DataError("no sentences to represent")
        return out if layers == "all" else out[:, 0]


def normalise(log_probs: Tensor) -> Tensor:
    """Return log-probabilities [..., V] in float64 whose sum is one beyond the precision of float32."""
    return log_probs.double().log_softmax(dim=-1)
