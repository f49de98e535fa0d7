"""Weights that are rounded or disturbed: a model's robustness to it shows its flatness.

Rounding to the nearest of 2^b - 1 levels, symmetric and per output channel (as in Nagel et al., "A white
paper on neural network quantization", 2021, section 2.3, with the restricted range):

    s_o = max_i |W_oi| / (2^(b-1) - 1);    W'_oi = s_o · round(W_oi / s_o)

for each row o of a matrix W, with halves rounded to the even number; a row of zeros stays.

Gaussian noise of relative size r:

    W' = W + r · ‖W‖_F / √(entries of W) · ε,    ε ~ N(0, 1) for each entry

so E ‖W' - W‖² = r² ‖W‖².  One draw of ε serves all sizes and all models of one shape, so models are compared
with the same disturbance.

Matrices are all parameters of two dimensions: weights of linear maps and of recurrences, whose rows are
output channels, and embeddings, whose rows are words or positions.  Biases and LayerNorm parameters stay.
Activations are not rounded, and products are in the model's own precision.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from raysweep import seeding
from raysweep.models.base import MaskedLM


def matrices(model: nn.Module, *, embeddings: bool = True) -> dict[str, nn.Parameter]:
    """Return a model's matrices by name, a tied one once.

    Without `embeddings`, the tables of `nn.Embedding` are left out, and a decoder that is tied to one.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return {
        name: p for name, p in model.named_parameters() if p.ndim == 2 and (embeddings or id(p) not in tables)
    }


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Return a matrix [O, I] rounded to `bits` bits per output channel.

    >>> rounded(torch.tensor([[0.1, -0.7, 0.36], [0.0, 0.0, 0.0]]), 4)
    tensor([[ 0.1000, -0.7000,  0.4000],
            [ 0.0000,  0.0000,  0.0000]])
    """
    scale = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(scale == 0, weight, (weight / scale).round() * scale)


def disturbed(weight: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """Return a matrix with Gaussian noise of relative `size`; the draw is made on the CPU."""
    noise = torch.randn(weight.shape, generator=generator).to(weight)
    return weight + size * weight.square().mean().sqrt() * noise


def quantized(model: MaskedLM, bits: int, *, embeddings: bool = True) -> MaskedLM:
    """Return a copy of `model` whose matrices are rounded to `bits` bits, 2 or more."""
    return _changed(model, lambda _, weight: rounded(weight, bits), embeddings)


def noisy(model: MaskedLM, size: float, *, seed: int, draw: int, embeddings: bool = True) -> MaskedLM:
    """Return a copy of `model` whose matrices have noise of relative `size`, keyed by (seed, draw, name)."""

    def change(name: str, weight: Tensor) -> Tensor:
        return disturbed(weight, size, seeding.generator(seed, "noise", draw, name))

    return _changed(model, change, embeddings)


@torch.no_grad()
def _changed(model: MaskedLM, change: Callable[[str, Tensor], Tensor], embeddings: bool) -> MaskedLM:
    copy = deepcopy(model)
    for name, weight in matrices(copy, embeddings=embeddings).items():
        weight.copy_(change(name, weight))
    return copy
