"""Geometric complexity: how much the logits move when the embedded sentence moves.

    E_x ‖∂z/∂e‖_F²

over inputs x, with z the logits of the words at the masked position and e [T, D] the token embeddings of the
sentence, masked word included, before positions are added.  Source: Dherin, Munn, Rosca and Barrett, "Why
neural networks find simple solutions: the many regularizers of geometric complexity" (NeurIPS 2022), where
the network's input itself is continuous.

Signs r, one set an input, give an unbiased value from one backward pass: E_r ‖(∂z/∂e)ᵀ r‖² = ‖∂z/∂e‖_F².
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.flatness.evaluating import evaluating
from raysweep.flatness.pool import Pool
from raysweep.models.base import MaskedLM
from raysweep.seeding import signs


def geometric_complexities(
    model: MaskedLM, pool: Pool, *, seed: int = 0, start: int = 0, batch: int = 64
) -> Tensor:
    """Return an unbiased value [n] of ‖∂z/∂e‖_F² at each input of a pool, float64 on the CPU; dropout is off.

    Input i's signs are keyed by (seed, start + i).  Raises `ConfigError` for a model without a
    `token_embedding`.
    """
    embedding = getattr(model, "token_embedding", None)
    if not isinstance(embedding, nn.Module):
        raise ConfigError(
            f"a {type(model).__name__} has no token_embedding, so its geometric complexity is not defined; "
            "leave it out"
        )
    embedded: list[Tensor] = []

    def cut(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    values = torch.empty(len(pool), dtype=torch.float64, device=pool.masked.device)
    index = torch.arange(start, start + len(pool), device=pool.masked.device)
    handle = embedding.register_forward_hook(cut)
    try:
        with evaluating(model), torch.enable_grad():
            for rows, ids, positions in pool.batches(batch):
                embedded.clear()
                words = model(ids, positions)[:, : model.vocabulary_size]
                r = signs(seed, "geometric-complexity", index[rows], words.shape[1]).to(words)
                gradients = torch.autograd.grad(words, embedded, r)
                values[rows] = sum(g.double().square().flatten(1).sum(dim=1) for g in gradients)
    finally:
        handle.remove()
    return values.cpu()
