"""The Hessian of a logistic regression as if it were diagonal in turned classes and inputs.

    ∇²F = E[S ⊗ z zᵀ] + λ  ≈  (U ⊗ I) diag(d) (U ⊗ I)ᵀ,    d_kj = E[(u_kᵀ S u_k) z_j²] + λ

with S = diag(p) - p pᵀ of the probabilities p of a row, and U the eigenvectors of E[S].  The inputs z are in
their principal axes already.  So d is the true Hessian's diagonal in these coordinates.

Source: George, Laurent, Bouthillier, Ballas and Vincent, "Fast approximate natural gradient descent in a
Kronecker-factored eigenbasis", NeurIPS 2018.

Means are over the first 1,024 rows of each problem, which serves a preconditioner as well as all rows do.

>>> from raysweep.downstream.logistic import Inputs, Problem
>>> inputs = Inputs(x=torch.tensor([[[2.0, 1.0], [-2.0, 1.0]]]), y=torch.tensor([[[0], [1]]]))
>>> objective = Objective(inputs, [Problem(task=0, classes=2, rows=2)], torch.ones(1, 1))
>>> slope = torch.tensor([[[[1.0, 0.0], [-1.0, 0.0]]]])
>>> found = Curvature.of(objective, objective.zeros()).solve(slope)  # d = 2² / 2 + 1 / 2
>>> [round(weight, 3) for weight in found.flatten().tolist()]
[0.4, 0.0, -0.4, 0.0]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raysweep.downstream.logistic import Objective

_SAMPLE = 1024


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """Directions of the classes `turn` [G, P, C, C], and the `inverse` 1/d [G, P, C, K+1]."""

    turn: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, objective: Objective, heads: Tensor) -> Curvature:
        """Return the curvature of objectives at heads [G, P, C, K+1]."""
        inputs, columns = objective.inputs, objective.columns
        x = inputs.x[:, :_SAMPLE]
        squares = x.square()
        counts = x.new_ones(x.shape[:2]) if inputs.counts is None else inputs.counts[:, :_SAMPLE]
        scores = columns.scores(x, heads)
        # Rows of classes that a problem lacks stay as they are.
        turn = torch.eye(objective.classes).to(heads).repeat(*heads.shape[:2], 1, 1)
        bend = torch.ones_like(heads)
        for k, (problem, span) in enumerate(zip(objective.problems, columns.spans, strict=True)):
            rows, own = slice(0, problem.rows), slice(0, problem.classes)
            share = counts[:, None, rows] / counts[:, None, rows].sum(dim=2, keepdim=True).clamp_min(1)
            p = scores[:, span, rows].softmax(dim=1)
            # One row that stands for m classes is kept as √m w.
            half = p / columns.roots[span]
            whole = half / columns.roots[span]
            mean = torch.diag_embed((whole * share).sum(dim=2)) - (half * share) @ half.mT
            u = torch.linalg.eigh(mean).eigenvectors
            bends = u.square().mT @ whole - (u.mT @ half).square()
            turn[:, k, own, own] = u
            bend[:, k, own] = (bends.clamp_min_(0) * share) @ squares[:, rows]
        return cls(turn=turn, inverse=1 / (bend + objective.penalty.to(heads)[:, :, None, None]))

    def solve(self, slopes: Tensor) -> Tensor:
        """Return the inverse Hessian times slopes [G, P, C, K+1]."""
        return self.turn @ (self.inverse * (self.turn.mT @ slopes))

    def only(self, kept: Tensor, classes: int) -> Curvature:
        """Return the curvature of the problems that `kept` [P] marks, with so many classes at most."""
        return Curvature(turn=self.turn[:, kept, :classes, :classes], inverse=self.inverse[:, kept, :classes])
