"""Batches of sentences with masked words, as models take them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep.seeding import derive


def dropout_seed(words: Batch, seed: int) -> int:
    """Return the seed of the dropout of these sentences under that of a step.

    Workers, halves and parts of a batch begin with other sentences, or count them in other steps.
    """
    return derive(seed, words.rows.start, words.rows.step)


def dropout_key(words: Batch, seed: int) -> Tensor:
    """Return `dropout_seed` on the batch's device."""
    return torch.full((), dropout_seed(words, seed), dtype=torch.int64, device=words.ids.device)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sentences with masked words that are all to be predicted.

    `ids` [b, T] have masked words hidden or replaced.  `index` [M] is row * T + position of each masked word,
    none twice; it is the position [b] in each row where `single`, that is where every sentence has one masked
    word.  `targets` [M] are the words that were masked.  `lengths` [b] are the words of each sentence; they
    stay on the CPU whatever the device, so that shapes can be chosen without waiting for it.  `count` divides
    the sum of the losses: the masked words of the whole batch, over all ranks.  `rows` [b] are the sentences'
    numbers within the whole batch.
    """

    ids: Tensor
    index: Tensor
    targets: Tensor
    lengths: Tensor
    count: int
    rows: range
    single: bool

    @property
    def flat_index(self) -> Tensor:
        """The masked words as row * T + position [M], also where every sentence has one."""
        if not self.single:
            return self.index
        return self.index + torch.arange(len(self.ids), device=self.index.device) * self.ids.shape[1]

    def used_on(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of the tensors, which another stream made, until `stream` has used it."""
        for tensor in (self.ids, self.index, self.targets):
            tensor.record_stream(stream)

    def after(self, word: int) -> Batch:
        """Return the sentences with `word` in front of each, which is not masked."""
        index = self.index + 1 if self.single else self.index + self.index // self.ids.shape[1] + 1
        return replace(self, ids=F.pad(self.ids, (1, 0), value=word), index=index, lengths=self.lengths + 1)

    def split(self, sentences: int) -> list[Batch]:
        """Return the fewest parts of at most `sentences` rows each, with sizes that differ by at most one.

        Each part is a batch of its own: its `index` counts its own rows.  `count` stays that of the whole, so
        the gradients of the parts add up to the gradient of the whole.  Raises `ValueError` for fewer than
        one sentence.
        """
        if sentences < 1:
            raise ValueError(f"parts of {sentences} sentences; use at least 1")
        return self.parts(-(-len(self.ids) // sentences))

    def parts(self, number: int) -> list[Batch]:
        """Return `number` parts as `split` does; raises `ValueError` for more than there are sentences."""
        rows, width = self.ids.shape
        if number <= 1:
            return [self]
        if number > rows:
            raise ValueError(f"{number} parts of {rows} sentences")
        starts = [rows * part // number for part in range(number + 1)]
        if self.single:
            cuts = starts
        else:
            # The index is ascending, so one look at the device serves all parts.
            edges = torch.tensor([width * start for start in starts], device=self.index.device)
            cuts = torch.searchsorted(self.index, edges).tolist()
        return [
            replace(
                self,
                ids=self.ids[start:stop],
                index=self.index[low:high] if self.single else self.index[low:high] - start * width,
                targets=self.targets[low:high],
                lengths=self.lengths[start:stop],
                rows=self.rows[start:stop],
            )
            for (start, stop), (low, high) in zip(pairwise(starts), pairwise(cuts), strict=True)
        ]
