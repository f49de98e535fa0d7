"""A fixed pool of inputs and their labels: the curvature of its loss is what the measures take.

    L(θ) = (1/n) Σ_i ℓ_i(θ),      ℓ_i(θ) = − Σ_w q_i(w) log f_θ(w | x_i)

Input i is x_i, a sentence with one masked position.  Its label q_i is the exact conditional of the masked
word (soft labels), or the word itself (hard labels).  Both make ∇²L an unbiased estimate of the Hessian of
the pre-training loss, because the word is drawn from the conditional.  Soft labels avoid the noise of that
draw.

With several masked positions M(x_i) in a sentence, ℓ_i is the sum over them, each with the conditional given
all words that are visible, and L(θ) = Σ_i ℓ_i(θ) / Σ_i |M(x_i)|, as in training that masks 15 %.
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

    `labels` are words [n], int64, or probabilities of words [n, V], float64.  With several masks a sentence
    `positions` are [n, m], −1 for none, and labels [n, m] or [n, m, V]; those of none mean nothing.
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
        """Mask sentences `ids` [n, T] at `positions`, drawn as for the Fisher trace when None.

        `positions` are one a sentence [n], several [n, m] with −1 for none, or a mask [n, T] of bools.
        `log_probs` in nats are the exact conditionals of the masked words, [n, V] for one a sentence, or
        [n, T, V] as `Language.conditionals` gives them for a mask; without them the words themselves are the
        labels.  Everything is moved to the model's device.  Raises `DataError` for positions or conditionals
        that do not fit the sentences.
        """
        if positions is None:
            positions = draw_positions(ids, model.pad_id, seed=seed, start=start)
        device = next(model.parameters()).device
        ids = ids.to(device)
        positions, marked = masked_places(ids, positions, model.pad_id)
        several = positions.dim() == 2
        shape = (*(ids.shape if several else ids.shape[:1]), model.vocabulary_size)
        if log_probs is None:
            labels = ids.gather(1, positions.view(len(ids), -1).clamp(min=0)).view_as(positions)
        elif log_probs.shape != shape:
            each = f"each of {ids.shape[1]} positions of " if several else ""
            raise DataError(
                f"log_probs of shape {list(log_probs.shape)}: give those of {model.vocabulary_size} words "
                f"for {each}each of {len(ids)} sentences"
            )
        else:
            known = log_probs.to(device, torch.float64)
            if several:
                known = known[torch.arange(len(ids), device=device)[:, None], positions.clamp(min=0)]
            # Conditionals in float32 sum to one only to its precision.
            labels = known.softmax(dim=-1)
        masked = ids.masked_fill(marked, mask_id(model))
        return cls(masked=masked, positions=positions, labels=labels, pad_id=model.pad_id)

    def __len__(self) -> int:
        return len(self.masked)

    @property
    def most(self) -> int:
        """The largest number of masked positions of an input."""
        return self.positions.shape[1] if self.positions.dim() == 2 else 1

    def batches(self, size: int, *, several: bool = False) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (row numbers [b], their masked ids cut to the longest [b, T'], positions [b] or [b, m]).

        Neighbours in length share a batch, so that most batches hold no padding.  Raises `DataError` for
        inputs of several positions unless the caller takes `several`.
        """
        if self.positions.dim() == 2 and not several:
            raise DataError(f"positions of shape {list(self.positions.shape)}: give one for each sentence")
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
        """Return ∂ℓ_i/∂z = p_i − q_i of the inputs `rows` [b], shaped as `logits`, computed in float64.

        Logits are [b, C], or [b, m, C] at several positions; the slopes of none are zero.
        """
        slopes = logits.detach().double().softmax(dim=-1)
        labels = self.labels[rows]
        if labels.is_floating_point():
            slopes[..., : labels.shape[-1]] -= labels
        else:
            slopes.scatter_add_(-1, labels[..., None], slopes.new_full((*labels.shape, 1), -1.0))
        # Labels of none may be anything, NaN too, so their slopes are overwritten and not multiplied.
        return slopes.masked_fill_((self.positions[rows] < 0)[..., None], 0.0).to(logits.dtype)
