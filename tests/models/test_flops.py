"""Operations of training: those that torch counts in the plain models, where nothing is padded or idle."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from raysweep.languages import PCFG
from raysweep.models import EncoderConfig, LSTMConfig, MaskedLM
from raysweep.models.flops import training_flops

SENTENCES, LENGTH = 5, 7


def counted(model: MaskedLM) -> int:
    """Return the operations of a step on sentences of one length, one word of each masked."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.vocabulary_size, (SENTENCES, LENGTH), generator=generator)
    with FlopCounterMode(display=False) as counter:
        model(ids, torch.arange(SENTENCES)).logsumexp(dim=-1).sum().backward()
    return counter.get_total_flops()


def formula(model: MaskedLM) -> int | None:
    lengths = torch.full((SENTENCES,), LENGTH)
    return training_flops(model, lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("shape", ["32/2/3/64", "16/1/1/48"])
def test_an_encoder(shape: str) -> None:
    model = EncoderConfig(shape=shape, dropout=0.0).build(PCFG.random(), seed=0)
    assert formula(model) == counted(model)


@pytest.mark.parametrize("shape", ["16/1", "32/3"])
def test_an_lstm(shape: str) -> None:
    """As many sentences as words, so that each place is that of the masked word once."""
    # In float64 the library that torch hands whole layers to stands aside, and products are seen.
    model = LSTMConfig(shape=shape, dropout=0.0).build(PCFG.random(), seed=0).double()
    hidden, layers = model.shape
    found = 0
    for place in range(LENGTH):
        ids = torch.randint(model.vocabulary_size, (1, LENGTH))
        last = model.layers[-1]
        with FlopCounterMode(display=False) as counter:
            x = model.token_embedding(ids)
            for layer in model.layers[:-1]:
                x = layer(x, torch.arange(LENGTH - 1, -1, -1)[None])
            # No direction reads on behind the masked word.
            left, _ = last.left_to_right(x[:, : place + 1])
            right, _ = last.right_to_left(x[:, place:].flip(1))
            hidden_state = torch.cat([left[:, -1], right[:, -1]], dim=1)
            model.head(hidden_state).logsumexp(dim=-1).sum().backward()
        found += counter.get_total_flops()
    # Nobody asks for the gradient of the states that reading starts from.
    start = layers * 2 * LENGTH * 8 * (hidden // 2) ** 2
    lengths = torch.full((LENGTH,), LENGTH)
    assert training_flops(model, lengths, torch.ones_like(lengths)) == found + start


def test_the_last_layer_of_an_lstm_is_read_as_far_as_is_needed() -> None:
    """In the mean over all pairs of masked words, beside the same model with a layer more."""
    two, three = (
        training_flops(
            LSTMConfig(shape=shape).build(PCFG.random(), seed=0), torch.tensor([LENGTH]), torch.tensor([2])
        )
        for shape in ("16/2", "16/3")
    )
    pairs = list(combinations(range(1, LENGTH + 1), 2))
    read = sum(max(pair) + LENGTH + 1 - min(pair) for pair in pairs) / len(pairs)
    head = 3 * 2 * 2 * 16 * LSTMConfig(shape="16/2").build(PCFG.random(), seed=0).total_vocabulary
    assert three is not None
    assert two is not None
    assert three - two == 3 * 12 * LENGTH * 16**2
    assert two - (three - two) - head == round(3 * 6 * 16**2 * read)


def test_sentences_add_up() -> None:
    model = EncoderConfig(shape="32/2/2/64").build(PCFG.random(), seed=0)
    lengths, masked = torch.tensor([3, 9, 16]), torch.tensor([1, 4, 2])
    each = [training_flops(model, *pair) for pair in zip(lengths.split(1), masked.split(1), strict=True)]
    assert training_flops(model, lengths, masked) == sum(flops for flops in each if flops is not None)


def test_operations_of_another_model_are_not_known() -> None:
    class Other(MaskedLM):
        encode = head = initialise = None  # type: ignore[assignment]

    assert formula(Other()) is None
