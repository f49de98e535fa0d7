"""The contract of models, over the registry."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from raysweep.models import EncoderConfig, LSTMConfig, ModelConfig
from raysweep.models.base import DrawnConfig
from raysweep.registry import models
from raysweep.testing import ModelContract

LANGUAGE: Any = SimpleNamespace(vocabulary_size=9, pad_id=9, mask_id=10, cls_id=11, max_length=6)


class TestModels(ModelContract):
    """Every kind."""

    configs: ClassVar = {kind: models.get(kind).example for kind in models.kinds()}


class TestModelsWithCLS(ModelContract):
    """Those that can read the sentence-level token, with it."""

    configs: ClassVar = {
        "encoder": EncoderConfig(shape="8/2/2/12", cls=True),
        "lstm": LSTMConfig(shape="12/2", cls=True),
    }


@pytest.fixture(params=[kind for kind in models.kinds() if issubclass(models.get(kind), DrawnConfig)])
def config(request: pytest.FixtureRequest, tmp_path) -> ModelConfig:
    """The example of each kind that has a choice of vocabulary."""
    return models.get(request.param).example(tmp_path)


def test_parameters_are_counted_for_either_vocabulary(config: ModelConfig) -> None:
    counts = config.parameter_counts(LANGUAGE)
    assert counts["own"] == config.parameters(LANGUAGE)
    other = config.model_copy(update={"vocabulary": "faithful"})
    rows, width = 30528 - 16, config.build(LANGUAGE, seed=0).width
    assert counts["faithful"] == other.parameters(LANGUAGE) == counts["own"] + rows * (width + 1)


def test_the_vocabulary_is_part_of_what_a_model_is(config: ModelConfig) -> None:
    assert config.content()["vocabulary"] == "own"
    other = config.model_copy(update={"vocabulary": "faithful"})
    assert other.content() == config.content() | {"vocabulary": "faithful"}
    assert other.label != config.label
    assert other.problems(SimpleNamespace(vocabulary_size=30519)) == []
    [(field, message)] = other.problems(SimpleNamespace(vocabulary_size=30520))
    assert field == "vocabulary"
    assert message.endswith("use 'own'")
