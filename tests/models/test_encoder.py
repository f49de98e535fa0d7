"""The encoder against Hugging Face's, and the laws it keeps."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from raysweep.errors import DataError
from raysweep.models import NAMED_SHAPES, Encoder, EncoderConfig, parameter_count
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


def test_a_named_shape_is_its_numbers() -> None:
    for name, shape in NAMED_SHAPES.items():
        named, written = EncoderConfig(shape=name), EncoderConfig(shape=shape)
        assert named == written
        assert named.encode() == written.encode()
        assert named.sizes.width == 64 * named.sizes.heads
    with pytest.raises(ValidationError, match=r"or a name, e\.g\. table3-64 — did you mean 'table3-512'\?"):
        EncoderConfig(shape="table3_512")


def test_published_sizes() -> None:
    # BERT's positions; the published numbers are rounded, or have the pooler's matrix besides.
    bert: Any = SimpleNamespace(vocabulary_size=200, pad_id=200, max_length=512)
    millions = {
        name: EncoderConfig(shape=name).parameter_counts(bert)["faithful"] / 1e6 for name in NAMED_SHAPES
    }
    found = " ".join(f"{name}={count:.1f}" for name, count in millions.items())
    assert found == (
        "table3-64=2.1 table3-128=4.8 table3-192=8.3 table3-256=12.8 table3-512=41.4 table3-768=109.5 "
        "table3-1024=234.4 table3-1280=435.0 table3-1536=730.0 table4-128=4.8 table4-192=8.3 "
        "table4-320=16.5 table4-384=27.3 table4-640=87.3 table4-960=215.8 table4-1920=751.9"
    )
    assert EncoderConfig(shape="table3-512").parameter_counts(bert)["own"] == 25_853_648
    # The largest published size takes an intermediate layer of four widths.
    wide = EncoderConfig(shape="1920/30/20/7680").parameter_counts(bert)["faithful"] / 1e6
    assert 945 < wide < 955
    base = EncoderConfig(shape="table3-768", norm="post", vocabulary="faithful").parameters(bert)
    # BertForMaskedLM of BERT base, without its segments (2 x 768), with 6 more rows of 768 and a bias each.
    assert base == 109_514_298 - 2 * 768 + 6 * 769


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("single", [True, False])
def test_checkpointing_changes_no_bit(norm: str, single: bool) -> None:
    ids, positions = sentences()
    index = torch.arange(14) * 7 + positions
    found = []
    for checkpointing in (False, True):
        model = make(norm, dropout=0.3, checkpointing=checkpointing).train()
        torch.manual_seed(5)
        logits = model(ids, positions) if single else model.logits_at(ids, index)
        logits.log_softmax(-1)[:, 0].sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        found.append({"logits": logits.detach(), "generator": torch.get_rng_state(), **gradients})
    for name, expected in found[0].items():
        assert expected is not None
        assert found[1][name] is not None
        assert torch.equal(expected, found[1][name]), name


def test_checkpointing_keeps_fewer_activations_and_is_no_part_of_the_model() -> None:
    ids, _ = sentences()
    kept = []
    for checkpointing in (False, True):
        model = make(shape="12/3/6/48", checkpointing=checkpointing).train()
        elements = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal elements
            elements += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.encode(ids)
        kept.append(elements)
    assert kept[1] < 0.2 * kept[0]
    assert (
        EncoderConfig(shape="8/1/1/8", checkpointing=True).content()
        == EncoderConfig(shape="8/1/1/8").content()
    )


def test_the_unused_rows_of_a_larger_vocabulary_take_part_in_the_loss() -> None:
    model = make(vocabulary="faithful")
    ids, positions = sentences()
    logits = model(ids, positions)
    assert logits.shape == (14, 30528)
    assert model.token_embedding.weight.shape == (30528, 12)
    (-logits.log_softmax(-1)[:, 0].sum()).backward()
    assert bool((model.decoder.bias.grad[14:] > 0).all())


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


def test_sizes_and_initial_weights_need_no_compiler() -> None:
    """To import torch's compiler takes seconds, which every command would wait for."""
    code = """
import sys
from raysweep.languages import HMM
from raysweep.models import EncoderConfig, LSTMConfig
language = HMM.random(states=4, vocabulary=6, length=4, blocks=2, tasks=[2])
for config in (EncoderConfig(shape="16/1/1/32"), LSTMConfig(shape="16/1")):
    assert config.parameters(language) > 0
    config.build(language, seed=0)
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
