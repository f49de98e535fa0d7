"""All of a small language: every masked sentence, its probability, and the conditional of its masked word.

    w_i = Pr(x_-t = input i, t is masked),        q_i(c) = Pr(x_t = c | x_-t)

with x a sentence and t one of its positions, drawn uniformly.  Expectations over masked sentences are then
sums, without noise.  The list is made from the probabilities of all strings of words.

>>> from raysweep.languages.hmm import HMM
>>> population = Population.of(HMM.random(states=2, vocabulary=3, length=2, blocks=1, tasks=(1,)))
>>> population.masked.shape, round(population.weights.sum().item(), 12)
(torch.Size([6, 2]), 1.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Self

import torch
from torch import Tensor

from raysweep.errors import ConfigError
from raysweep.languages.base import Language

#: Strings of words that are tried, at most.
MOST_STRINGS = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Population:
    """The `N` masked sentences of a language that have a probability, in lexicographic order.

    `masked` [N, T] ids with one mask each, padded; `positions` [N] of the masks; `weights` [N], which sum to
    one; `truth` [N, V], the conditionals of the masked words.  Weights and truth are float64.
    """

    masked: Tensor
    positions: Tensor
    weights: Tensor
    truth: Tensor

    @classmethod
    def of(cls, language: Language) -> Self:
        """List a language.  Raises `ConfigError` for one that has no exact conditionals or is too large."""
        words, longest = language.vocabulary_size, language.max_length
        if not language.exact:
            raise ConfigError(f"nobody knows the probabilities of a {type(language).__name__}'s sentences")
        if sum(words**length for length in range(1, longest + 1)) > MOST_STRINGS:
            raise ConfigError(
                f"{words} words make more than {MOST_STRINGS} strings of up to {longest}; "
                "choose a language of fewer words or shorter sentences"
            )
        known = language.length_probabilities
        lengths = [n for n in range(1, longest + 1) if known is None or known[n] > 0]
        joint: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        for length in lengths:
            strings = torch.tensor(list(product(range(words), repeat=length)))
            ids = torch.nn.functional.pad(strings, (0, longest - length), value=language.pad_id)
            share = language.log_prob(ids).exp() / length
            for row, probability in zip(ids[share > 0].tolist(), share[share > 0].tolist(), strict=True):
                for t in range(length):
                    key = (t, (*row[:t], language.mask_id, *row[t + 1 :]))
                    found = joint.setdefault(key, torch.zeros(words, dtype=torch.float64))
                    found[row[t]] += probability
        order = sorted(joint)
        table = torch.stack([joint[key] for key in order])
        weights = table.sum(dim=1)
        return cls(
            masked=torch.tensor([ids for _, ids in order]),
            positions=torch.tensor([t for t, _ in order]),
            weights=weights / weights.sum(),
            truth=table / weights[:, None],
        )

    def __len__(self) -> int:
        return len(self.masked)
