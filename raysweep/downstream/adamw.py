"""Heads of a linear probe by AdamW on minibatches, the recipe of the paper.

    m ← 0.9 m + 0.1 g,    v ← 0.999 v + 0.001 g²,    W ← (1 - ηλ) W - η m̂ / (√v̂ + 1e-8)

with g the gradient of a batch's mean cross-entropy, η the learning rate, λ the weight decay, and m̂, v̂ without
their bias towards zero (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019).

Seeds and tasks train as one problem.  AdamW updates each weight independently, so every head takes exactly
the steps that it would take alone, up to rounding.

A random projection of few features gives many inputs z of low rank: z = A u, with the r principal axes A
[K+1, r].  Then scores W z are (W A) u, and the gradient by W is the one by W A, times Aᵀ.  A step on b
sentences for R classes takes 4 R r (K+1 + b) operations in place of 4 R b (K+1).

>>> inputs = Inputs(x=torch.tensor([[[2.0, 1.0], [-2.0, 1.0]]]), y=torch.tensor([[[0], [1]]]))
>>> heads = train_heads(inputs, [2], AdamW(epochs=20, steps=0), seeds=1, seed=0)
>>> (inputs.x @ heads[:, 0].mT).argmax(dim=2).tolist()
[[0, 1]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raysweep import seeding
from raysweep.algorithms import eager
from raysweep.downstream.lbfgs import principal_axes
from raysweep.downstream.logistic import Columns, Inputs, Problem


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """The settings of AdamW: `epochs` over the training set, and more of them up to at least `steps` steps.

    An epoch of few sentences is few steps, and each moves a weight by the learning rate at most.
    """

    epochs: int = 100
    steps: int = 10_000
    learning_rate: float = 1e-3
    batch_size: int = 256
    weight_decay: float = 0.01

    def epochs_of(self, sentences: int) -> int:
        """Return the number of epochs on so many sentences.

        >>> AdamW().epochs_of(100_000), AdamW().epochs_of(512)
        (100, 5000)
        """
        return max(self.epochs, math.ceil(self.steps / math.ceil(sentences / self.batch_size)))


def train_heads(inputs: Inputs, classes: Sequence[int], settings: AdamW, *, seeds: int, seed: int) -> Tensor:
    """Return heads [G, tasks, C, K+1] that start from zero, on inputs of G groups: `seeds` for each layer.

    Each seed has its own order of the sentences.
    """
    groups, n, width = inputs.x.shape
    problems = [Problem(task=task, classes=count, rows=n) for task, count in enumerate(classes)]
    columns = Columns(problems, inputs.x.device)
    rows = inputs.x.new_zeros(groups, len(columns.places), width)
    optimizer = eager.AdamW([rows], lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    axes, given, batch = None, inputs.x, min(n, settings.batch_size)
    if inputs.span is not None and min(n, inputs.span.shape[2]) * (batch + width) < batch * width:
        axes, given = principal_axes(inputs)
    room = given.new_empty(groups, batch, given.shape[2])
    generators = [seeding.generator(seed, "probe-order", s) for s in range(seeds)]
    for _ in range(settings.epochs_of(n)):
        order = torch.stack([torch.randperm(n, generator=g) for g in generators]).to(rows.device)
        for pick in order.repeat(groups // seeds, 1).split(batch, dim=1):
            x, y = room[:, : pick.shape[1]], inputs.y.gather(1, pick[:, :, None].expand(-1, -1, len(classes)))
            # One group at a time: inputs that seeds share are a view, which must not be copied.
            for part, some, to in zip(given, pick, x, strict=True):
                torch.index_select(part, 0, some, out=to)
            scores = (rows if axes is None else rows @ axes) @ x.mT
            columns.errors(scores, y)
            slope = (scores @ x).div_(pick.shape[1])
            rows.grad = slope if axes is None else slope @ axes.mT
            optimizer.step()
    heads = rows.new_zeros(groups, len(classes), max(classes), width)
    heads.flatten(1, 2)[:, columns.places] = rows
    return heads
