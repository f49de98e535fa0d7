"""The forward-backward pass over whole batches, on any device and in any precision.

Vectors are [T, B, S], so that a step is one product with the transitions for all sentences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.checks import floor


@dataclass(frozen=True)
class Tables:
    """`initial` [S], `transition` [S, S] and `emission` [S, V] on one device, of one precision.

    `leaves` [V, S] holds the emissions by word.
    """

    initial: Tensor
    transition: Tensor
    emission: Tensor
    leaves: Tensor

    @classmethod
    def of(
        cls,
        initial: np.ndarray,
        transition: np.ndarray,
        emission: np.ndarray,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Tables:
        """Move tables to a device."""
        first, step, word = (
            torch.from_numpy(table).to(device=device, dtype=dtype)
            for table in (initial, transition, emission)
        )
        return cls(initial=first, transition=step, emission=word, leaves=word.T.contiguous())


def leaves(tables: Tables, words: Tensor, hidden: Tensor | None) -> Tensor:
    """Return Pr(x_t | z_t = s) [T, B, S] of words [B, T], 1 where x_t is hidden."""
    if hidden is not None:
        words = torch.where(hidden, 0, words)
    found = tables.leaves.index_select(0, words.T.reshape(-1)).view(*words.T.shape, len(tables.initial))
    return found if hidden is None else found.masked_fill_(hidden.T[:, :, None], 1.0)


def forward(tables: Tables, leaves: Tensor) -> tuple[Tensor, Tensor]:
    """Return Pr(z_t | x_<t) [T, B, S] and Pr(x_t | x_<t) [T, B]; zeros after an impossible prefix."""
    T = len(leaves)
    ahead, total = torch.empty_like(leaves), torch.empty_like(leaves[:, :, 0])
    joint, tiny = torch.empty_like(leaves[0]), torch.finfo(leaves.dtype).tiny
    ahead[0] = tables.initial
    for t in range(T):
        torch.mul(ahead[t], leaves[t], out=joint)
        torch.sum(joint, dim=1, out=total[t])
        if t + 1 < T:
            joint /= total[t, :, None].clamp_min(tiny)
            torch.mm(joint, tables.transition, out=ahead[t + 1])
    return ahead, total


def backward(tables: Tables, leaves: Tensor) -> tuple[Tensor, Tensor]:
    """Return Pr(x_>t | z_t = s) [T, B, S], each row scaled to sum to 1, and the T-1 sums [T-1, B]."""
    T, S = len(leaves), leaves.shape[2]
    behind, total = torch.empty_like(leaves), torch.empty_like(leaves[1:, :, 0])
    joint, tiny = torch.empty_like(leaves[0]), torch.finfo(leaves.dtype).tiny
    behind[-1] = 1.0 / S
    for t in range(T - 1, 0, -1):
        torch.mul(behind[t], leaves[t], out=joint)
        torch.mm(joint, tables.transition.T, out=behind[t - 1])
        torch.sum(behind[t - 1], dim=1, out=total[t - 1])
        behind[t - 1] /= total[t - 1, :, None].clamp_min(tiny)
    return behind, total


def contexts(tables: Tables, words: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return Pr(z_t | visible words but x_t) [B, T, S], and which sentences are sound [B].

    A sentence is sound where every normaliser is large enough for the precision; in float64, positive.
    """
    leaf = leaves(tables, words, hidden)
    (ahead, before), (behind, after) = forward(tables, leaf), backward(tables, leaf)
    context = torch.mul(ahead, behind, out=leaf).transpose(0, 1).contiguous()
    total = context.sum(dim=-1)
    if hidden is None:
        # No context holds all words, so the last one may be impossible after the others.
        before = before[:-1]
    least = torch.cat([total.T, before, after]).amin(dim=0)
    return context.div_(total[:, :, None]), least >= floor(leaf.dtype)


def log(values: Tensor, out: Tensor) -> None:
    """Write the natural logarithms of contiguous `values` into contiguous `out`."""
    if values.dtype != torch.float32 or values.device.type != "cpu":
        torch.log(values, out=out)
        return
    # The same logarithm as on the block path.
    from raysweep.languages.hmm import kernels

    kernels.logarithms(values.view(-1).numpy(), out.view(-1).numpy())
