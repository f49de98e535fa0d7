"""The necessary floating-point operations of a step of masked-language-model training.

The matrix products of forward and backward pass count, a multiplication and an addition as two operations;
norms, activations, softmax, dropout and the optimizer take few beside them.  Only products that the loss
depends on count, and padding does not, so unnecessary work raises no figure.  The gradients of both factors
of a product take twice the operations of the product.
"""

from __future__ import annotations

from functools import singledispatch

from torch import Tensor

from raysweep.models.base import MaskedLM
from raysweep.models.cls import WithCLS
from raysweep.models.encoder import Encoder
from raysweep.models.lstm import LSTM


@singledispatch
def training_flops(model: MaskedLM, lengths: Tensor, masked: Tensor) -> int | None:
    """Return the operations of training on sentences of `lengths` [n] with `masked` [n] hidden words each.

    Where the places of hidden words matter, the mean over uniformly drawn places is returned.  The result is
    None for an unknown type of model; `training_flops.register` adds one.

    >>> import torch
    >>> from raysweep.languages import PCFG
    >>> from raysweep.models import EncoderConfig
    >>> model = EncoderConfig(shape="4/1/1/8").build(PCFG.random(), seed=0)
    >>> training_flops(model, torch.tensor([3]), torch.tensor([1]))
    6384
    """
    return None


@training_flops.register
def _encoder(model: Encoder, lengths: Tensor, masked: Tensor) -> int:
    """With D the width, F the intermediate size, T words and M of them masked, a sentence takes forward

    T (8 D² + 4 D F) + 4 T² D                   in each layer but the last
    T · 4 D² + M (4 D² + 4 D F) + 4 M T D       in the last, whose other outputs nothing depends on
    M (2 D² + 2 D V)                            in the head

    That is the model as it is written.  Where few words are masked, the compiled passes of a processor take
    fewer in the last layer (`raysweep.models.fused.sublayer`), and where words are equal in the first one.
    """
    D, F, V = model.width, model.shape.intermediate, model.total_vocabulary
    T, M = int(lengths.sum()), int(masked.sum())
    every = T * (8 * D * D + 4 * D * F) + 4 * int((lengths * lengths).sum()) * D
    last = 4 * T * D * D + M * (4 * D * D + 4 * D * F) + 4 * int((masked * lengths).sum()) * D
    head = M * (2 * D * D + 2 * D * V)
    return 3 * ((model.shape.layers - 1) * every + last + head)


@training_flops.register
def _with_cls(model: WithCLS, lengths: Tensor, masked: Tensor) -> int | None:
    """Every sentence has one word more, which is not masked."""
    return training_flops(model.inner, lengths + 1, masked)


@training_flops.register
def _lstm(model: LSTM, lengths: Tensor, masked: Tensor) -> int:
    """With H = D / 2 units a direction, and four gates, a sentence of T words takes forward

    2 (8 T D H + 8 T H²) = 12 T D²      in each layer but the last: inputs and states of both directions
    12 D² · M (T + 1) / (M + 1)         in the last, which either direction reads to its last masked word
    M · 2 D V                           in the head
    """
    D, V = model.width, model.total_vocabulary
    T, M = int(lengths.sum()), int(masked.sum())
    # The mean of the largest of M of the numbers 1 .. T.
    far = float((masked * (lengths + 1) / (masked + 1).double()).sum())
    return round(3 * (12 * D * D * ((model.shape.layers - 1) * T + far) + M * 2 * D * V))
