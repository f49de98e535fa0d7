"""Hessian and Gauss-Newton matrix of a pool's loss as linear operators: products with vectors, no matrix.

    H = ∇²L,       G = (1/n) Σ_i J_iᵀ (diag p_i − p_i p_iᵀ) J_i          (raysweep.flatness.pool)

A product Hv is the gradient of ⟨∇L, v⟩; Gv is Jᵀ(diag p − ppᵀ)(Jv) with Jv by differentiating Jᵀu with
respect to u (Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 6, 1994;
Schraudolph, Neural Computation 14, 2002).  All is reverse mode, for which recurrent networks have kernels,
and whose graph can be kept: with `keep`, all products at one model share one forward and one backward pass.

curvlinops has such operators too, and the tests compare with it.  Its products with the Hessian are wrong for
the weights of LayerNorm (version 3.0.1 with torch 2.13, which it asks to map a product over vectors); it
computes the graph anew for every product; and it requires torchvision, which has to fit the build of torch.
So it is a peer here, and no dependency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from raysweep.errors import RunFailedError
from raysweep.flatness.curvature.loss import trainable
from raysweep.flatness.evaluating import evaluating, twice_differentiable
from raysweep.flatness.pool import Pool
from raysweep.models.base import MaskedLM

Matrix = Literal["hessian", "gauss_newton"]


class _Graph(NamedTuple):
    """The parts of products with one batch: `slope` is its gradient, or Jᵀu as a function of `u`."""

    slope: tuple[Tensor, ...]
    u: Tensor | None
    logits: Tensor | None


class CurvatureOperator(LinearOperator):
    """A symmetric matrix of the trainable parameters, [P, P] float64, in the order of the model's parameters.

    With `keep` the graphs of all batches stay in memory until the operator is gone: about four times what a
    training step on the pool needs, for half the time a product.  The model must not change meanwhile; it is
    left as it is, and dropout is off.  Products raise `RunFailedError` where they are not finite.
    """

    def __init__(
        self, model: MaskedLM, pool: Pool, *, matrix: Matrix, batch: int = 64, keep: bool = False
    ) -> None:
        self.model, self.pool, self.matrix, self.batch = model, pool, matrix, batch
        trainable(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        super().__init__(dtype=np.dtype(np.float64), shape=(sum(self.sizes), sum(self.sizes)))
        self._kept = list(self._graphs()) if keep else None

    def _graphs(self) -> Iterator[_Graph]:
        with evaluating(self.model), torch.enable_grad(), twice_differentiable(self.model):
            for rows, ids, positions in self.pool.batches(self.batch):
                logits = self.model(ids, positions)
                if self.matrix == "hessian":
                    loss = self.pool.losses(logits, rows).sum() / len(self.pool)
                    yield _Graph(self._gradient([loss], None), None, None)
                else:
                    u = torch.zeros_like(logits, requires_grad=True)
                    yield _Graph(self._gradient([logits], u), u, logits)

    def _gradient(self, outputs: Sequence[Tensor], weights: Tensor | None) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            outputs, self.parameters, weights, create_graph=True, allow_unused=True, materialize_grads=True
        )

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        vector = self._split(np.asarray(x, dtype=np.float64).reshape(-1))
        total = [torch.zeros_like(p) for p in self.parameters]
        for graph in self._graphs() if self._kept is None else self._kept:
            for tensor, part in zip(total, self._product(graph, vector), strict=True):
                tensor += part
        flat = torch.cat([tensor.flatten() for tensor in total]).cpu().double().numpy()
        if not np.isfinite(flat).all():
            raise RunFailedError(
                "the curvature of the loss is not finite; look at the model's training loss, and lower the "
                "learning rate"
            )
        return flat

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._matvec(x)

    def _product(self, graph: _Graph, vector: Sequence[Tensor]) -> tuple[Tensor, ...]:
        kept = self._kept is not None
        if graph.u is None or graph.logits is None:
            # Parameters that enter linearly everywhere have a slope without a graph.
            slopes, weights = zip(
                *((s, v) for s, v in zip(graph.slope, vector, strict=True) if s.requires_grad), strict=True
            )
            return torch.autograd.grad(
                slopes, self.parameters, weights, retain_graph=kept, allow_unused=True, materialize_grads=True
            )
        (change,) = torch.autograd.grad(graph.slope, graph.u, vector, retain_graph=True)
        p = graph.logits.detach().softmax(dim=-1)
        pulled = p * (change - (p * change).sum(dim=-1, keepdim=True)) / len(self.pool)
        return torch.autograd.grad(
            graph.logits,
            self.parameters,
            pulled,
            retain_graph=kept,
            allow_unused=True,
            materialize_grads=True,
        )

    def _split(self, flat: np.ndarray) -> list[Tensor]:
        first = self.parameters[0]
        whole = torch.from_numpy(flat).to(first.device, first.dtype)
        return [part.view_as(p) for part, p in zip(whole.split(self.sizes), self.parameters, strict=True)]
