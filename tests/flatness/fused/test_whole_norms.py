"""Norms of an encoder's chunks in two calls of compiled code, beside the same call by call, bit by bit."""

import copy
import gc
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.memory import assert_gives_back
from raysweep.flatness.fused import norms as fused
from raysweep.flatness.fused import whole
from raysweep.flatness.trace.fisher import input_traces
from raysweep.models.fused import products, step, tables
from raysweep.models.fused.encoder_weights import EncoderWeights
from raysweep.models.fused.products import FAST

pytestmark = pytest.mark.skipif(not FAST, reason="torch computes all products on this processor")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of few rows be compiled ones as well; in one call they always are."""
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    torch.set_num_threads(1)


#: Encoders with one layer and several, and with attention in either way; widths fill vectors or do not.
#: Gradients of the narrow ones could not be summed by compiled code.
SHAPES = ["8/2/2/12", "8/2/1/12", "32/1/1/48", "32/1/3/48", "48/4/2/40"]


@pytest.mark.parametrize("n", [10, 60], ids=["words apart", "equal words at once"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"draws": 2}, {"vectors": "label"}, {"vectors": "exact"}], ids=str)
def test_norms_are_the_same(
    make_model: Any,
    make_ids: Any,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    norm: str,
    n: int,
    options: dict[str, Any],
) -> None:
    model, given = make_model(norm, torch.float32, 5, shape=shape), make_ids(n, 5)
    with whole.maker(model) as made:
        assert made is not None
    found = input_traces(model, *given, seed=3, **options)
    monkeypatch.setattr(whole, "maker", lambda model: nullcontext())
    wanted = input_traces(model, *given, seed=3, **options)
    assert torch.equal(found.values, wanted.values)
    for name in ("spread", "control"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one is other is None or torch.equal(one, other)


def test_where_torch_computes_products_passes_are_call_by_call(
    make_model: Any, make_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = make_model("pre", torch.float32, 5), make_ids(10, 5)
    found = input_traces(model, *given)
    monkeypatch.setattr(products, "FAST", False)
    model = copy.deepcopy(model)
    with whole.maker(model) as made:
        assert made is None
    torch.testing.assert_close(input_traces(model, *given).values, found.values, rtol=1e-4, atol=1e-7)


def test_sums_need_not_be_compiled(make_model: Any) -> None:
    weights = EncoderWeights(make_model("pre", torch.float32), torch.float32)
    assert not tables.serves(weights)
    assert tables.serves(weights, apart=True)


@pytest.mark.parametrize("n", [10, 60])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("passes", [[], [False], [True], [False, False, True]], ids=str)
def test_all_memory_is_given_back(
    make_model: Any, make_ids: Any, shape: str, norm: str, n: int, passes: list[bool]
) -> None:
    """It is so even where no backward pass was the last one, or where there was none."""
    model = make_model(norm, torch.float32, 5, shape=shape)
    work, given = fused.FusedNorms(model), make_ids(n, 5)
    v = torch.ones(n, model.total_vocabulary)

    def measure() -> list[Tensor]:
        [forward] = work.batches(*given)
        return [forward.norms(v, last) for last in passes]

    with torch.no_grad():
        assert_gives_back(measure)


def test_no_backward_pass_follows_the_last_one(make_model: Any, make_ids: Any) -> None:
    model, (ids, positions) = make_model("pre", torch.float32), make_ids(10, 4)
    [forward] = fused.FusedNorms(model).batches(ids, positions)
    v = torch.ones(10, model.total_vocabulary)
    with pytest.raises(ValueError, match=r"vectors \[10, 2\] at 10 masked words"):
        forward.norms(v[:, :2], True)
    first, last = forward.norms(v, False), forward.norms(v, True)
    assert torch.equal(first, last)
    with pytest.raises(RuntimeError, match="the last backward pass of these norms is done"):
        forward.norms(v, True)


def test_what_is_kept_takes_the_weights_as_they_are(make_model: Any, make_ids: Any) -> None:
    model, given = make_model("post", torch.float32, 5, shape="32/2/2/48"), make_ids(60, 5)
    first = input_traces(model, *given)
    assert model in whole._spare
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    found = input_traces(model, *given)
    assert torch.equal(found.values, input_traces(copy.deepcopy(model), *given).values)
    assert not torch.equal(found.values, first.values)
    # A parameter in another place, and another epsilon.
    model.layers[0].up.weight = torch.nn.Parameter(2 * model.layers[0].up.weight.detach())
    model.head_norm.eps = 0.1
    found = input_traces(model, *given)
    assert torch.equal(found.values, input_traces(copy.deepcopy(model), *given).values)
    # Another module with the same parameters.
    other = torch.nn.LayerNorm(32, eps=0.5)
    other.weight, other.bias = model.head_norm.weight, model.head_norm.bias
    model.head_norm = other
    found = input_traces(model, *given)
    assert torch.equal(found.values, input_traces(copy.deepcopy(model), *given).values)


def test_norms_that_outlive_their_batches_leave_no_layouts(make_model: Any, make_ids: Any) -> None:
    model, given = make_model("post", torch.float32, 5, shape="32/2/2/48"), make_ids(60, 5)
    [forward] = fused.FusedNorms(model).batches(*given)
    forward.norms(torch.ones(60, model.total_vocabulary), True)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    found = input_traces(model, *given)
    assert torch.equal(found.values, input_traces(copy.deepcopy(model), *given).values)


def test_large_models_keep_nothing(make_model: Any, make_ids: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_KEPT", 100)
    model = make_model("pre", torch.float32)
    input_traces(model, *make_ids(10, 4))
    assert model not in whole._spare


def test_models_are_freed(make_model: Any, make_ids: Any) -> None:
    model = make_model("pre", torch.float32)
    input_traces(model, *make_ids(10, 4))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
