"""Enlarge a trained model to a larger one that computes the same function.

With the width factor r, ⊗ for r copies side by side, and the small encoder's parameters on the right:

    matrix      W' = (1/r) · [W ... W; ...; W ... W]      (r × r copies)
    bias, LayerNorm's γ and β                             r copies
    token and position embedding                          r copies of each row, scaled 1/r
    decoder's bias                                        as it is

Every hidden state of the larger model is then r copies of the small one's: a matrix sums r equal parts, each
scaled 1/r; heads keep their width and are copied, so attention's scores and their scale stay; LayerNorm's
mean and variance are those of one copy.  The tied decoder sums r copies of E/r · x.  The LayerNorm of the
embedding undoes the scale 1/r of its input exactly if its ε is scaled by 1/r² too, which is done here.

Intermediate units beyond the copies have zero weights in and out and a zero bias.  As gelu(0) = 0 they add
nothing, and they have no gradient: into a unit it is a product with its outgoing weights, out of it one with
its activation, and both are zero.

Added layers follow the trained ones, with all their matrices and biases zero.  With pre-norm such a layer
adds zero to the residual stream and is the identity.  With post-norm it would still normalise, so depth
cannot be added; width can.

An LSTM has no LayerNorm that would undo the scale of its embedding, so the input matrices of its first layer
are copied unscaled, and all others are copied and scaled 1/r as above.  Each gate, and each direction's half
of a state, is copied for itself.  A layer of an LSTM with zero weights has an output of zero, so depth cannot
be added.

Squared gradient norms at an input, and so the Fisher trace, change as follows: matrices and the decoder's
bias keep theirs, biases and LayerNorms have 1/r of it, embeddings r times as much, and the input matrices of
an LSTM's first layer 1/r² of it.  In an added layer only the two output biases have a gradient.

Source: Liu, Xie, Li and Ma, "Same pre-training loss, better downstream" (ICML 2023), appendix B.4, which
gives encoders with r = 2 and treats neither ε nor spare units.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.models.base import without_values
from raysweep.models.encoder import Encoder
from raysweep.models.lstm import LSTM, LSTMShape
from raysweep.models.shapes import Shape

M = TypeVar("M", Encoder, LSTM)

#: Why depth cannot be added.
ADDED_POST = "with post-norm an added layer normalises and is no identity"
ADDED_LSTM = "an added layer of an LSTM is no identity"


class Enlargement(NamedTuple):
    """The growth of a model: `factor` copies of every unit, and `layers` layers behind the others."""

    factor: int
    layers: int

    @classmethod
    def between(cls, small: Shape | LSTMShape, large: Shape | LSTMShape) -> Enlargement:
        """Return what `large` has more than `small`, which it is known to hold.

        >>> Enlargement.between(Shape(16, 1, 2, 64), Shape(64, 4, 3, 256))
        Enlargement(factor=4, layers=1)
        """
        return cls(large[0] // small[0], large.layers - small.layers)


def enlargement(model: nn.Module, shape: str | Shape | LSTMShape) -> Enlargement:
    """Return how `model` becomes one of `shape`.

    Raises `ConfigError`, naming a shape that fits, where `shape` cannot hold the model exactly, and for a
    model that is neither an encoder nor an LSTM of raysweep.
    """
    if not isinstance(model, Encoder | LSTM):
        raise ConfigError(
            f"a {type(model).__name__} cannot be enlarged, only an encoder or an LSTM of raysweep can"
        )
    try:
        large = type(model.shape).parse(str(shape))
    except ValueError as error:
        raise ConfigError(f"shape: {error}") from error
    small = model.shape
    refused = f"{small} cannot be enlarged to {large} exactly"
    factor, rest = divmod(large[0], small[0])
    if rest or not factor:
        near = max(1, round(large[0] / small[0])) * small[0]
        raise ConfigError(f"{refused}: the width {large[0]} is no multiple of {small[0]}; use {near}")
    if isinstance(small, Shape) and isinstance(large, Shape):
        _check_units(small, large, factor, refused)
    if large.layers < small.layers:
        raise ConfigError(
            f"{refused}: it has {small.layers} layers already; use {large._replace(layers=small.layers)}"
        )
    if large.layers > small.layers and (isinstance(model, LSTM) or model.norm == "post"):
        why = ADDED_LSTM if isinstance(model, LSTM) else ADDED_POST
        other = "" if isinstance(model, LSTM) else ", or a pre-norm model"
        raise ConfigError(f"{refused}: {why}; use {large._replace(layers=small.layers)}{other}")
    return Enlargement.between(small, large)


def _check_units(small: Shape, large: Shape, factor: int, refused: str) -> None:
    """Raise `ConfigError` where heads are of another width or the copies of intermediate units do not fit."""
    heads, units = factor * small.heads, factor * small.intermediate
    if large.heads != heads or large.intermediate < units:
        fits = large._replace(heads=heads, intermediate=max(units, large.intermediate))
        name = "heads" if large.heads != heads else "intermediate"
        least = "" if name == "heads" else "at least "
        raise ConfigError(
            f"{refused}: the width is {factor} times as large, so {name} must be {least}"
            f"{getattr(fits, name)}, not {getattr(large, name)}; use {fits}"
        )


@torch.no_grad()
def enlarge(model: M, shape: str | Shape | LSTMShape) -> M:
    """Return a model of `shape` with the logits of `model` in evaluation mode, on the same device.

    The width is a multiple of the model's.  An encoder has heads of the same width, at least as many times
    the intermediate units, and at least as many layers; an LSTM has as many layers.  Logits agree up to
    rounding: 1e-5 in float32, 1e-10 in float64.

    Spare intermediate units have no gradient, and in added layers only the output biases have one at first.
    Dropout masks differ between copies.  Raises `ConfigError`, naming a shape that fits, where `shape` cannot
    hold the model exactly.
    """
    factor = enlargement(model, shape).factor
    if isinstance(model, LSTM):
        return _enlarged_lstm(model, LSTMShape.parse(str(shape)), factor)
    return _enlarged_encoder(model, Shape.parse(str(shape)), factor)


def _enlarged_encoder(model: Encoder, large: Shape, factor: int) -> Encoder:
    with without_values():
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
    for module in result.modules():
        if isinstance(module, nn.Linear) and module is not result.decoder:
            # What is not a copy is zero: spare intermediate units, and added layers.
            module.weight.zero_()
            module.bias.zero_()
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    for name, small in model.named_modules():
        big: Any = result.get_submodule(name)
        if name == "decoder":  # its matrix is the token embedding
            result.decoder.bias.copy_(model.decoder.bias)
        elif isinstance(small, nn.Linear):
            rows, columns = (factor * size for size in small.weight.shape)
            big.weight[:rows, :columns] = small.weight.repeat(factor, factor) / factor
            big.bias[:rows] = small.bias.repeat(factor)
        elif isinstance(small, nn.LayerNorm):
            big.weight.copy_(small.weight.repeat(factor))
            big.bias.copy_(small.bias.repeat(factor))
        elif isinstance(small, nn.Embedding):
            big.weight.copy_(small.weight.repeat(1, factor) / factor)
    return result.train(model.training)


def _enlarged_lstm(model: LSTM, large: LSTMShape, factor: int) -> LSTM:
    with without_values():
        result = LSTM(
            large,
            vocabulary_size=model.vocabulary_size,
            pad_id=model.pad_id,
            max_length=model.max_length,
            dropout=model.dropout.p,
            total_vocabulary=model.total_vocabulary,
        )
    weight = model.token_embedding.weight
    result.to_empty(device=weight.device).to(weight.dtype)
    result.token_embedding.weight.copy_(_copies(weight, factor, 1, parts=2) / factor)
    result.decoder.bias.copy_(model.decoder.bias)
    for name, small in model.layers.named_parameters():
        made = _copies(small, factor, 0, parts=4)  # the gates
        if "weight_hh" in name:
            made = _copies(made, factor, 1, parts=1) / factor
        elif "weight_ih" in name:
            # The first layer reads the embedding, which is scaled already.
            made = _copies(made, factor, 1, parts=2) / (1 if name.startswith("0.") else factor)
        result.layers.get_parameter(name).copy_(made)
    return result.train(model.training)


def _copies(x: Tensor, count: int, dim: int, *, parts: int) -> Tensor:
    """Return `count` copies of each of the equal `parts` of an axis, side by side."""
    return torch.cat([part for part in x.chunk(parts, dim) for _ in range(count)], dim)
