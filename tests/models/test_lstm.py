"""The LSTM against PyTorch's own bidirectional one on packed sentences."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from raysweep.evaluation.trace import TraceConfig
from raysweep.models import LSTM, EncoderConfig, LSTMConfig

LANGUAGE: Any = SimpleNamespace(vocabulary_size=11, pad_id=11, max_length=7)
MASK = 12


def sentences(n: int = 21) -> Tensor:
    """Return masked sentences [n, 7] of every length, in no order of it."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 11, (n, 7), generator=generator)
    lengths = torch.arange(n) * 3 % 7 + 1
    ids[torch.arange(7) >= lengths[:, None]] = LANGUAGE.pad_id
    positions = (torch.rand(n, generator=generator) * lengths).long()
    return ids.scatter(1, positions[:, None], MASK)


def peer(model: LSTM) -> nn.LSTM:
    """Return PyTorch's stacked bidirectional LSTM with the same weights."""
    width = model.width
    other = nn.LSTM(width, width // 2, len(model.layers), batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for k, layer in enumerate(model.layers):
            for name, parameter in layer.left_to_right.named_parameters():
                getattr(other, name.replace("l0", f"l{k}")).copy_(parameter)
            for name, parameter in layer.right_to_left.named_parameters():
                getattr(other, name.replace("l0", f"l{k}_reverse")).copy_(parameter)
    return other


@pytest.mark.parametrize("shape", ["8/1", "12/3"])
def test_hidden_states_are_pytorchs_on_packed_sentences(shape: str) -> None:
    model = LSTMConfig(shape=shape).build(LANGUAGE, seed=3).double().eval()
    assert isinstance(model, LSTM)
    ids = sentences()
    real = ids != LANGUAGE.pad_id
    packed = nn.utils.rnn.pack_padded_sequence(
        model.token_embedding(ids), real.sum(1), batch_first=True, enforce_sorted=False
    )
    expected, _ = nn.utils.rnn.pad_packed_sequence(peer(model)(packed)[0], batch_first=True, total_length=7)
    found = model.encode(ids)
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-12)
    logits = expected @ model.token_embedding.weight.T + model.decoder.bias
    torch.testing.assert_close(model.head(found)[real], logits[real], rtol=0, atol=1e-12)
    assert bool(found.isfinite().all())


def test_every_word_of_a_sentence_reaches_every_position() -> None:
    model = LSTMConfig(shape="8/1").build(LANGUAGE, seed=0).double().eval()
    ids = torch.arange(5)[None]
    for changed in range(5):
        other = ids.scatter(1, torch.tensor([[changed]]), 9)
        gap = (model.encode(ids) - model.encode(other)).abs().amax(-1)[0]
        assert bool((gap > 1e-9).all())


def test_initial_weights_are_distributed_as_pytorchs() -> None:
    model = LSTMConfig(shape="256/2", vocabulary="faithful").build(LANGUAGE, seed=0)
    bound = 128**-0.5
    for name, parameter in model.layers.named_parameters():
        assert parameter.abs().max() <= bound, name
        # The second moment of a uniform is bound² / 3, its fourth bound⁴ / 5.
        n = parameter.numel()
        z = (parameter.square().mean().item() - bound**2 / 3) / (bound**2 * (4 / 45 / n) ** 0.5)
        assert abs(z) < 4.5, name
    weight = model.token_embedding.weight
    assert abs(weight.mean().item()) * weight.numel() ** 0.5 < 4.5
    assert abs(weight.square().mean().item() - 1) * (weight.numel() / 2) ** 0.5 < 4.5
    assert bool((model.decoder.bias == 0).all())
    assert model.decoder.weight is weight


def test_dropout_acts_in_training_alone() -> None:
    model = LSTMConfig(shape="8/2", dropout=0.5).build(LANGUAGE, seed=0)
    ids = sentences()
    torch.manual_seed(0)
    first, second = model.train().encode(ids), model.encode(ids)
    assert not torch.equal(first, second)
    assert 0.3 < (first == 0).double().mean().item() < 0.7
    assert torch.equal(model.eval().encode(ids), model.encode(ids))


def test_parameters() -> None:
    d, layers, v = 12, 3, 16
    direction = 4 * (d // 2) * (d + d // 2) + 2 * 4 * (d // 2)
    assert LSTMConfig(shape="12/3").parameters(LANGUAGE) == v * d + v + layers * 2 * direction


def test_published_sizes() -> None:
    hmm: Any = SimpleNamespace(vocabulary_size=200, pad_id=200, max_length=16)
    shapes = ("128/4", "256/6", "512/8", "768/12", "1024/16")
    counts = [LSTMConfig(shape=shape).parameter_counts(hmm) for shape in shapes]
    assert [round(count["faithful"] / 1e6, 1) for count in counts] == [4.3, 10.2, 28.3, 66.0, 132.1]
    assert [round(count["own"] / 1e6, 1) for count in counts] == [0.4, 2.4, 12.7, 42.7, 101.0]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("12", "'12' is not two positive numbers; write hidden/layers, e.g. 128/4"),
        ("12/0", "not two positive numbers"),
        ("a/2", "not two positive numbers"),
        ("7/2", "two directions share the hidden size, and 7 is odd; use 8"),
    ],
)
def test_a_wrong_shape_is_an_error_with_its_remedy(shape: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        LSTMConfig.decode({"kind": "lstm", "shape": shape})
    assert [error["loc"] for error in caught.value.errors()] == [("shape",)]


def test_labels_tell_configurations_apart() -> None:
    configs = [
        LSTMConfig(shape="8/1"),
        LSTMConfig(shape="8/2"),
        LSTMConfig(shape="8/1", dropout=0.0),
        LSTMConfig(shape="8/1", vocabulary="faithful"),
    ]
    assert len({config.label for config in configs}) == len(configs)
    assert LSTMConfig(shape="08/1").label == "lstm-8/1"


def test_the_trace_is_measured() -> None:
    assert TraceConfig().model_problems(LSTMConfig(shape="8/1"), LANGUAGE) == []
    assert TraceConfig().model_problems(EncoderConfig(shape="8/1/1/8"), LANGUAGE) == []
