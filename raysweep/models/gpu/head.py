"""The masked-LM loss of an encoder's final hidden states with its gradient, on a GPU.

It computes what `raysweep.models.base.mean_loss` does of the head's logits, by the kernels of
`raysweep.models.gpu.kernels`.  Products and what lies between them are in low precision, as under autocast;
sums and the gradients of parameters are float32.

Memory, with D the width, V the vocabulary and b the bytes of a number: b (4 D + V) for each masked word, and
b V more in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysweep.models.gpu.parts import (
    cross_entropy,
    cross_entropy_back,
    gelu,
    gelu_back,
    low_precision,
    normed,
    normed_back,
)


def loss(
    encoder: Any, hidden: Tensor, targets: Tensor, count: Tensor, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """Return Σ -log f(target) / `count` of final states [M, D], a float32 scalar, to differentiate once.

    `targets` [M], contiguous, are the masked words; `count` is float32; factors of products are in `dtype`.
    """
    modules = encoder.decoder, encoder.head_norm, encoder.head_dense
    parameters = [p for module in modules for p in module.parameters()]
    with torch.cuda.device_of(hidden):
        found: Tensor = _Loss.apply(encoder, targets, count, dtype, hidden, *parameters)
    return found


class _Loss(torch.autograd.Function):
    """The head and the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        encoder: Any,
        targets: Tensor,
        count: Tensor,
        dtype: torch.dtype,
        hidden: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        dense, decoder = low_precision([(encoder.head_dense,), (encoder.decoder,)], dtype)
        low = hidden.to(dtype)
        risen = dense.apply(low)
        active = gelu(risen)
        seen = normed(active, encoder.head_norm, dtype)
        logits = decoder.apply(seen)
        whole, losses = cross_entropy(logits, targets)
        ctx.norm, ctx.dense, ctx.decoder, ctx.parameters = encoder.head_norm, dense, decoder, parameters
        ctx.save_for_backward(targets, count, low, risen, active, seen, logits, whole)
        return losses.sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        targets, count, low, risen, active, seen, logits, whole = ctx.saved_tensors
        found: dict[int, Tensor] = {}
        d_logits, of_bias = cross_entropy_back(logits, targets, whole, slope / count)
        d_seen = ctx.decoder.back(d_logits, seen, of_bias, found)
        d_active = normed_back(active, ctx.norm, d_seen, None, found)
        d_risen, of_bias = gelu_back(risen, d_active)
        d_hidden = ctx.dense.back(d_risen, low, of_bias, found)
        return None, None, None, None, d_hidden.float(), *(found[id(p)] for p in ctx.parameters)
