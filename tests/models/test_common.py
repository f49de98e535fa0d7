"""The common shape of several models: each of them, and nothing smaller, fits into it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysweep.errors import ConfigError
from raysweep.models import NAMED_SHAPES, EncoderConfig, LSTMConfig, ModelConfig, Shape, common_shape
from raysweep.models.common import one_architecture
from raysweep.models.enlarge import enlargement
from raysweep.models.pretrained import HuggingFaceConfig

LANGUAGE: Any = SimpleNamespace(vocabulary_size=11, pad_id=11, max_length=7)


def encoders(*shapes: str, **fields: Any) -> list[EncoderConfig]:
    return [EncoderConfig(shape=shape, **fields) for shape in shapes]


def fits(models: list[Any], shape: object) -> bool:
    """Return whether each model can be enlarged to a shape."""
    for model in models:
        with torch.device("meta"):
            module = model.module(LANGUAGE)
        try:
            enlargement(module, str(shape))
        except ConfigError:
            return False
    return True


def smaller(shape: Shape, head: int) -> list[Shape]:
    """Return every shape with heads of that width that is one step smaller in one of its sizes."""
    widths = [shape._replace(width=w, heads=w // head) for w in range(head, shape.width, head)]
    return [
        *widths,
        shape._replace(layers=shape.layers - 1),
        shape._replace(intermediate=shape.intermediate - 1),
    ]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (("16/1/2/64", "32/2/2/128", "64/4/2/256"), "64/4/2/256"),
        (("16/1/3/64", "32/2/2/100"), "32/2/3/128"),
        (("16/1/3/64", "32/2/2/200"), "32/2/3/200"),
        # Neither width is a multiple of the other.
        (("16/2/1/20", "24/3/2/30"), "48/6/2/60"),
        (("16/2/1/20", "24/3/2/50", "24/3/1/7"), "48/6/2/100"),
    ],
)
def test_the_smallest_shape_that_holds_all(shapes: tuple[str, ...], expected: str) -> None:
    models = encoders(*shapes)
    found = common_shape(models)
    assert str(found) == expected
    assert fits(models, found)
    head = models[0].sizes.width // models[0].sizes.heads
    assert isinstance(found, Shape)
    assert not any(fits(models, shape) for shape in smaller(found, head))


def test_every_published_shape_fits_into_the_largest() -> None:
    table4 = encoders(*(name for name in NAMED_SHAPES if name.startswith("table4")))
    found = common_shape(table4)
    # 384/6/7/2048 five times; the table prints 5120 intermediate units, which hold no other of its shapes.
    assert str(found) == "1920/30/20/10240"
    assert fits(table4, found)
    table3 = encoders(*(name for name in NAMED_SHAPES if name.startswith("table3")))
    assert fits(table3, common_shape(table3))


def test_lstms_differ_in_width_alone() -> None:
    models = [LSTMConfig(shape=shape) for shape in ("8/2", "12/2")]
    assert str(common_shape(models)) == "24/2"
    assert fits(models, "24/2")
    with pytest.raises(ConfigError, match="8/2 has 2 layers and 8/3 3, and an added layer of an LSTM is no"):
        common_shape([LSTMConfig(shape=shape) for shape in ("8/2", "8/3")])


def test_settings_of_training_and_of_rounding_are_no_other_parameters() -> None:
    one = EncoderConfig(shape="16/1/2/64")
    alike: list[ModelConfig] = [
        one,
        *encoders("16/1/2/64", dropout=0.0, layer_norm_eps=1e-3, checkpointing=True),
    ]
    assert one_architecture(alike)
    assert common_shape(alike) == one.sizes
    assert one_architecture([one])
    for other in (*encoders("16/1/2/65"), *encoders("16/1/2/64", norm="post"), LSTMConfig(shape="16/2")):
        assert not one_architecture([one, other])


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (
            encoders("16/1/2/64", "32/1/2/128"),
            "the heads of 16/1/2/64 are 16 wide and those of 32/1/2/128 32, .* use 32/2/2/128$",
        ),
        (encoders("16/1/2/64", "24/1/2/64"), "those of 24/1/2/64 24, and heads are copied as they are$"),
        (
            encoders("16/1/2/64", "16/1/3/64", norm="post"),
            "layers and 16/1/3/64 3, and with post-norm an added",
        ),
        (
            [*encoders("16/1/2/64"), *encoders("32/2/2/64", norm="post")],
            "16/1/2/64 and 32/2/2/64-post differ in norm, not in their shapes alone",
        ),
        ([*encoders("16/1/2/64"), LSTMConfig(shape="32/2")], "16/1/2/64 and lstm-32/2 differ in kind"),
        (encoders("16/1/2/64", "32/2/2/64", cls=True), "16/1/2/64-cls, which reads the sentence-level token"),
        (
            [HuggingFaceConfig.model_construct(path="a"), *encoders("16/1/2/64")],
            "a model of the kind 'huggingface' cannot be enlarged",
        ),
    ],
)
def test_why_there_is_no_common_shape_is_said(models: list[ModelConfig], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        common_shape(models)
