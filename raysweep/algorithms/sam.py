"""Sharpness-aware minimisation: the gradient is taken at the worst point nearby.

    ε = rho · g / ‖g‖,  g = ∇L_ascent(θ)        the norm over all parameters together
    g' = ∇L_descent(θ + ε)                      and θ moves by AdamW along g'

(Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-aware minimization for efficiently improving
generalization", ICLR 2021.)  L_ascent and L_descent are the losses of the two halves of the batch (`half`, as
in Liu, Xie, Li and Ma, ICML 2023, appendix A.5), or both that of the whole batch (`same`, as in Foret and
others).  The halves are the even and the odd sentences of the batch over all workers, so both directions are
those of the global batch.  A half has dropout masks of its own; with `same` both passes see the same masks,
so both passes see one and the same function.

There are two passes: over half of the batch each with `half`, which costs as much as AdamW, and over all of
it with `same`, which costs twice as much.  The reported loss is that of the ascent pass, at the weights
themselves.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from raysweep.algorithms.adamw import AdamWBase
from raysweep.algorithms.base import Backward

_TINY = 1e-12  # keeps the direction of no gradient at all finite


class SAMConfig(AdamWBase):
    """SAM on AdamW without weight decay: SAM is to replace weight decay and dropout (`model.dropout`).

    >>> SAMConfig().label, SAMConfig(rho=0.1, ascent="same").label
    ('sam', 'sam-rho0.1-same')
    """

    kind: Literal["sam"] = "sam"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    #: Length of the step to the worst point nearby.
    rho: Annotated[float, Field(gt=0)] = 0.05
    #: The loss of the step to that point: of one half of the batch (`half`), or of the batch (`same`).
    ascent: Literal["half", "same"] = "half"

    short: ClassVar[dict[str, str]] = {**AdamWBase.short, "rho": "rho", "ascent": ""}

    @property
    def halves(self) -> bool:
        return self.ascent == "half"

    def gradient(self, model: nn.Module, backward: Backward) -> Tensor:
        loss = backward(0 if self.halves else None)
        moved = [p for p in model.parameters() if p.grad is not None]
        # The weights are kept, for adding and subtracting would leave rounding errors behind.
        before = [p.detach().clone() for p in moved]
        with torch.no_grad():
            slopes = [p.grad for p in moved if p.grad is not None]
            scale = self.rho / (nn.utils.get_total_norm(slopes) + _TINY)
            for p, slope in zip(moved, slopes, strict=True):
                p.add_(slope * scale)
        model.zero_grad()
        worst = backward(1 if self.halves else None)
        with torch.no_grad():
            for p, value in zip(moved, before, strict=True):
                p.copy_(value)
        # This makes a loss that is not finite at the second point visible as well.
        return loss + 0 * worst
