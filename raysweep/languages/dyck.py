"""Sentences of as many opening as closing brackets, and the two distributions of the theory built on them.

A sentence is a string of even length T over `<` (word 0) and `>` (word 1), uniform over the C(T, T/2) strings
with T/2 of each; brackets need not be nested.  The source is section 5 of Liu, Xie, Li and Ma, "Same
Pre-training Loss, Better Downstream", ICML 2023 (with appendix G), which calls it a variant of the Dyck
language.  When h positions are hidden and k opening brackets are missing from the visible ones, all fillings
are equally likely, so

    Pr(x_t = < | visible words) = k / h   for every hidden t,

and a single hidden bracket is certain: the entropy is zero.

**Pre-training** is regression on sentences with one uniformly drawn position masked, **downstream** on
strings of T independent fair brackets without a mask.  Both have the target

    g*(x) = number of > in x - number of < in x,

which is 1 where a < is masked, -1 where a > is masked, and 0 for a sentence of the language alone: the
downstream strings do not belong to the language, and the language has no task.

A string is encoded as x_1, ..., x_T in R^2T (e_i the unit vectors): x_t = e_t for <, -e_t for >, and a mask
at t is e_(t+T) or -e_(t+T) with probability 1/2 each.  Thus g*(x) = -<1_T, [sum_t x_t]_(1:T)>.

>>> language = Dyck(length=6)
>>> ids = language.sample(4, seed=0)
>>> language.conditionals(ids).exp().argmax(dim=-1).equal(ids)
True
>>> language.population().ids.shape
torch.Size([240, 6])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field, field_validator
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.languages.base import Language, LanguageConfig, Sample, Task, certain_length, sentence_numbers
from raysweep.languages.checks import check_conditionals, check_sentences, decoded, impossible
from raysweep.seeding import signs, words

#: The words of the language.
OPEN, CLOSE = 0, 1

#: Most rows of an enumeration.
MOST_ROWS = 1 << 20


class DyckConfig(LanguageConfig):
    """All strings of `length` brackets, half of them opening."""

    kind: Literal["dyck"] = "dyck"
    #: Brackets of every string.
    length: int = Field(ge=2, le=1024)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(length=6)

    @field_validator("length")
    @classmethod
    def _length_is_even(cls, length: int) -> int:
        if length % 2:
            raise ValueError(f"{length} is odd, but half of the brackets open; choose an even length")
        return length

    def build(self) -> Dyck:
        """Make the language."""
        return Dyck(length=self.length)


@dataclass(frozen=True, kw_only=True)
class DyckExamples:
    """Strings of brackets as regression examples: a whole distribution, or draws from one.

    `ids` [N, T] with `mask_id` where a bracket is masked; `mask_signs` [N], 1 or -1, the sign of the mask's
    encoding; `targets` [N], g* of the visible brackets; `weights` [N], the probability of each row where all
    are listed and 1/N where they are drawn.  All but `ids` are float64.
    """

    ids: Tensor
    mask_signs: Tensor | None
    targets: Tensor
    weights: Tensor


class Dyck(Language):
    """The balanced-bracket language of even length T; see the module's text for its distributions."""

    vocabulary_size = 2
    fixed_length = True
    no_tasks = "brackets have no classification task: g* is a regression, which the evaluation dyck measures"

    def __init__(self, *, length: int) -> None:
        decoded(DyckConfig, {"length": length})
        self.max_length = length
        self.length_probabilities = certain_length(length)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """No tasks: g* is zero on every sentence; `downstream_population` has the regression."""
        return {}

    def content(self) -> bytes:
        """Return the length as bytes."""
        return repr(self.max_length).encode()

    def sample_latent(self, n: int, *, seed: int, start: int = 0) -> Sample:
        """Draw sentences; there are no latents."""
        return Sample(ids=self.sample_at(sentence_numbers(n, start), seed=seed))

    def sample_at(self, numbers: Tensor, *, seed: int) -> Tensor:
        """Draw sentences bracket by bracket: each is < with the share of < among the missing brackets."""
        n, T = len(numbers), self.max_length
        draw = words(seed, "dyck", numbers, T).T.contiguous()
        ids = torch.empty(n, T, dtype=torch.int64)
        missing = torch.full((n,), T // 2)
        for t in range(T):
            opens = (draw[t] * (T - t)) >> 32 < missing
            missing -= opens.to(torch.int64)
            ids[:, t] = torch.where(opens, OPEN, CLOSE)
        return ids

    def labels(self, task: str, sample: Sample) -> Tensor:
        """Raise `DataError`: there are no tasks."""
        raise DataError(f"no task '{task}'; this language has none")

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return exact log-probabilities [B, T, 2] of `dtype`, as `Language.conditionals` says."""
        check_conditionals(self, ids, mask, dtype)
        half, real = self.max_length // 2, ids != self.pad_id
        if mask is None:
            # Each position is the only hidden one in turn.
            hidden, opens = real, (ids == OPEN).to(torch.int64)
            missing = half - opens.sum(dim=1, keepdim=True) + opens
            free = torch.ones_like(missing)
        else:
            hidden = mask & real
            missing = half - ((ids == OPEN) & ~hidden).sum(dim=1, keepdim=True)
            free = hidden.sum(dim=1, keepdim=True)
        wrong = ((missing < 0) | (missing > free)) & real
        if wrong.any():
            raise impossible(int(wrong.nonzero()[0, 0]))
        opening = (missing.to(torch.float64) / free).log().to(dtype)
        closing = ((free - missing).to(torch.float64) / free).log().to(dtype)
        log_probs = torch.stack([opening, closing], dim=-1)
        return torch.where(hidden[:, :, None], log_probs, torch.nan)

    def log_prob(self, ids: Tensor) -> Tensor:
        """Return -log C(T, T/2) [B] in nats, float64, for sentences of the language, -inf for others."""
        lengths = check_sentences(self, ids)
        T = self.max_length
        inside = (lengths == T) & ((ids == OPEN).sum(dim=1) == T // 2)
        out = torch.full((len(ids),), -torch.inf, dtype=torch.float64, device=ids.device)
        return out.masked_fill_(inside, -math.log(math.comb(T, T // 2)))

    def text(self, ids: Tensor) -> str:
        """Return a sentence [T] as brackets."""
        return "".join("<>"[word] for word in ids[ids != self.pad_id].tolist())

    def mismatch(self, ids: Tensor) -> Tensor:
        """Return g*(x) = number of > - number of < [B], float64, of strings [B, T], masked or not."""
        return ((ids == CLOSE).sum(dim=1) - (ids == OPEN).sum(dim=1)).to(torch.float64)

    def sentences(self) -> Tensor:
        """Return all C(T, T/2) sentences as ids, in lexicographic order.

        Raises `ConfigError` where they are more than `MOST_ROWS` (T above 22).
        """
        T = self.max_length
        count = self._enumerable(math.comb(T, T // 2), "sentences")
        ids = torch.full((count, T), CLOSE)
        return ids.scatter_(1, torch.tensor(list(combinations(range(T), T // 2))), OPEN)

    def population(self) -> DyckExamples:
        """Return the pre-training distribution: all sentences, each masked at every position, both signs.

        The 2 T C(T, T/2) rows are equally probable, the sign running fastest, then the position.  Raises
        `ConfigError` where they are more than `MOST_ROWS` (T above 16).
        """
        T = self.max_length
        count = self._enumerable(2 * T * math.comb(T, T // 2), "masked sentences")
        row = torch.arange(count)
        ids, sign = self.sentences()[row // (2 * T)], 1.0 - 2.0 * (row % 2).to(torch.float64)
        return self._examples(ids.scatter_(1, (row // 2 % T)[:, None], self.mask_id), sign)

    def sample_masked(self, n: int, *, seed: int, start: int = 0) -> DyckExamples:
        """Draw pre-training examples: sentences `start .. start+n-1` of `seed` with one position masked."""
        draw = words(seed, "dyck mask", sentence_numbers(n, start), 2)
        position = (draw[:, :1] * self.max_length) >> 32
        ids = self.sample(n, seed=seed, start=start).scatter_(1, position, self.mask_id)
        return self._examples(ids, 1.0 - 2.0 * (draw[:, 1] >> 31).to(torch.float64))

    def downstream_population(self) -> DyckExamples:
        """Return the downstream distribution: all 2^T strings, equally probable, in lexicographic order.

        Raises `ConfigError` where they are more than `MOST_ROWS` (T above 20).
        """
        T = self.max_length
        row = torch.arange(self._enumerable(1 << T, "strings"))
        return self._examples((row[:, None] >> torch.arange(T - 1, -1, -1)) & 1, None)

    def sample_downstream(self, n: int, *, seed: int, start: int = 0) -> DyckExamples:
        """Draw downstream examples `start .. start+n-1` of `seed`: T independent fair brackets each."""
        sign = signs(seed, "dyck downstream", sentence_numbers(n, start), self.max_length)
        return self._examples(torch.where(sign > 0, OPEN, CLOSE), None)

    def encode_sum(self, ids: Tensor, mask_signs: Tensor | None = None) -> Tensor:
        """Return sum_t x_t [B, 2T], float64, of strings [B, T] with at most one mask each.

        It determines the string: entry t is 1 for <, -1 for >, 0 for a mask, and entry t+T is the sign of a
        mask at t.  `mask_signs` [B] (1 or -1) may be left out where nothing is masked.  Raises `DataError`
        naming a row of another length, with another id than a bracket or the mask, or with several masks.
        """
        T, masked = self.max_length, ids == self.mask_id
        if ids.dim() != 2 or ids.shape[1] != T:
            raise DataError(f"ids must be [B, {T}], not {list(ids.shape)}")
        wrong = ((ids != OPEN) & (ids != CLOSE) & ~masked).any(dim=1) | (masked.sum(dim=1) > 1)
        if wrong.any():
            row = int(wrong.nonzero()[0, 0])
            raise DataError(
                f"string {row}: {ids[row].tolist()} is not made of brackets ({OPEN}, {CLOSE}) "
                f"and at most one mask ({self.mask_id})"
            )
        if mask_signs is None:
            if masked.any():
                raise DataError("mask_signs: missing, and some strings are masked; give 1 or -1 for each")
            mask_signs = torch.zeros(len(ids))
        elif mask_signs.shape != ids.shape[:1] or not (mask_signs.abs() == 1).all():
            raise DataError(f"mask_signs must be 1 or -1 for each of {len(ids)} strings")
        brackets = torch.where(masked, 0.0, torch.where(ids == OPEN, 1.0, -1.0))
        places = torch.where(masked, mask_signs.to(ids.device)[:, None], 0.0)
        return torch.cat([brackets, places], dim=1).to(torch.float64)

    def encode(self, ids: Tensor, mask_signs: Tensor | None = None) -> Tensor:
        """Return the encodings x_1, ..., x_T [B, T, 2T], float64; arguments and errors of `encode_sum`."""
        total = self.encode_sum(ids, mask_signs)
        return torch.cat([part.diag_embed() for part in total.split(self.max_length, dim=1)], dim=2)

    def _examples(self, ids: Tensor, mask_signs: Tensor | None) -> DyckExamples:
        n = len(ids)
        weights = torch.full((n,), 1 / max(n, 1), dtype=torch.float64)
        return DyckExamples(ids=ids, mask_signs=mask_signs, targets=self.mismatch(ids), weights=weights)

    def _enumerable(self, count: int, what: str) -> int:
        if count > MOST_ROWS:
            raise ConfigError(
                f"length: {self.max_length} brackets make {count} {what}, and at most {MOST_ROWS} "
                "are listed; choose a shorter length, or draw a sample"
            )
        return count
