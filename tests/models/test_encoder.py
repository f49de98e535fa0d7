"""The encoder against Hugging Face's, and the laws it keeps."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from raysweep.errors import DataError
from raysweep.models import Encoder, EncoderConfig, parameter_count
from raysweep.models.dropout import Dropout

LANGUAGE: Any = SimpleNamespace(vocabulary_size=11, pad_id=11, max_length=7)
MASK = 12


def make(norm: str = "pre", shape: str = "12/3/2/20", **fields: Any) -> Encoder:
    """Return an encoder in evaluation mode none of whose parameters is special."""
    model = EncoderConfig(shape=shape, norm=norm, **fields).build(LANGUAGE, seed=4).eval()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def sentences(n: int = 14) -> tuple[Tensor, Tensor]:
    """Return sentences [n, 7] of every length, padded, with a mask at a position [n] of each."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 11, (n, 7), generator=generator)
    lengths = torch.arange(n) % 7 + 1
    ids[torch.arange(7) >= lengths[:, None]] = LANGUAGE.pad_id
    positions = (torch.rand(n, generator=generator) * lengths).long()
    return ids.scatter(1, positions[:, None], MASK), positions


def peer(model: Encoder, norm: str) -> Any:
    """Return Hugging Face's model of the same form with the same weights."""
    import transformers

    layer = model.layers[0]
    common = {
        "vocab_size": model.total_vocabulary,
        "hidden_size": model.width,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": layer.heads,
        "intermediate_size": layer.up.out_features,
        "hidden_act": "gelu",
        "layer_norm_eps": model.head_norm.eps,
        "type_vocab_size": 1,
        "pad_token_id": LANGUAGE.pad_id,
        "tie_word_embeddings": True,
        "attn_implementation": "eager",
    }
    if norm == "post":
        other = transformers.BertForMaskedLM(
            transformers.BertConfig(max_position_embeddings=model.max_length, **common)
        )
        body, head, first = other.bert, other.cls.predictions, 0
        head_dense, head_norm = head.transform.dense, head.transform.LayerNorm
    else:
        # Its positions begin behind the padding's id.
        first = LANGUAGE.pad_id + 1
        other = transformers.RobertaPreLayerNormForMaskedLM(
            transformers.RobertaPreLayerNormConfig(max_position_embeddings=model.max_length + first, **common)
        )
        body, head = other.roberta_prelayernorm, other.lm_head
        head_dense, head_norm = head.dense, head.layer_norm
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (body.embeddings.word_embeddings, model.token_embedding),
        (body.embeddings.LayerNorm, model.embedding_norm),
        (head_dense, model.head_dense),
        (head_norm, model.head_norm),
        (head.decoder, model.decoder),
    ]
    if model.final_norm is not None:
        pairs.append((body.LayerNorm, model.final_norm))
    for theirs, ours in zip(body.encoder.layer, model.layers, strict=True):
        attention = theirs.attention
        post = norm == "post"
        pairs += [
            (attention.self.query, ours.query),
            (attention.self.key, ours.key),
            (attention.self.value, ours.value),
            (attention.output.dense, ours.output),
            (attention.output.LayerNorm if post else attention.LayerNorm, ours.attention_norm),
            (theirs.intermediate.dense, ours.up),
            (theirs.output.dense, ours.down),
            (theirs.output.LayerNorm if post else theirs.intermediate.LayerNorm, ours.mlp_norm),
        ]
    with torch.no_grad():
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
        body.embeddings.position_embeddings.weight[first : first + model.max_length] = (
            model.position_embedding.weight
        )
        body.embeddings.token_type_embeddings.weight.zero_()
        other.get_output_embeddings().bias.copy_(model.decoder.bias)
    other.first_position = first
    return other.eval()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", ["12/3/2/20", "12/1/1/48"])
def test_logits_are_hugging_faces(norm: str, shape: str) -> None:
    model = make(norm, shape)
    other = peer(model, norm)
    ids, positions = sentences()
    real = ids != LANGUAGE.pad_id
    at = torch.arange(7).expand_as(ids) + other.first_position
    expected = other(input_ids=ids, attention_mask=real.long(), position_ids=at).logits
    found = model.head(model.encode(ids))
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-5)
    rows = torch.arange(len(ids))
    torch.testing.assert_close(model(ids, positions), expected[rows, positions], rtol=0, atol=1e-5)
    assert expected[real].std() > 0.1


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_logits_at_one_position_are_those_of_all(norm: str) -> None:
    model = make(norm).double()
    ids, positions = sentences()
    rows = torch.arange(len(ids))
    every = model.head(model.encode(ids))
    torch.testing.assert_close(model(ids, positions), every[rows, positions], rtol=0, atol=1e-12)
    index = torch.tensor([0, 8, 9, 40])
    torch.testing.assert_close(model.logits_at(ids, index), every.flatten(0, 1)[index], rtol=0, atol=0)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_padding_changes_nothing(norm: str) -> None:
    model = make(norm).double()
    ids, positions = sentences()
    together = model(ids, positions)
    for row, (sentence, position) in enumerate(zip(ids, positions, strict=True)):
        alone = sentence[sentence != LANGUAGE.pad_id][None]
        torch.testing.assert_close(model(alone, position[None])[0], together[row], rtol=0, atol=1e-12)


def test_the_decoder_is_the_embedding_through_moves_and_copies() -> None:
    import copy

    for model in (make(), make().to(torch.float64), copy.deepcopy(make()), make().to("cpu")):
        assert model.decoder.weight is model.token_embedding.weight


def test_parameters_are_counted_once_and_without_building() -> None:
    config = EncoderConfig(shape="12/3/2/20")
    d, m, v, t = 12, 20, 16, 7
    layer = 4 * (d * d + d) + 2 * 2 * d + (d * m + m) + (m * d + d)
    expected = v * d + t * d + 2 * d + 2 * layer + 2 * d + (d * d + d) + 2 * d + v
    assert parameter_count(config.build(LANGUAGE, seed=0)) == config.parameters(LANGUAGE) == expected


def test_initial_weights_belong_to_the_seed() -> None:
    config = EncoderConfig(shape="64/2/2/128")
    state = torch.get_rng_state()
    first, same, other = (config.build(LANGUAGE, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in first.named_parameters():
        twin = dict(same.named_parameters())[name]
        assert torch.equal(parameter, twin), name
        if parameter.ndim == 2:
            assert not torch.equal(parameter, dict(other.named_parameters())[name]), name
            assert abs(parameter.std().item() / 0.02 - 1) < 0.15, name
        else:
            assert bool((parameter == ("norm.weight" in name)).all()), name


def test_too_long_a_sentence_is_refused() -> None:
    with pytest.raises(DataError, match="sentences of 8 positions, but the model has 7"):
        make().encode(torch.zeros(1, 8, dtype=torch.int64))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("64/3/1/256", "'64/3/1/256': 3 heads do not divide the width 64; use 2 heads"),
        ("64/1/2", "'64/1/2' is not four positive numbers; write width/heads/layers/intermediate"),
        ("64/1/0/256", "not four positive numbers"),
        ("64/one/2/256", "not four positive numbers"),
        ("64/1/-2/256", "not four positive numbers"),
        ("", "not four positive numbers"),
    ],
)
def test_a_wrong_shape_is_an_error_with_its_remedy(shape: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        EncoderConfig.decode({"kind": "encoder", "shape": shape})
    assert [error["loc"] for error in caught.value.errors()] == [("shape",)]


@pytest.mark.parametrize(("field", "value"), [("dropout", 1.0), ("norm", "both"), ("layer_norm_eps", 0.0)])
def test_a_wrong_value_is_an_error_at_its_field(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        EncoderConfig.decode({"kind": "encoder", "shape": "8/1/1/8", field: value})
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


def test_labels_tell_configurations_apart() -> None:
    configs = [
        EncoderConfig(shape="8/1/1/8"),
        EncoderConfig(shape="8/2/1/8"),
        EncoderConfig(shape="8/1/1/8", norm="post"),
        EncoderConfig(shape="8/1/1/8", dropout=0.0),
        EncoderConfig(shape="8/1/1/8", layer_norm_eps=1e-12),
    ]
    assert len({config.label for config in configs}) == len(configs)
    assert EncoderConfig.decode({"kind": "encoder", "shape": "08/1/1/8"}).label == "8/1/1/8"


class TestDropout:
    def test_mean_and_share(self) -> None:
        torch.manual_seed(0)
        x = torch.ones(401, 503)
        y = Dropout(0.3)(x)
        n = x.numel()
        dropped = (y == 0).double().mean().item()
        assert abs(dropped - 0.3) < 5 * (0.3 * 0.7 / n) ** 0.5 + 2**-16
        kept = y[y != 0]
        assert bool((kept == kept[0]).all())
        assert abs(kept[0].item() - 1 / 0.7) < 1e-4

    def test_gradient_goes_where_the_value_went(self) -> None:
        x = torch.randn(37, requires_grad=True)
        y = Dropout(0.5)(x)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad * x, y)

    def test_neighbouring_masks_are_independent(self) -> None:
        torch.manual_seed(0)
        y = (Dropout(0.5)(torch.ones(1 << 18)) == 0).double() - 0.5
        for lag in (1, 2, 3, 4):
            correlation = 4 * (y[:-lag] * y[lag:]).mean().item()
            assert abs(correlation) < 5 / (1 << 9), lag

    def test_identity_when_there_is_nothing_to_do(self) -> None:
        x = torch.randn(5)
        assert Dropout(0.0)(x) is x
        assert Dropout(0.5).eval()(x) is x
