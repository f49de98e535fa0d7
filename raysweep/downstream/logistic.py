"""Logistic regressions with an L2 penalty: many objectives over shared inputs, computed together.

    F(W) = 1/n Σ_i -log softmax(W z_i)[y_i] + λ/2 ‖W‖²,    λ = l2 / n,    z_i = (x_i, 1)

The penalty is that of a Gaussian prior with variance 1 / l2 on every weight, the bias among them: the same
prior for any number n of labels.  scikit-learn's LogisticRegression with C = 1 / l2 and without an intercept
has the same minimum on inputs z.

F is λ-strongly convex, so a head is certain to be within

    gap(W) = ‖∇F(W)‖² / (2λ)  ≥  F(W) - min F

of the least objective (Boyd and Vandenberghe, "Convex optimization", 2004, section 9.1.2).  It is also the
duality gap, with softmax(W z_i) as the dual point.  It is a safe bound, far above the distance itself: with a
bound of 0.1 nats we have found distances of 0.0001 to 0.003.

Inputs are x [G, n, K+1] of G groups, such as seeds; their last column is one.  A problem is a column of
labels and a number of leading rows.  Rows are read in blocks, and each block is multiplied once with the
heads of all problems that it belongs to.

A pass over the rows of problems with R classes together costs 4 G n R (K+1) operations, half of them for
scores and half for the gradient.  It reads x twice, 8 G n (K+1) bytes, and has at most 12 MiB of scores at
once.

No row has a label of an absent class.  F is convex and does not change where absent classes change places,
so their heads are equal at the minimum.  One class then stands for m of them, with a score of w z + ln m and
a penalty of m ‖w‖².  Its head is kept as √m w, for which penalty and gap are those of any other head.

>>> inputs = Inputs(x=torch.ones(1, 4, 1), y=torch.tensor([[[0], [0], [0], [1]]]))
>>> objective = Objective(inputs, [Problem(task=0, classes=2, rows=4)], torch.ones(1, 1))
>>> value, gradient = objective(objective.zeros())
>>> round(value.item(), 3), [round(slope, 3) for slope in gradient.flatten().tolist()]
(0.693, [-0.25, 0.25])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

#: Scores that are in memory at once.
_SCORES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The first `rows` rows with the labels 0 .. classes-1 in column `task`.

    The last class stands for `copies` classes that no row has, if there is more than one of them.
    """

    task: int
    classes: int
    rows: int
    copies: int = 1


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs x [G, n, K+1], labels y int64 [G, n, tasks], and the rows that count, `counts` [G, n] or all.

    Rows of x are weighted sums of the columns of `span` [G, K+1, r], if these are known and fewer than K+1.
    """

    x: Tensor
    y: Tensor
    counts: Tensor | None = None
    span: Tensor | None = None

    def first(self, rows: int) -> Inputs:
        """Return the first rows alone."""
        counts = None if self.counts is None else self.counts[:, :rows]
        return replace(self, x=self.x[:, :rows], y=self.y[:, :rows], counts=counts)


class Columns:
    """The scores of problems below each other: a row for each class of each problem, without padding."""

    def __init__(self, problems: Sequence[Problem], device: torch.device) -> None:
        ends = accumulate(problem.classes for problem in problems)
        #: The rows of each problem.
        self.spans = [slice(end - p.classes, end) for p, end in zip(problems, ends, strict=True)]
        most = max(problem.classes for problem in problems)
        rows = [k * most + torch.arange(problem.classes) for k, problem in enumerate(problems)]
        #: The place of each row among heads that are padded to the most classes.
        self.places = torch.cat(rows).to(device)
        copies = torch.ones(self.spans[-1].stop, 1)
        for problem, span in zip(problems, self.spans, strict=True):
            copies[span.stop - 1] = problem.copies
        #: √m and ln m of each row.
        self.roots, self.logs = copies.sqrt().to(device), copies.log().to(device)

    def scores(self, x: Tensor, heads: Tensor) -> Tensor:
        """Return the scores [G, R, r] of inputs x [G, r, K+1] under heads [G, P, C, K+1] of P problems."""
        end = self.spans[heads.shape[1] - 1].stop
        rows = heads.flatten(1, 2)[:, self.places[:end]] / self.roots[:end]
        return torch.baddbmm(self.logs[:end], rows, x.mT)

    def loss_and_slope(
        self, x: Tensor, labels: Tensor, heads: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of -log p(label) over rows [G, P], float64, and its gradient [G, P, C, K+1].

        `x` are [G, r, K+1], `labels` [G, r, P], `heads` [G, P, C, K+1] of the first P problems, `counts`
        [G, r] the weights of rows.
        """
        slope = self.scores(x, heads)
        loss = self.errors(slope, labels, counts)
        gradient = torch.zeros_like(heads, memory_format=torch.contiguous_format)
        end = slope.shape[1]
        gradient.flatten(1, 2)[:, self.places[:end]] = (slope @ x) / self.roots[:end]
        return loss, gradient

    def errors(self, scores: Tensor, labels: Tensor, counts: Tensor | None = None) -> Tensor:
        """Turn scores [G, R, r] of the first P problems, in place, into the gradient of their losses.

        Returns the losses, sums of -log p(label) over rows [G, P], float64.  `labels` are [G, r, P], `counts`
        [G, r].
        """
        loss = torch.zeros(len(scores), labels.shape[2], dtype=torch.float64, device=scores.device)
        minus = scores.new_full((), -1.0).expand(len(scores), 1, scores.shape[2])
        for k, span in enumerate(self.spans[: labels.shape[2]]):
            part, label = scores[:, span].log_softmax(dim=1), labels[:, None, :, k]
            right = part.gather(1, label)
            part = part.exp_().scatter_add_(1, label, minus)
            if counts is not None:
                right *= counts[:, None]
                part *= counts[:, None]
            loss[:, k] = -right.sum(dim=(1, 2), dtype=torch.float64)
            scores[:, span] = part
        return loss


class Objective:
    """The objectives of problems, the ones with the most rows first, with penalties l2 [G, P].

    Heads are [G, P, C, K+1], where C is the largest number of classes.  The rows of classes that a problem
    lacks have zero gradient.
    """

    def __init__(self, inputs: Inputs, problems: Sequence[Problem], l2: Tensor) -> None:
        if list(problems) != sorted(problems, key=lambda problem: -problem.rows):
            raise ValueError("problems: put those with the most rows first")
        self.inputs, self.problems = inputs, list(problems)
        x = inputs.x
        self.classes = max(problem.classes for problem in problems)
        self.task = torch.tensor([problem.task for problem in problems], device=x.device)
        self.rows = self._rows()
        self.l2 = l2.to(self.rows).expand(len(x), -1)
        self.penalty = self.l2 / self.rows
        self.columns = Columns(problems, x.device)

    def only(self, kept: Tensor) -> Objective:
        """Return the objectives of the problems that `kept` [P] marks."""
        chosen = [problem for problem, keep in zip(self.problems, kept.tolist(), strict=True) if keep]
        return Objective(self.inputs, chosen, self.l2[:, kept])

    def zeros(self) -> Tensor:
        """Return heads that are zero."""
        x = self.inputs.x
        return x.new_zeros(len(x), len(self.problems), self.classes, x.shape[2])

    def blocks(self) -> Iterator[tuple[slice, int]]:
        """Yield slices of rows, and the number of problems that they belong to."""
        edges = sorted({0, *(problem.rows for problem in self.problems)})
        for low, high in pairwise(edges):
            active = sum(problem.rows >= high for problem in self.problems)
            size = max(64, _SCORES // (len(self.inputs.x) * self.columns.spans[active - 1].stop))
            for first in range(low, high, size):
                yield slice(first, min(first + size, high)), active

    def __call__(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Return F [G, P], float64, and its gradient [G, P, C, K+1]."""
        value, gradient = torch.zeros_like(self.penalty), torch.zeros_like(heads)
        for rows, active in self.blocks():
            labels = self.inputs.y[:, rows, self.task[:active]]
            counts = None if self.inputs.counts is None else self.inputs.counts[:, rows]
            loss, slope = self.columns.loss_and_slope(
                self.inputs.x[:, rows], labels, heads[:, :active], counts
            )
            value[:, :active] += loss
            gradient[:, :active] += slope
        value = value / self.rows + 0.5 * self.penalty * dot(heads, heads)
        gradient /= self.rows.to(heads)[:, :, None, None]
        return value, gradient.addcmul_(self.penalty.to(heads)[:, :, None, None], heads)

    def gap(self, gradient: Tensor) -> Tensor:
        """Return the bound on F - min F [G, P], float64, from the gradient."""
        return dot(gradient, gradient) / (2 * self.penalty)

    def _rows(self) -> Tensor:
        """Return the number of rows of each problem that count [G, P], float64."""
        x, counts = self.inputs.x, self.inputs.counts
        if counts is None:
            rows = torch.tensor([problem.rows for problem in self.problems], device=x.device)
            return rows.double().expand(len(x), -1)
        return torch.stack(
            [counts[:, : p.rows].sum(dim=1, dtype=torch.float64) for p in self.problems], dim=1
        )


def lacking_classes(classes: Sequence[int], device: torch.device) -> Tensor | None:
    """Return the classes [P, C] that problems lack among the most of any; None where none lacks any."""
    most = max(classes)
    if min(classes) == most:
        return None
    return torch.arange(most, device=device) >= torch.tensor(classes, device=device)[:, None]


def log_probs(x: Tensor, heads: Tensor) -> Tensor:
    """Return log-probabilities [G, r, C] of inputs x [G, r, K+1] under heads [G, C, K+1]."""
    return (x @ heads.mT).log_softmax(dim=2)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the products [G, P] of heads [G, P, C, K+1], float64."""
    return torch.linalg.vecdot(a.flatten(2), b.flatten(2)).double()
