"""Control tasks: random labels that only a probe's own capacity can learn.

Hewitt and Liang ("Designing and interpreting probes with control tasks", EMNLP 2019) give every word a random
label, drawn from the distribution of the task's labels.  Test sentences have the same words, so a probe can
learn these labels by heart, and nothing else about them can be learned.  The selectivity of a probe is its
accuracy on the task less that on the control task.

    c(word) ~ shares of the task's labels,    selectivity = accuracy(y) - accuracy(c)

Our labels belong to sentences.  The control label of a sentence is the one of its first word.  The labels of
words are drawn once for all seeds of a probe, so the spread between its seeds has no part of that draw.

>>> control = ControlTask(words=6, classes=2, seed=0, task="parity")
>>> first, second, third = control.labels(torch.tensor([[4, 1], [2, 3], [4, 0]]), torch.tensor([0, 1, 1]))
>>> bool(first == third)
True
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysweep import seeding


class ControlTask:
    """Control labels of sentences; the first labels that it meets are the distribution to draw from."""

    def __init__(self, *, words: int, classes: int, seed: int, task: str) -> None:
        self.words, self.classes = words, classes
        self._generator = seeding.generator(seed, "control", task)
        self._of_word: Tensor | None = None

    def labels(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return control labels [n] of sentences [n, T] with true `labels` [n], int64."""
        if self._of_word is None:
            shares = torch.bincount(labels.cpu(), minlength=self.classes).double()
            self._of_word = torch.multinomial(shares, self.words, replacement=True, generator=self._generator)
        return self._of_word.to(ids.device)[ids[:, 0]]
