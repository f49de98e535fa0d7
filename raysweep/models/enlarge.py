"""Enlarge a trained encoder to a larger one that computes the same function.

With the width factor r, ⊗ for r copies side by side, and the small model's parameters on the right:

    matrix      W' = (1/r) · [W ... W; ...; W ... W]      (r × r copies)
    bias, LayerNorm's γ and β                             r copies
    token and position embedding                          r copies of each row, scaled 1/r
    decoder's bias                                        as it is

Every hidden state of the larger model is then r copies of the small one's: a matrix sums r equal parts, each
scaled 1/r; heads keep their width and are copied, so attention's scores and their scale stay; LayerNorm's
mean and variance are those of one copy.  The tied decoder sums r copies of E/r · x.  The LayerNorm of the
embedding undoes the scale 1/r of its input exactly if its ε is scaled by 1/r² too, which is done here.

Added layers follow the trained ones, with all their matrices and biases zero.  With pre-norm such a layer
adds zero to the residual stream and is the identity.  With post-norm it would still normalise, so depth
cannot be added; width can.

Squared gradient norms at an input, and so the Fisher trace, change as follows: matrices and the decoder's
bias keep theirs, biases and LayerNorms have 1/r of it, and embeddings r times as much.  In an added layer
only the two output biases have a gradient.

Source: Liu, Xie, Li and Ma, "Same pre-training loss, better downstream" (ICML 2023), appendix B.4, which
gives r = 2 and does not treat ε.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from raysweep.errors import ConfigError
from raysweep.models.encoder import Encoder
from raysweep.models.shapes import Shape


@torch.no_grad()
def enlarge(model: Encoder, shape: str | Shape) -> Encoder:
    """Return an encoder of `shape` with the logits of `model` in evaluation mode, on the same device.

    Width, heads and intermediate width must be the same multiple of the model's, with at least as many
    layers.  Logits agree up to rounding: 1e-5 in float32, 1e-10 in float64.

    In added layers only the output biases have a gradient at first, and dropout masks differ between copies.
    Raises `ConfigError`, naming a shape that fits, where `shape` cannot hold the model exactly.
    """
    try:
        large = Shape.parse(shape) if isinstance(shape, str) else shape
    except ValueError as error:
        raise ConfigError(f"shape: {error}") from error
    factor = _factor(model, large)
    with torch.device("meta"):
        result = Encoder(
            large,
            vocabulary_size=model.vocabulary_size,
            total_vocabulary=model.total_vocabulary,
            pad_id=model.pad_id,
            max_length=model.max_length,
            norm=model.norm,
            dropout=model.dropout.p,
            layer_norm_eps=model.head_norm.eps,
            checkpointing=model.checkpointing,
        )
    weight = model.token_embedding.weight
    result.to_empty(device=weight.device).to(weight.dtype)
    result.embedding_norm.eps = model.embedding_norm.eps / factor**2
    for name, small in model.named_modules():
        big: Any = result.get_submodule(name)
        if name == "decoder":  # its matrix is the token embedding
            result.decoder.bias.copy_(model.decoder.bias)
        elif isinstance(small, nn.Linear):
            big.weight.copy_(small.weight.repeat(factor, factor) / factor)
            big.bias.copy_(small.bias.repeat(factor))
        elif isinstance(small, nn.LayerNorm):
            big.weight.copy_(small.weight.repeat(factor))
            big.bias.copy_(small.bias.repeat(factor))
        elif isinstance(small, nn.Embedding):
            big.weight.copy_(small.weight.repeat(1, factor) / factor)
    for added in list(result.layers)[len(model.layers) :]:
        for module in added.modules():
            if isinstance(module, nn.Linear):
                module.weight.zero_()
                module.bias.zero_()
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
    return result.train(model.training)


def _factor(model: Encoder, large: Shape) -> int:
    """Return the width factor; raise `ConfigError` where `large` cannot hold the model exactly."""
    small = model.shape
    refused = f"{small} cannot be enlarged to {large} exactly"
    factor, rest = divmod(large.width, small.width)
    if rest or not factor:
        near = max(1, round(large.width / small.width)) * small.width
        raise ConfigError(f"{refused}: the width {large.width} is no multiple of {small.width}; use {near}")
    for name in ("heads", "intermediate"):
        have, want = getattr(large, name), factor * getattr(small, name)
        if have != want:
            raise ConfigError(
                f"{refused}: the width is {factor} times as large, so {name} must be {want}, not {have}; "
                f"use {large._replace(**{name: want})}"
            )
    if large.layers < small.layers:
        raise ConfigError(
            f"{refused}: it has {small.layers} layers already; use {large._replace(layers=small.layers)}"
        )
    if large.layers > small.layers and model.norm == "post":
        raise ConfigError(
            f"{refused}: with post-norm an added layer normalises and is no identity; "
            f"use {large._replace(layers=small.layers)}, or a pre-norm model"
        )
    return factor
