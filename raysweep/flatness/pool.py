"""A fixed pool of inputs and their labels: the curvature of its loss is what the measures take.

    L(θ) = (1/n) Σ_i ℓ_i(θ),      ℓ_i(θ) = − Σ_w q_i(w) log f_θ(w | x_i)

Input i is x_i, a sentence with one masked position.  Its label q_i is the exact conditional of the masked
word (soft labels), or the word itself (hard labels).  Both make ∇²L an unbiased estimate of the Hessian of
the pre-training loss, because the word is drawn from the conditional.  Soft labels avoid the noise of that
draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.flatness.inputs import draw_positions, mask_id, masked_places
from raysweep.models.base import MaskedLM


@dataclass(frozen=True, kw_only=True)
class Pool:
    """`n` inputs: `masked` ids [n, T], `positions` [n] of their masks, and `labels`.

    `labels` are words [n], int64, or probabilities of words [n, V], float64.
    """

    masked: Tensor
    positions: Tensor
    labels: Tensor
    pad_id: int

    @classmethod
    def of(
        cls,
        model: MaskedLM,
        ids: Tensor,
        positions: Tensor | None = None,
        *,
        log_probs: Tensor | None = None,
        seed: int = 0,
        start: int = 0,
    ) -> Self:
        """Mask sentences `ids` [n, T] at `positions` [n], drawn as for the Fisher trace when None.

        `log_probs` [n, V] in nats are the exact conditionals of the masked words; without them the words
        themselves are the labels.  Everything is moved to the model's device.  Raises `DataError` for
        positions or conditionals that do not fit the sentences.
        """
        if positions is None:
            positions = draw_positions(ids, model.pad_id, seed=seed, start=start)
        device = next(model.parameters()).device
        ids, positions = ids.to(device), positions.to(device)
        positions, _ = masked_places(ids, positions, model.pad_id)
        if positions.dim() != 1:
            raise DataError(f"positions of shape {list(positions.shape)}: give one for each sentence")
        if log_probs is None:
            labels = ids.gather(1, positions[:, None])[:, 0]
        elif log_probs.shape != (len(ids), model.vocabulary_size):
            raise DataError(
                f"log_probs of shape {list(log_probs.shape)}: give those of {model.vocabulary_size} words "
                f"for each of {len(ids)} sentences"
            )
        else:
            # Conditionals in float32 sum to one only to its precision.
            labels = log_probs.to(device, torch.float64).softmax(dim=-1)
        masked = ids.scatter(1, positions[:, None], mask_id(model))
        return cls(masked=masked, positions=positions, labels=labels, pad_id=model.pad_id)

    def __len__(self) -> int:
        return len(self.masked)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (row numbers [b], their masked ids cut to the longest [b, T'], positions [b]).

        Neighbours in length share a batch, so that most batches hold no padding.
        """
        lengths = (self.masked != self.pad_id).sum(dim=1)
        for rows in torch.split(lengths.argsort(stable=True), size):
            yield rows, self.masked[rows, : int(lengths[rows[-1]])], self.positions[rows]

    def losses(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return ℓ_i [b] in nats of the inputs `rows` [b] from their logits [b, C], in the logits' type."""
        log_f = logits.log_softmax(dim=-1)
        labels = self.labels[rows]
        if labels.dim() == 1:
            return -log_f.gather(1, labels[:, None])[:, 0]
        return -(labels.to(log_f.dtype) * log_f[:, : labels.shape[1]]).sum(dim=-1)

    def slopes(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return ∂ℓ_i/∂z = p_i − q_i [b, C] of the inputs `rows` [b], computed in float64."""
        slopes = logits.detach().double().softmax(dim=-1)
        labels = self.labels[rows]
        if labels.dim() == 1:
            slopes.scatter_add_(1, labels[:, None], slopes.new_full((len(rows), 1), -1.0))
        else:
            slopes[:, : labels.shape[1]] -= labels
        return slopes.to(logits.dtype)
