"""The sentences that a run trains on: fresh ones for ever, or epochs over a finite set.

A finite set of N sentences is the first N of its seed.  Nothing of it is stored: sentence i is drawn by its
number whenever it is needed.  The first epoch has the sentences in the order of their numbers, as fresh
sentences come, so a run on N sentences equals a run on fresh ones up to sentence N.  Every later epoch has
them in the order of a permutation that is keyed by seed and epoch, and computed, not stored.  Each sentence
comes exactly once in an epoch; a batch may hold the end of one epoch and the beginning of the next.

Where sentences cost more to draw than to read (`Language.stores_sentences`), a `Store` may hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from raysweep.languages.base import Language
from raysweep.languages.permutation import permuted

CPU = torch.device("cpu")


class Store(Protocol):
    """Sentences of one seed that are kept."""

    def take(self, numbers: Tensor) -> Tensor:
        """Return sentences [n, max_length] by number; those that are not kept are drawn."""


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """The sentences `seed` of `language` that a run trains on: the first `sentences`, or all where None.

    They come out of `store` where there is one.
    """

    language: Language
    seed: int
    sentences: int | None = None
    store: Store | None = None

    @property
    def size(self) -> int | None:
        """Number of sentences before they repeat; None for fresh ones, and where it is not known yet."""
        return self.language.distinct if self.sentences is None else self.sentences

    @property
    def endless(self) -> bool:
        """Whether every sentence is fresh, because the language is generated and no number is set."""
        return self.sentences is None and self.language.held_out is self.language

    def drawn(self, start: int, n: int, device: torch.device = CPU) -> Tensor:
        """Return the sentences [n, max_length] at places `start` .. `start+n-1` of the training."""
        fresh = self.store is None and (self.sentences is None or start + n <= self.sentences)
        if fresh and device.type == "cpu":
            return self.language.sample(n, seed=self.seed, start=start)
        return self.at(torch.arange(start, start + n, device=device))

    def at(self, places: Tensor) -> Tensor:
        """Return the sentences [n, max_length] at `places` [n] of the training, on their device."""
        return self.take(self.numbers(places))

    def take(self, numbers: Tensor) -> Tensor:
        """Return sentences [n, max_length] by number, on the device of these."""
        if self.store is not None:
            return self.store.take(numbers.cpu()).to(numbers.device)
        return self.language.sample_on(numbers.device, numbers, seed=self.seed)

    def numbers(self, places: Tensor) -> Tensor:
        """Return the numbers [n] of the sentences at `places` [n] of the training.

        >>> from raysweep.languages import Dyck
        >>> finite = TrainingSet(language=Dyck(length=4), seed=0, sentences=6)
        >>> finite.numbers(torch.arange(6)).tolist(), sorted(finite.numbers(torch.arange(6, 12)).tolist())
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
        """
        if self.sentences is None:
            return places
        epoch, place = places // self.sentences, places % self.sentences
        return torch.where(epoch == 0, place, self._permuted(place, self.sentences, self.seed, epoch))

    def some(self, places: Tensor, *, seed: int) -> Tensor:
        """Return sentences [n, max_length] at `places` [n], below `size`, of another order, that of `seed`.

        Different places are different sentences.  Raises `TypeError` for fresh sentences.
        """
        if self.size is None:
            raise TypeError("fresh sentences have no order; ask for those of a finite set")
        return self.take(self._permuted(places, self.size, seed, torch.zeros_like(places)))

    def _permuted(self, places: Tensor, size: int, seed: int, epoch: Tensor) -> Tensor:
        """Return the numbers [n] at `places` [n], below `size`, in the permutation of (seed, epoch [n])."""
        return permuted(places, size, seed=seed, purpose="epoch", epoch=epoch)
