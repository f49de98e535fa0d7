"""The smallest shape that holds several models exactly, so that all are seen as one architecture.

    width           the least common multiple of the widths: each model is in it a whole number of times
    heads           of one width in all models, as many as make up the common width
    layers          the largest number; only pre-norm encoders may differ in it
    intermediate    the largest of copies × intermediate units; a model with fewer has spare ones

`raysweep.models.enlarge` makes a model of that shape, and `raysweep.flatness.trace.enlarged` gives its Fisher
trace without making it.

>>> from raysweep.models.encoder import EncoderConfig
>>> sizes = ("table4-128", "table4-384", "table4-1920")
>>> str(common_shape([EncoderConfig(shape=shape) for shape in sizes]))
'1920/30/20/10240'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from raysweep.errors import ConfigError
from raysweep.models.base import ModelConfig
from raysweep.models.encoder import EncoderConfig
from raysweep.models.enlarge import ADDED_LSTM, ADDED_POST
from raysweep.models.lstm import LSTMConfig, LSTMShape
from raysweep.models.shapes import Shape

#: Fields that say nothing about a model's parameters.
_FREE = ("dropout", "layer_norm_eps", "checkpointing")


def one_architecture(models: Sequence[ModelConfig]) -> bool:
    """Return whether models have the same parameters, so that nothing need be done to compare them."""
    return all(_architecture(model) == _architecture(models[0]) for model in models)


def common_shape(models: Sequence[ModelConfig]) -> Shape | LSTMShape:
    """Return the smallest shape to which each of `models`, one at least, can be enlarged exactly.

    Raises `ConfigError` that says why there is none.
    """
    for model in models:
        if not isinstance(model, EncoderConfig | LSTMConfig):
            raise ConfigError(f"a model of the kind '{model.kind}' cannot be enlarged")
        if model.cls:
            raise ConfigError(f"{model.label}, which reads the sentence-level token, cannot be enlarged")
    first = _architecture(models[0])
    for model in models:
        other = _architecture(model)
        apart = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        apart = [name for name in apart if name != "shape"]
        if apart:
            raise ConfigError(
                f"{models[0].label} and {model.label} differ in {apart[0]}, not in their shapes alone"
            )
    encoders = [model for model in models if isinstance(model, EncoderConfig)]
    if encoders:
        return _of_encoders([model.sizes for model in encoders], post_norm=encoders[0].norm == "post")
    return _of_lstms([model.sizes for model in models if isinstance(model, LSTMConfig)])


def _architecture(model: ModelConfig) -> dict[str, Any]:
    return {name: value for name, value in model.content().items() if name not in _FREE}


def _of_encoders(shapes: Sequence[Shape], *, post_norm: bool) -> Shape:
    first = shapes[0]
    head = first.width // first.heads
    for shape in shapes:
        if shape.width // shape.heads != head:
            fits = f"; use {shape._replace(heads=shape.width // head)}" if shape.width % head == 0 else ""
            raise ConfigError(
                f"the heads of {first} are {head} wide and those of {shape} {shape.width // shape.heads}, "
                f"and heads are copied as they are{fits}"
            )
    if post_norm:
        _check_depth(shapes, ADDED_POST)
    width = math.lcm(*(shape.width for shape in shapes))
    return Shape(
        width=width,
        heads=width // head,
        layers=max(shape.layers for shape in shapes),
        intermediate=max(width // shape.width * shape.intermediate for shape in shapes),
    )


def _of_lstms(shapes: Sequence[LSTMShape]) -> LSTMShape:
    _check_depth(shapes, ADDED_LSTM)
    return LSTMShape(math.lcm(*(shape.hidden for shape in shapes)), shapes[0].layers)


def _check_depth(shapes: Sequence[Shape] | Sequence[LSTMShape], why: str) -> None:
    """Raise `ConfigError` for shapes of different depth where no layer can be added."""
    for shape in shapes:
        if shape.layers != shapes[0].layers:
            raise ConfigError(
                f"{shapes[0]} has {shapes[0].layers} layers and {shape} {shape.layers}, and {why}"
            )
