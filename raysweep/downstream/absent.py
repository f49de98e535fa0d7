"""Classes that no training row has: one class stands for all of them (`raysweep.downstream.logistic`).

The classes of a task are ranked in the order in which the rows bring them.  So the first n rows have the
classes of the first k ranks, for any n.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raysweep.downstream.logistic import Problem


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The `rank` [C] of each class of a task, and the `first` row [C] that has it in any group.

    The first row of a class that no row has is the number of rows.

    >>> ranking = Ranking.of(torch.tensor([[3, 3, 1, 0]]), 5)
    >>> ranking.rank.tolist(), ranking.first.tolist()
    ([2, 1, 3, 0, 4], [3, 2, 4, 0, 4])
    >>> ranking.merged(Problem(task=0, classes=5, rows=3))
    Problem(task=0, classes=3, rows=3, copies=3)
    """

    rank: Tensor
    first: Tensor

    @classmethod
    def of(cls, y: Tensor, classes: int) -> Ranking:
        """Return the ranking of the classes of labels y [G, n]."""
        rows = torch.arange(y.shape[1], device=y.device).expand_as(y)
        first = torch.full((classes,), y.shape[1], device=y.device)
        first.scatter_reduce_(0, y.flatten(), rows.flatten(), "amin")
        return cls(rank=first.argsort(stable=True).argsort(), first=first)

    def merged(self, problem: Problem) -> Problem:
        """Return the problem of ranks as labels, whose last class stands for all absent ones."""
        present = int((self.first < problem.rows).sum())
        absent = problem.classes - present
        return replace(problem, classes=present + (absent > 0), copies=max(absent, 1))

    def of_all_classes(self, heads: Tensor, merged: Problem) -> Tensor:
        """Return heads [G, C, K+1] of all classes, from those of the merged problem [G, .., K+1]."""
        last = merged.classes - 1
        share = torch.ones(last + 1, 1, device=heads.device)
        share[last] = merged.copies**-0.5
        return (heads[:, : last + 1] * share)[:, self.rank.clamp(max=last)]
