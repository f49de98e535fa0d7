"""The linear probe: the accuracy of a linear head on a fixed representation.

    features φ(x) [F]  →  standardised  →  z = (R φ, 1)  →  softmax(W z)

R [K, F] is a random projection (`raysweep.downstream.projection`).  W is trained on the cross-entropy of n
labels, and the accuracy is measured on other sentences.  Each seed draws its own R.

Source: Liu, Xie, Li and Ma, "Same pre-training loss, better downstream", ICML 2023, appendix A.5: AdamW with
learning rate 1e-3 for 100 epochs on 0.1M labels, 5 seeds; K = 512, or no projection.  `Convex` finds the
minimum of the penalised cross-entropy itself (`raysweep.downstream.logistic`), and knows how near it is.

All seeds, layers, tasks and training sets share one pass over the features.  Training sets are nested: n
labels are the first n of any larger number.  `Convex` solves all heads together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raysweep.downstream.adamw import AdamW, train_heads
from raysweep.downstream.lbfgs import solve
from raysweep.downstream.logistic import Inputs, Objective, Problem, lacking_classes
from raysweep.downstream.online_code import code_length, portions
from raysweep.downstream.projection import Chunk, Projection, gather
from raysweep.errors import DataError

__all__ = ["AdamW", "Chunk", "Convex", "ProbeResult", "linear_probe"]

_TOLERANCE = 0.03  # nats, of the least objective that AdamW is compared with
_WHOLE = 8192  # sentences from which on the tolerance holds as it is
_ROWS = 1024  # test sentences whose scores are in memory at once


@dataclass(frozen=True, kw_only=True)
class Convex:
    """The minimum of the cross-entropy with an L2 penalty, to within `tolerance` nats for a label.

    A training set of n < 8,192 sentences is solved to within n / 8,192 of that.  The bound that is certain is
    as loose as n is large, so this asks the same slope of all objectives: with one bound for all, heads of
    few sentences would stay far from their minimum.

    `l2` is 1 / variance of a Gaussian prior on every weight, and 1 / C of scikit-learn.  Of several, the one
    with the least cross-entropy on the sentences that choose is taken, for each head on its own; the head is
    then trained on all sentences.
    """

    l2: tuple[float, ...] = (1.0,)
    tolerance: float = 0.03

    def near(self, rows: int) -> float:
        """Return how near to the least objective a head of `rows` sentences is solved, in nats a label."""
        return self.tolerance * min(1.0, rows / _WHOLE)


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Predictions of a task's heads on n test sentences [L, B, S, n] and their labels [n].

    L counts layers, B sizes of the training set, S seeds.  `gap` [L, B, S] is how far, in nats for a label,
    the head's objective is at most from the least one, and `l2` [L, B, S] the objective's penalty; for
    `AdamW`, which decays weights otherwise, it is 1.  Where the penalty was chosen, `gap` is the largest of
    the head and of those that it was chosen among.  `code_length` [L, S] is that of the labels of the
    largest training set, in nats; None where it was not asked for.  All seeds share the test set, and
    `most_frequent` is the most frequent class of the largest training set.
    """

    predicted: Tensor
    labels: Tensor
    gap: Tensor
    l2: Tensor
    code_length: Tensor | None
    most_frequent: int

    @property
    def n(self) -> int:
        """The number of test sentences."""
        return len(self.labels)

    @property
    def accuracy(self) -> Tensor:
        """Accuracies [L, B, S], float64."""
        return (self.predicted == self.labels).double().mean(dim=3)

    @property
    def majority(self) -> float:
        """The accuracy of answering the most frequent class to all test sentences."""
        return (self.labels == self.most_frequent).double().mean().item()

    @property
    def sentence_error(self) -> Tensor:
        """Standard error over test sentences of the mean accuracy of all seeds [L, B], float64.

        It is nan for a single sentence.
        """
        if self.n < 2:
            return torch.full(self.predicted.shape[:2], torch.nan, dtype=torch.float64)
        right = (self.predicted == self.labels).double().mean(dim=2)
        return right.std(dim=2) / self.n**0.5


def linear_probe(
    train: Sequence[Iterable[Chunk]],
    test: Iterable[Chunk],
    classes: Mapping[str, int],
    *,
    sizes: Sequence[int],
    solver: AdamW | Convex,
    seeds: int = 5,
    seed: int = 0,
    projection: int | None = 512,
    standardize: bool = True,
    statistics: Tensor | None = None,
    code: bool = False,
) -> dict[str, ProbeResult]:
    """Train linear heads on the first `sizes` training sentences, for each task of `classes` and each seed.

    `classes` are the tasks' numbers of classes.  `train` is one training set for all seeds, or one for each,
    of as many sentences as the largest size.  With `code`, the online code of its labels is measured too.

    Chunks are read once.  Memory: the inputs of all training sentences, 4 · layers · seeds · sentences ·
    (projection + 1) bytes, and as much again for the least objective.  Without a projection and with one
    training set, seeds have the same inputs.  One layer then has them once for all seeds, and so does the
    least objective with `AdamW`.
    Features are standardised by the mean and standard deviation of `statistics`, the features [n, F] or
    [n, L, F] of some sentences, or of the first training chunk where None is given.  Take the same few
    thousand sentences whatever the sizes are, so that a size has the same heads alone and in a curve.

    Raises `DataError` where there are other numbers of sentences, `RunFailedError` where features are not
    finite.
    """
    tasks, counts = list(classes), list(classes.values())
    ends = portions(max(sizes)) if code else []
    every = sorted({*sizes, *ends})
    if statistics is not None and statistics.ndim == 2:
        statistics = statistics[:, None]
    project = Projection(
        seeds=seeds, seed=seed, width=projection, standardize=standardize, statistics=statistics
    )
    inputs = gather(train, tasks, project, sentences=max(sizes))
    if isinstance(solver, AdamW):
        shared = projection is None and len(train) == 1
        heads = _by_adamw(inputs, counts, every, solver, seeds=seeds, seed=seed, shared=shared)
    else:
        heads = _by_convex(inputs, counts, every, solver)
    at = [every.index(size) for size in sizes]
    predicted, labels = _predictions(test, tasks, counts, project, heads.weights[:, at])
    results = {}
    for k, task in enumerate(tasks):
        lengths = None
        if code:
            before = [heads.weights[:, every.index(end), k] for end in ends[:-1]]
            lengths = code_length(inputs, k, counts[k], before, ends).view(-1, seeds).cpu()
        gap, l2 = (
            part[:, at, k].view(-1, seeds, len(at)).transpose(1, 2).cpu() for part in (heads.gap, heads.l2)
        )
        results[task] = ProbeResult(
            predicted=predicted[:, :, k].unflatten(0, (-1, seeds)).transpose(1, 2),
            labels=labels[:, k],
            gap=gap,
            l2=l2,
            code_length=lengths,
            most_frequent=int(inputs.y[0, :, k].bincount().argmax()),
        )
    return results


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """Heads [G, sizes, tasks, C, K+1] of G = layers · seeds groups; gaps and penalties [G, sizes, tasks]."""

    weights: Tensor
    gap: Tensor
    l2: Tensor


def _problems(classes: Sequence[int], sizes: Sequence[int]) -> list[Problem]:
    """Return the problem of every task on the first rows of every size, the largest size first."""
    return [
        Problem(task=task, classes=count, rows=size)
        for size in sorted(sizes, reverse=True)
        for task, count in enumerate(classes)
    ]


def _by_convex(inputs: Inputs, classes: Sequence[int], sizes: Sequence[int], solver: Convex) -> _Heads:
    """Return the heads of least objective; `sizes` ascend."""
    problems = _problems(classes, sizes)
    l2 = torch.tensor(solver.l2, dtype=torch.float64, device=inputs.x.device)
    shape = (len(inputs.x), len(problems))
    tried = torch.zeros(shape, dtype=torch.float64, device=l2.device)
    l2, tried = (l2.expand(shape), tried) if len(l2) == 1 else _chosen(inputs, problems, l2, solver)
    found = solve(replace(inputs, counts=None), problems, l2, tolerance=_near(solver, problems))
    heads, gap, l2 = (
        part.unflatten(1, (len(sizes), len(classes))).flip(1)
        for part in (found.heads, torch.maximum(found.gap, tried), l2)
    )
    return _Heads(weights=heads, gap=gap, l2=l2)


def _near(solver: Convex, problems: Sequence[Problem]) -> Tensor:
    return torch.tensor([solver.near(problem.rows) for problem in problems], dtype=torch.float64)


def _chosen(inputs: Inputs, problems: Sequence[Problem], l2: Tensor, solver: Convex) -> tuple[Tensor, Tensor]:
    """Return the penalties [G, P] with the least cross-entropy on the sentences that choose.

    The second result [G, P] is the largest gap of the heads that were compared.

    Raises `DataError` where these are all sentences of a problem, or none.
    """
    if inputs.counts is None:
        raise DataError("the linear probe was not given sentences on which to choose l2")
    fewest = problems[-1].rows
    share = inputs.counts[:, :fewest].mean(dim=1)
    if not bool(((share > 0) & (share < 1)).all()):
        raise DataError(
            f"among {fewest} training sentences, none or all choose l2; train on more, or give one l2"
        )
    candidates = [problem for problem in problems for _ in l2]
    groups, count = len(inputs.x), len(problems)
    tried = solve(inputs, candidates, l2.repeat(groups, count), tolerance=_near(solver, candidates))
    choosing = replace(inputs, counts=1 - inputs.counts)
    # Without a penalty to speak of, the objective is the cross-entropy.
    loss, _ = Objective(choosing, candidates, torch.full((groups, len(candidates)), 1e-30))(tried.heads)
    by_penalty = (count, len(l2))
    return l2[loss.unflatten(1, by_penalty).argmin(dim=2)], tried.gap.unflatten(1, by_penalty).amax(dim=2)


def _by_adamw(
    inputs: Inputs,
    classes: Sequence[int],
    sizes: Sequence[int],
    solver: AdamW,
    *,
    seeds: int,
    seed: int,
    shared: bool,
) -> _Heads:
    """Return AdamW's heads; `sizes` ascend.  The gap is to the least objective with a penalty of l2 = 1.

    `shared` says that all seeds of a layer have the same inputs, and so the same least objective.
    """
    inputs = replace(inputs, counts=None)
    weights = torch.stack(
        [train_heads(inputs.first(size), classes, solver, seeds=seeds, seed=seed) for size in sizes], dim=1
    )
    shape = (len(sizes), len(classes))
    problems = _problems(classes, sizes)
    l2 = torch.ones(len(inputs.x), len(problems))
    value, _ = Objective(inputs, problems, l2)(weights.flip(1).flatten(1, 2))
    # The groups of a layer's seeds stand together.  Inputs that they share are not projected: no span.
    each = seeds if shared else 1
    once = replace(inputs, x=inputs.x[::each], y=inputs.y[::each])
    least = solve(once, problems, l2[::each], tolerance=_TOLERANCE)
    below = (least.gap - least.value).repeat_interleave(each, dim=0)
    gap = (value + below).unflatten(1, shape).flip(1)
    return _Heads(weights=weights, gap=gap, l2=l2.unflatten(1, shape))


def _predictions(
    test: Iterable[Chunk], tasks: Sequence[str], classes: Sequence[int], project: Projection, heads: Tensor
) -> tuple[Tensor, Tensor]:
    """Return predictions [G, sizes, tasks, n] of heads [G, sizes, tasks, C, K+1], and labels [n, tasks].

    Raises `DataError` where there are no sentences.
    """
    shape = heads.shape[1:4]
    lacking = lacking_classes(classes, heads.device)
    weights, bias = project.unprojected(heads.flatten(1, 3))
    predicted, labels = [], []
    for chunk in test:
        for features in chunk.layers.split(_ROWS):
            scores = torch.baddbmm(bias, project.standardised(features), weights).unflatten(2, (-1, *shape))
            if lacking is not None:
                scores.masked_fill_(lacking, -torch.inf)
            predicted.append(scores.argmax(dim=5).to(torch.int16).cpu())
        labels.append(torch.stack([chunk.labels[task].cpu() for task in tasks], dim=1))
    if not labels:
        raise DataError("the linear probe was given no test sentences")
    # From [L, n, S, sizes, tasks].
    return torch.cat(predicted, dim=1).permute(0, 2, 3, 4, 1).flatten(0, 1), torch.cat(labels)
