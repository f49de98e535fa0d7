"""The linear probe: the accuracy of a linear head on a fixed representation.

    features φ(x) [F]  →  standardised  →  z = R φ [K], R Gaussian  →  softmax(W z + b)

R [K, F] has independent N(0, 1/F) entries.  AdamW trains W and b from zero on the cross-entropy, and the
accuracy is measured on other sentences.  Each seed draws its own R and its own order of the training set.
Source: Liu, Xie, Li and Ma, "Same pre-training loss, better downstream", ICML 2023, appendix A.5: K = 512,
learning rate 1e-3, 100 epochs, 5 seeds.

All seeds and tasks share one pass over the features and train as one problem: a batched product over seeds,
with the tasks' heads side by side.  AdamW updates each weight independently, so every head takes exactly the
steps that it would take alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from raysweep import seeding
from raysweep.errors import DataError, RunFailedError

#: Features of some sentences [n, F] and their labels [n] by task.
Chunk = tuple[Tensor, Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Test accuracies [seeds] of one task, float64, and the accuracy of the most frequent training class.

    All seeds share the test set of `n` sentences, so their spread comes from projection and order alone.
    """

    accuracy: Tensor
    majority: float
    n: int

    @property
    def mean(self) -> float:
        """Mean accuracy over seeds."""
        return self.accuracy.mean().item()

    @property
    def std(self) -> float:
        """Standard deviation over seeds; NaN for one seed."""
        return self.accuracy.std().item() if len(self.accuracy) > 1 else float("nan")


def linear_probe(
    train: Iterable[Chunk],
    test: Iterable[Chunk],
    classes: Mapping[str, int],
    *,
    seeds: int = 5,
    seed: int = 0,
    projection: int = 512,
    epochs: int = 100,
    learning_rate: float = 1e-3,
    batch_size: int = 256,
    weight_decay: float = 0.01,
    standardize: bool = True,
) -> dict[str, ProbeResult]:
    """Train a linear head for each of `seeds` seeds and each task of `classes` (its number of classes).

    Cost: 4 · seeds · epochs · sentences · projection · Σclasses floating-point operations, nearly all in
    matrix products.  Batches of 256 run these at the full speed of a core; smaller batches take more steps,
    larger ones save nothing.

    Chunks are read once.  Memory: the projections of the training sentences, 4 · seeds · sentences ·
    projection bytes.
    Features are standardised by the mean and standard deviation of the first training chunk, so make it a
    few thousand sentences; features that do not vary there are dropped.

    Raises `DataError` where there are no sentences, `RunFailedError` where features are not finite.
    """
    tasks = list(classes)
    project = _Projection(seeds, seed, projection, standardize)
    x, y = _gather(train, tasks, project)
    weight, bias = _train_heads(
        x,
        y,
        [classes[task] for task in tasks],
        seed=seed,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        weight_decay=weight_decay,
    )
    correct = {task: torch.zeros(seeds, dtype=torch.int64, device=x.device) for task in tasks}
    majority = {task: y[:, k].bincount().argmax() for k, task in enumerate(tasks)}
    as_majority = dict.fromkeys(tasks, 0)
    n = 0
    for features, by_task in test:
        scores = torch.baddbmm(bias, project(features), weight.transpose(1, 2))
        parts = scores.split([classes[task] for task in tasks], dim=2)
        for task, part in zip(tasks, parts, strict=True):
            label = by_task[task].to(part.device)
            correct[task] += (part.argmax(dim=2) == label).sum(dim=1)
            as_majority[task] += int((label == majority[task]).sum())
        n += len(features)
    if n == 0:
        raise DataError("the linear probe was given no test sentences")
    return {
        task: ProbeResult(accuracy=correct[task].cpu().double() / n, majority=as_majority[task] / n, n=n)
        for task in tasks
    }


class _Projection:
    """Standardises and projects features [n, F] to [seeds, n, K], with the statistics of the first call."""

    def __init__(self, seeds: int, seed: int, width: int, standardize: bool) -> None:
        self.seeds, self.seed, self.width, self.standardize = seeds, seed, width, standardize
        self._matrix: Tensor | None = None
        self._offset: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        features = features.to(torch.float32)
        if not bool(features.isfinite().all()):
            raise RunFailedError(
                "the representations are not finite, so nothing can be read off them; "
                "look at the training loss, and lower the learning rate"
            )
        if self._matrix is None or self._offset is None:
            self._matrix, self._offset = self._fit(features)
        return torch.baddbmm(self._offset, features.expand(self.seeds, -1, -1), self._matrix)

    def _fit(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return matrices [seeds, F, K] and offsets [seeds, 1, K] that standardise and project at once."""
        size = features.shape[1]
        matrix = torch.stack(
            [
                torch.randn(size, self.width, generator=seeding.generator(self.seed, "projection", s))
                for s in range(self.seeds)
            ]
        ).to(features.device)
        matrix *= size**-0.5
        if not self.standardize:
            return matrix, matrix.new_zeros(self.seeds, 1, self.width)
        mean = features.double().mean(dim=0)
        spread = features.double().sub_(mean).square_().mean(dim=0).sqrt_()
        # A feature that varies by less than a millionth of the others is rounding; do not amplify it.
        varies = spread > 1e-6 * spread.square().mean().sqrt()
        matrix *= torch.where(varies, 1 / spread, 0.0).to(matrix)[None, :, None]
        return matrix, -(mean.to(matrix) @ matrix)[:, None, :]


def _gather(chunks: Iterable[Chunk], tasks: list[str], project: _Projection) -> tuple[Tensor, Tensor]:
    """Return projected features [seeds, n, K] and labels [n, tasks] of all chunks."""
    projected, labels = [], []
    for features, by_task in chunks:
        projected.append(project(features))
        labels.append(torch.stack([by_task[task] for task in tasks], dim=1).to(features.device))
    if not projected:
        raise DataError("the linear probe was given no training sentences")
    return torch.cat(projected, dim=1), torch.cat(labels)


def _train_heads(
    x: Tensor,
    y: Tensor,
    classes: list[int],
    *,
    seed: int,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    weight_decay: float,
) -> tuple[Tensor, Tensor]:
    """Train on x [seeds, n, K], y [n, tasks]; return weights [seeds, ΣC, K] and biases [seeds, 1, ΣC]."""
    seeds, n, width = x.shape
    weight = x.new_zeros(seeds, sum(classes), width)
    bias = x.new_zeros(seeds, 1, sum(classes))
    optimizer = torch.optim.AdamW([weight, bias], lr=learning_rate, weight_decay=weight_decay, fused=True)
    starts = torch.tensor([sum(classes[:k]) for k in range(len(classes))], device=y.device)
    columns = y + starts
    rows = x.view(seeds * n, width)
    generators = [seeding.generator(seed, "probe-order", s) for s in range(seeds)]
    for _ in range(epochs):
        order = torch.stack([torch.randperm(n, generator=g) for g in generators]).to(x.device)
        for pick in order.split(batch_size, dim=1):
            offsets = torch.arange(seeds, device=x.device)[:, None] * n
            batch = rows.index_select(0, (pick + offsets).flatten()).view(seeds, -1, width)
            # The gradient of the mean cross-entropy in the logits is (softmax − one-hot) / batch.
            scores = torch.baddbmm(bias, batch, weight.transpose(1, 2))
            slope = torch.cat([part.softmax(dim=2) for part in scores.split(classes, dim=2)], dim=2)
            slope.scatter_add_(2, columns[pick], slope.new_full((), -1.0).expand(*pick.shape, len(classes)))
            slope /= pick.shape[1]
            weight.grad = slope.transpose(1, 2) @ batch
            bias.grad = slope.sum(dim=1, keepdim=True)
            optimizer.step()
    return weight, bias
