"""Linear probes one head at a time: a training loop in torch, and scikit-learn's LogisticRegression."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep import seeding
from raysweep.bench.peers import peer
from raysweep.downstream.adamw import AdamW


def standardised(train: Tensor, test: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return features [n, F] of both sets by mean and deviation of the first training sentences."""
    mean = train[:first].double().mean(dim=0)
    spread = train[:first].double().std(dim=0, correction=0)
    factor = torch.where(spread > 1e-6 * spread.square().mean().sqrt(), 1 / spread, 0.0).float()
    return (train - mean.float()) * factor, (test - mean.float()) * factor


def projected(features: Tensor, width: int, *, seed: int, of: int) -> Tensor:
    """Return inputs [n, width + 1] of features [n, F] by the projection of one seed."""
    size = features.shape[1]
    matrix = torch.randn(size, width, generator=seeding.generator(seed, "projection", of)) * size**-0.5
    inputs = features @ matrix
    return torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)


def trained(x: Tensor, y: Tensor, classes: int, settings: AdamW, *, seed: int, of: int) -> nn.Linear:
    """Return a head that AdamW trains on inputs x [n, K+1] with labels y [n], in the order of one seed."""
    head = nn.Linear(x.shape[1], classes, bias=False)
    nn.init.zeros_(head.weight)
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    generator = seeding.generator(seed, "probe-order", of)
    for _ in range(settings.epochs_of(len(x))):
        for rows in torch.randperm(len(x), generator=generator).split(settings.batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(head(x[rows]), y[rows]))
            optimizer.step()
    return head


@torch.no_grad()
def answers(head: nn.Linear, x: Tensor) -> Tensor:
    """Return the predictions [n] of a head on inputs x [n, K+1]."""
    return head(x).argmax(dim=1)


def scikit_learn(x: Tensor, y: Tensor, test: Tensor, sizes: list[int]) -> Iterator[np.ndarray]:
    """Yield the predictions [n] on `test` of a LogisticRegression for each size of the training set.

    Its minimum is that of `raysweep.downstream.logistic` with l2 = 1 where there are more than two classes.
    """
    linear_model = peer("sklearn.linear_model")
    for size in sizes:
        model = linear_model.LogisticRegression(C=1.0, fit_intercept=False, max_iter=1000)
        yield model.fit(x[:size].numpy(), y[:size].numpy()).predict(test.numpy())
