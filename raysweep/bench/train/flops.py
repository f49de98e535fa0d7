"""Floating-point operations that a step of masked-language-model training takes, whoever does it."""

from __future__ import annotations

from torch import Tensor

from raysweep.models.shapes import Shape


def training_flops(shape: Shape, total_vocabulary: int, lengths: Tensor, masked: Tensor) -> int:
    """Return those of the matrix products of forward and backward pass, over sentences of `lengths` [n].

    With D the width, F the intermediate size, T words and M of them masked (`masked` [n]), a sentence takes

        T (8 D² + 4 D F) + 4 T² D                   in each layer but the last
        T · 4 D² + M (4 D² + 4 D F) + 4 M T D       in the last, whose other outputs nothing depends on
        M (2 D² + 2 D V)                            in the head

    forward, and twice that backward: gradients of both factors of each product.  Padding takes none.

    >>> import torch
    >>> training_flops(Shape(4, 1, 1, 8), 16, torch.tensor([3]), torch.tensor([1]))
    1776
    """
    D, F, V, layers = shape.width, shape.intermediate, total_vocabulary, shape.layers
    T, M = int(lengths.sum()), int(masked.sum())
    every = T * (8 * D * D + 4 * D * F) + 4 * int((lengths * lengths).sum()) * D
    last = 4 * T * D * D + M * (4 * D * D + 4 * D * F) + 4 * int((masked * lengths).sum()) * D
    head = M * (2 * D * D + 2 * D * V)
    return 3 * ((layers - 1) * every + last + head)
