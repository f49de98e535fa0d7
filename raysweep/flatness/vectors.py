"""Test vectors: cotangents v of the logits with E‖Jᵀv‖² = Tr F.

At one input, let p = softmax(z) over the V classes, J = ∂z/∂θ and

    Tr F = E_{y~p} ‖∇_θ log p_y‖² = Tr Jᵀ(diag p − ppᵀ)J .

With L = (I − p1ᵀ) diag(√p), LLᵀ = diag p − ppᵀ, so any r with E rrᵀ = I gives E‖JᵀLr‖² = Tr F.

- `rademacher`: v = Lr with random signs r, that is u = √p∘r and v = u − p·Σu.  The relative variance of the
  estimate is at most 2 for every p and J.
- `label`: v = e_y − p with y ~ p, the form of Liu et al. (ICML 2023), appendix B.1.  Its relative variance
  has no bound for a confident p.
- `exact`: the V vectors √p_c (e_c − p), whose squared norms sum to Tr F: no randomness, V backward passes.

Randomness is keyed by (seed, input number), so two models are compared on common random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from raysweep import seeding

Vectors = Literal["rademacher", "label", "exact"]


def cotangents(
    logits: Tensor, index: Tensor, *, kind: Vectors, seed: int, draws: int
) -> Iterator[tuple[Tensor, float]]:
    """Yield pairs (v [B, V], weight): Σ weight·‖Jᵀv‖² estimates Tr F at each input (or is it, if exact).

    `index` [B] numbers the inputs.  `draws` is the number of random vectors an input; `exact` takes none.
    """
    p = logits.double().softmax(dim=-1)
    if kind == "exact":
        for c in range(p.shape[1]):
            v = -p * p[:, c : c + 1].sqrt()
            v[:, c] += p[:, c].sqrt()
            yield v.to(logits.dtype), 1.0
    elif kind == "rademacher":
        signs = seeding.signs(seed, "test-vector", index, draws * p.shape[1]).to(p)
        for r in signs.view(len(index), draws, -1).unbind(1):
            u = p.sqrt() * r
            yield (u - p * u.sum(dim=1, keepdim=True)).to(logits.dtype), 1.0 / draws
    else:
        levels = seeding.uniforms(seed, "test-label", index, draws).to(p)
        # Rounding may leave the last sum under 1, and the level above it.
        labels = torch.searchsorted(p.cumsum(dim=1), levels).clamp_(max=p.shape[1] - 1)
        for y in labels.unbind(1):
            v = (-p).scatter_add(1, y[:, None], torch.ones_like(p[:, :1]))
            yield v.to(logits.dtype), 1.0 / draws
