"""An encoder's passes in one call of compiled code, beside the same passes call by call, bit by bit."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.fused_oracle import LANGUAGE, SMALL, draw
from helpers.memory import assert_gives_back
from raysweep.languages import PCFG
from raysweep.models import EncoderConfig
from raysweep.models.batch import Batch
from raysweep.models.encoder import Encoder
from raysweep.models.fused import encoder as fused
from raysweep.models.fused import encoder_weights, products, tables
from raysweep.models.fused.packing import Chunk, packed
from raysweep.models.fused.products import FAST, PAIRS, TILES
from raysweep.models.fused.sublayer import gathers
from raysweep.models.fused.whole import Whole

pytestmark = pytest.mark.skipif(not FAST, reason="torch computes all products on this processor")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of few rows be compiled ones as well; in one call they always are."""
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    monkeypatch.setattr(encoder_weights, "MANY", products.MANY)


def make(dropout: float = 0.0, language: PCFG = LANGUAGE, **options: Any) -> Encoder:
    model = EncoderConfig(dropout=dropout, **{"shape": "32/2/2/48", **options}).build(language, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    return model.train()


#: The precisions whose products are compiled ones.
DTYPES = [torch.float32, torch.bfloat16] if PAIRS else [torch.float32]


def stepped(model: Encoder, batch: Batch, dtype: torch.dtype = torch.float32) -> tuple[float, list[Tensor]]:
    step = fused.step(model, batch, seed=7, dtype=dtype)
    loss, weights = step.done()
    return loss, [gradient.clone() for gradient in step.gradients(weights)]


def same(one: tuple[float, list[Tensor]], other: tuple[float, list[Tensor]]) -> bool:
    """Return whether two losses and their gradients are equal, bit by bit."""
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


def call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_weights.EncoderWeights, "whole_for", lambda self, chunk: None)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Chunk]:
    """Return a list that takes the chunks of all calls."""
    found: list[Chunk] = []
    for name in ("learn", "encode"):
        own = getattr(Whole, name)

        def noted(self: Whole, chunk: Chunk, *given: Any, own: Any = own) -> Any:
            found.append(chunk)
            return own(self, chunk, *given)

        monkeypatch.setattr(Whole, name, noted)
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", ["one", 0.4, 0.9])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", ["32/2/1/48", "32/4/3/64", "48/1/2/80", "16/2/2/32"])
@pytest.mark.parametrize("language", [LANGUAGE, SMALL], ids=["many words", "few words"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_and_gradients_are_those_of_the_passes_call_by_call(
    dtype: torch.dtype,
    language: PCFG,
    shape: str,
    norm: str,
    mask: Any,
    dropout: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make(dropout, language=language, shape=shape, norm=norm)
    batch = draw(mask, size=120, language=language)
    chunks = counted(monkeypatch)
    found = stepped(model, batch, dtype)
    assert chunks
    call_by_call(monkeypatch)
    assert same(found, stepped(model, batch, dtype))


@pytest.mark.skipif(not TILES, reason="this processor has no tiles")
@pytest.mark.parametrize("mask", ["one", 0.9])
def test_tiles_take_parts_of_any_even_width(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make(shape="48/4/2/64"), draw(mask, size=120)
    chunks = counted(monkeypatch)
    found = stepped(model, batch, torch.bfloat16)
    assert chunks
    call_by_call(monkeypatch)
    assert same(found, stepped(model, batch, torch.bfloat16))


def test_both_ways_of_attention_and_equal_words_are_among_these(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = counted(monkeypatch)
    ways = set()
    for language in (LANGUAGE, SMALL):
        model = make(language=language, shape="32/2/1/48")
        for mask in ("one", 0.9):
            chunks.clear()
            stepped(model, draw(mask, size=120, language=language))
            [chunk] = chunks
            few = 2 * model.total_vocabulary * chunk.longest <= len(chunk.ids)
            ways.add((gathers(chunk, 32, 2), few))
    assert ways == {(True, False), (False, False), (True, True), (False, True)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_and_threads_add_up_as_they_do_call_by_call(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where there are tiles, torch computes products of fewer than 32 rows call by call.
    model, batch = make(0.2), draw(0.9, size=300)
    monkeypatch.setattr(fused, "CHUNK", 400)
    chunks, before = counted(monkeypatch), torch.get_num_threads()
    found = []
    for way in (lambda: None, lambda: call_by_call(monkeypatch)):
        way()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                found.append(stepped(model, batch, dtype))
            finally:
                torch.set_num_threads(before)
    assert len(chunks) > 4
    assert min(len(chunk.masked) for chunk in chunks) >= 32
    assert all(map(same, found[:2], found[2:]))


def test_sentences_without_a_masked_word_add_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make(0.2), draw(0.3)
    kept = batch.index // batch.ids.shape[1] % 3 == 0
    some = replace(batch, index=batch.index[kept], targets=batch.targets[kept])
    found = stepped(model, some)
    monkeypatch.setattr(fused, "CHUNK", 1)
    loss, gradients = stepped(model, some)
    assert loss == pytest.approx(found[0], rel=1e-6)
    for one, other in zip(gradients, found[1], strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mask", ["one", 0.9])
@pytest.mark.parametrize("shape", ["32/2/1/48", "32/4/3/64"])
@pytest.mark.parametrize("language", [LANGUAGE, SMALL], ids=["many words", "few words"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_states_are_those_of_the_passes_call_by_call(
    dtype: torch.dtype,
    language: PCFG,
    shape: str,
    mask: Any,
    norm: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make(0.2, language=language, shape=shape, norm=norm)
    batch = draw(mask, size=120, language=language)
    chunks = counted(monkeypatch)
    with torch.no_grad():
        for mode in (model.train(), model.eval()):
            chunks.clear()
            found = mode.hidden_at(batch, seed=3, dtype=dtype)
            assert chunks
            with monkeypatch.context() as patched:
                call_by_call(patched)
                wanted = mode.hidden_at(batch, seed=3, dtype=dtype)
            assert torch.equal(found, wanted)
    chunks.clear()
    mode.hidden_at(batch, seed=3, dtype=dtype).sum().backward()
    assert not chunks  # their backward pass has yet to come


@pytest.mark.parametrize(("options", "dtype"), [
    ({"shape": "24/2/2/48"}, torch.bfloat16), ({"shape": "24/2/2/48"}, torch.float32),
    ({"shape": "32/2/2/40"}, torch.float32), ({"shape": "48/4/2/64"}, torch.float32),
    pytest.param(
        {"shape": "48/4/2/64"}, torch.bfloat16, marks=pytest.mark.skipif(TILES, reason="tiles take it")
    ),
])  # fmt: skip
def test_where_torch_computes_a_product_it_is_call_by_call(
    options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = counted(monkeypatch)
    fused.step(make(**options), draw(), seed=7, dtype=dtype).done()
    assert not chunks


def test_both_precisions_are_taken_in_turns() -> None:
    model, batch = make(), draw()
    found = [stepped(model, batch, dtype) for dtype in DTYPES * 2]
    assert all(map(same, found, found[len(DTYPES) :]))
    assert found[0][0] == pytest.approx(found[len(DTYPES) - 1][0], rel=0.02)


@pytest.mark.parametrize("way", ["other order", "float64"])
def test_weights_of_another_kind_are_left_to_the_passes_call_by_call(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks, model = counted(monkeypatch), make()
    bias = model.head_norm.bias
    bias.data = bias.data.double() if way == "float64" else torch.stack([bias.data, bias.data], 1)[:, 0]
    fused.step(model, draw(), seed=7, dtype=torch.float32).done()
    assert not chunks


def test_targets_of_another_type_are_taken() -> None:
    model, batch = make(), draw()
    assert same(stepped(model, batch), stepped(model, replace(batch, targets=batch.targets.int())))


@pytest.mark.parametrize("mask", ["one", 0.9])
@pytest.mark.parametrize("shape", ["32/2/1/48", "32/4/3/64"])
def test_rows_that_are_filled_up_change_nothing(
    shape: str, mask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make(0.2, shape=shape), draw(mask, size=60)
    found, own = stepped(model, batch), tables.tables

    def filled(*given: Any) -> tuple[tables.Tables, np.ndarray]:
        made, layouts = own(*given)
        return made._replace(fewest=int(batch.lengths.sum()) + 7), layouts

    monkeypatch.setattr(tables, "tables", filled)
    assert same(found, stepped(make(0.2, shape=shape), batch))


def test_few_rows_are_multiplied_by_torch_or_here_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked words may be few where words are many."""
    model, batch = make(0.2), draw()
    for module in (products, encoder_weights):
        monkeypatch.setattr(module, "MANY", {torch.float32: 128, torch.bfloat16: 32})
    assert len(batch.index) < 128 <= batch.lengths.sum()
    loss, gradients = stepped(model, batch)
    call_by_call(monkeypatch)
    other, wanted = stepped(model, batch)
    assert loss == pytest.approx(other, rel=1e-6)
    for one, two in zip(gradients, wanted, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_rows_are_left_to_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, batch = counted(monkeypatch), draw()
    words = int(batch.lengths.sum())
    for most, served in ((words, 1), (words + 1, 0)):
        monkeypatch.setattr(encoder_weights, "MANY", {dtype: most})
        chunks.clear()
        stepped(make(), batch, dtype)
        assert len(chunks) == served


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", ["32/2/1/48", "32/4/3/64"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("language", [LANGUAGE, SMALL], ids=["many words", "few words"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_memory_is_given_back(
    dtype: torch.dtype, language: PCFG, dropout: float, shape: str, norm: str
) -> None:
    model = make(dropout, language=language, shape=shape, norm=norm)
    with torch.no_grad():
        for mask in ("one", 0.9, "none"):
            batch = draw(0.9 if mask == "none" else mask, size=60, language=language)
            if mask == "none":
                first = batch.index < batch.ids.shape[1]
                batch = replace(batch, index=batch.index[first], targets=batch.targets[first])
            # In one of the chunks of one sentence each, no word is masked.
            chunks = packed(batch, model, 1 if mask == "none" else 10_000)
            chunk = next(c for c in chunks if mask != "none" or len(c.masked) == 0)
            weights = encoder_weights.EncoderWeights(model, dtype)
            whole, given = weights.whole_for(chunk), fused.dropped(model, 7)
            assert whole is not None
            for work in (
                partial(whole.learn, chunk, np.float32(1), *given),
                partial(whole.encode, chunk, *given),
            ):
                assert_gives_back(work, (mask, work))


def test_what_is_not_finite_shows_in_the_loss() -> None:
    model = make()
    with torch.no_grad():
        model.token_embedding.weight[3] = float("nan")
    assert np.isnan(stepped(model, draw())[0])
