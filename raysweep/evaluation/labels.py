"""The labels of evaluations of the loss's shape: soft or hard knowledge of the word behind the mask.

See `raysweep.flatness.pool`.  Sentences and positions are those of the Fisher trace with the same seed, so
that an evaluation's values and the trace's belong to the same inputs.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raysweep.errors import ConfigError
from raysweep.evaluation.base import Evaluation, Subject
from raysweep.evaluation.sharding import draw_inputs
from raysweep.flatness.pool import Pool
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM
from raysweep.models.subject import ModelSubject


class LabelledEvaluation(Evaluation):
    """Base of evaluations whose inputs carry labels.

    `labels: soft` are the exact conditionals of the masked words, which have far less noise near saturation;
    `hard` are the words themselves, for languages without known conditionals.
    """

    #: Labels of masked words: their exact conditionals (`soft`), or the words themselves (`hard`).
    labels: Literal["soft", "hard"] = "soft"
    #: Decides all draws.
    seed: int = Field(default=0, ge=0)

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]  # of the setting, not of the class
        """True where `measure` wants exact conditionals."""
        return self.labels == "soft" and self.uses_labels()

    def uses_labels(self) -> bool:
        """Return whether any of the measurements depends on labels."""
        return True

    def problems(self, language: Language) -> list[tuple[str, str]]:
        if self.needs_reference and not language.exact:
            return [
                ("labels", f"nobody knows the exact conditionals of a {type(language).__name__}; use hard")
            ]
        return []

    def labelled(self, shard: int) -> range:
        """Return the numbers of the shard's labelled inputs; raises `IndexError` as `measure` does."""
        raise TypeError(f"{self.kind} does not say which inputs it labels")

    def reference(self, language: Language, shard: int, *, device: str = "cpu") -> np.ndarray:
        """Return the conditionals of the shard's labelled inputs, in the form that `Pool.of` takes."""
        if not self.needs_reference:
            return super().reference(language, shard, device=device)
        numbers = self.labelled(shard)
        if not numbers:
            return np.zeros((0, language.vocabulary_size), dtype=np.float32)
        ids, positions = self.draw(language, numbers)
        return _exact(language, ids.to(device), positions.to(device)).cpu().numpy()

    def reference_bytes(self, language: Language) -> int:
        if not self.needs_reference:
            return super().reference_bytes(language)
        return sum(len(self.labelled(k)) for k in range(self.shards())) * language.vocabulary_size * 4

    def draw(self, language: Language, numbers: range) -> tuple[Tensor, Tensor]:
        """Return the sentences [n, T] `numbers` and the masked position [n] of each, or a mask [n, T]."""
        return draw_inputs(language, numbers, mask="one", seed=self.seed)

    def pool(self, subject: Subject, numbers: range, reference: np.ndarray | None) -> Pool:
        """Return the inputs `numbers` with their labels; `reference` holds their conditionals where given.

        Raises `ConfigError` for a subject without parameters, and for labels that the language does not have.
        """
        language, model = subject.language, model_of(self.kind, subject)
        for _, message in self.problems(language):
            raise ConfigError(f"{self.kind}: {message}")
        ids, positions = self.draw(language, numbers)
        log_probs = None
        if self.needs_reference and reference is None:
            log_probs = _exact(language, ids, positions)
        elif self.needs_reference and reference is not None:
            # A copy: what comes from the object store cannot be written, which tensors do not know.
            log_probs = torch.from_numpy(reference.copy())
        return Pool.of(model, ids, positions, log_probs=log_probs)


def _exact(language: Language, ids: Tensor, positions: Tensor) -> Tensor:
    """Return the exact conditionals at one position a sentence, or at those of a mask that are all hidden."""
    several = positions.dtype == torch.bool
    return language.conditionals(ids, positions) if several else language.conditionals_at(ids, positions)


def model_of(kind: str, subject: Subject) -> MaskedLM:
    """Return the model of a subject; raises `ConfigError` for one that has no parameters."""
    if not isinstance(subject, ModelSubject):
        raise ConfigError(f"{kind}: {type(subject).__name__} has no parameters, so its loss has no shape")
    return subject.model
