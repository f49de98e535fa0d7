"""What every model keeps to, whatever its kind."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysweep.models import EncoderConfig, MaskedLM, ModelConfig, to_huggingface
from raysweep.registry import models

LANGUAGE: Any = SimpleNamespace(vocabulary_size=9, pad_id=9, mask_id=10, cls_id=11, max_length=6)
#: The smallest sensible fields of a kind that has fields without a default.
FIELDS: dict[str, dict[str, Any]] = {"encoder": {"shape": "8/2/2/12"}, "lstm": {"shape": "8/2"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of Hugging Face's, for the kind that begins with one."""
    place = tmp_path_factory.mktemp("checkpoint") / "small"
    to_huggingface(EncoderConfig(shape="8/2/2/12").build(LANGUAGE, seed=5), place)
    return place


@pytest.fixture(params=models.kinds())
def config(request: pytest.FixtureRequest) -> ModelConfig:
    fields = FIELDS.get(request.param, {})
    if request.param == "huggingface":
        fields = {"path": str(request.getfixturevalue("folder"))}
    return models.decode({"kind": request.param, **fields})


@pytest.fixture
def model(config: ModelConfig) -> MaskedLM:
    return config.build(LANGUAGE, seed=1)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 9, (8, 6), generator=torch.Generator().manual_seed(0))
    ids[:4, 4:] = LANGUAGE.pad_id
    positions = torch.arange(8) % 4
    return ids.scatter(1, positions[:, None], LANGUAGE.mask_id), positions


def test_a_configuration_survives_its_encoding(config: ModelConfig) -> None:
    assert models.decode(config.encode()) == config
    assert config.label
    assert config.problems(LANGUAGE) == []


def test_shapes(model: MaskedLM) -> None:
    ids, positions = batch()
    hidden = model.encode(ids)
    assert hidden.shape == (8, 6, model.width)
    assert model.head(hidden).shape == (8, 6, model.total_vocabulary)
    assert model(ids, positions).shape == (8, model.total_vocabulary)
    assert model.logits_at(ids, torch.tensor([0, 3, 47])).shape == (3, model.total_vocabulary)
    assert (model.vocabulary_size, model.pad_id, model.max_length) == (9, 9, 6)
    assert model.total_vocabulary >= 12
    assert model.total_vocabulary % 8 == 0


def test_forward_is_the_head_of_the_encoding(model: MaskedLM) -> None:
    ids, positions = batch()
    model.eval().double()
    rows = torch.arange(8)
    expected = model.head(model.encode(ids))[rows, positions]
    torch.testing.assert_close(model(ids, positions), expected, rtol=0, atol=1e-12)


def test_rows_do_not_see_each_other_nor_padding(model: MaskedLM) -> None:
    ids, positions = batch()
    model.eval().double()
    together = model(ids, positions)
    torch.testing.assert_close(model(ids[:4, :4], positions[:4]), together[:4], rtol=0, atol=1e-12)
    torch.testing.assert_close(model(ids.flip(0), positions.flip(0)).flip(0), together, rtol=0, atol=1e-12)


def test_gradients_reach_every_parameter(model: MaskedLM) -> None:
    ids, positions = batch()
    model(ids, positions).log_softmax(-1)[:, 0].sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_the_seed_makes_the_weights(config: ModelConfig) -> None:
    first, same, other = (dict(config.build(LANGUAGE, seed=s).named_parameters()) for s in (1, 1, 2))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first) == type(config).seeded
    assert config.parameters(LANGUAGE) == sum(p.numel() for p in first.values())


def test_what_stands_at_padding_does_not_matter(model: MaskedLM) -> None:
    ids, positions = batch()
    model.eval().double()
    before = model(ids, positions)
    with torch.no_grad():
        model.get_parameter("token_embedding.weight")[LANGUAGE.pad_id] = 3.0
        model.get_parameter("decoder.bias")[LANGUAGE.pad_id] = 0.0
    words = [k for k in range(model.total_vocabulary) if k != LANGUAGE.pad_id]
    torch.testing.assert_close(model(ids, positions)[:, words], before[:, words], rtol=0, atol=1e-12)


def test_parameters_are_counted_for_either_vocabulary(config: ModelConfig) -> None:
    counts = config.parameter_counts(LANGUAGE)
    assert counts["own"] == config.parameters(LANGUAGE)
    if "vocabulary" in type(config).model_fields:
        other = config.model_copy(update={"vocabulary": "faithful"})
        rows = 30528 - 16
        assert counts["faithful"] == other.parameters(LANGUAGE) == counts["own"] + rows * (8 + 1)


def test_the_default_vocabulary_is_no_part_of_what_a_model_is(config: ModelConfig) -> None:
    if "vocabulary" not in type(config).model_fields:
        pytest.skip("its vocabulary is that of its weights")
    assert "vocabulary" not in config.content()
    other = config.model_copy(update={"vocabulary": "faithful"})
    assert other.content() == config.content() | {"vocabulary": "faithful"}
    assert other.label != config.label
    assert other.problems(SimpleNamespace(vocabulary_size=30519)) == []
    [(field, message)] = other.problems(SimpleNamespace(vocabulary_size=30520))
    assert field == "vocabulary"
    assert message.endswith("use 'own'")
