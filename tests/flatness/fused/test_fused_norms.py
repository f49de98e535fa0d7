"""Compiled ghost norms against dense Jacobians in float64, and against those of hooks."""

import copy
import logging
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from raysweep.errors import RunFailedError
from raysweep.flatness import choice
from raysweep.flatness.fused import norms as fused
from raysweep.flatness.fused import whole
from raysweep.flatness.fused.vectors import sign_vectors
from raysweep.flatness.norms.ghost import some_signs
from raysweep.flatness.trace.draws import Draws
from raysweep.flatness.trace.fisher import input_traces
from raysweep.flatness.vectors import cotangents
from raysweep.models.fused import kernels, tables
from raysweep.models.lstm import LSTMConfig


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def both(monkeypatch):
    """Return a function that measures in both ways, and fails where the compiled one was not taken."""

    def measure(model, ids, positions, **options):
        with monkeypatch.context() as patch:
            patch.setattr(choice, "gradient_norms", None)  # hooks are not called for
            compiled = input_traces(model, ids, positions, **options)
        with monkeypatch.context() as patch:
            patch.setattr(choice, "fits", lambda *given: False)
            return compiled, input_traces(model, ids, positions, **options)

    return measure


@pytest.fixture
def build(make_model):
    """Return a maker of models by kind: an encoder's `norm`, or an LSTM's shape."""

    def make(kind, length=4, dtype=torch.float32):
        if "/" not in kind:
            return make_model(kind, dtype, length)
        language = SimpleNamespace(vocabulary_size=5, pad_id=5, max_length=length)
        return LSTMConfig(shape=kind).build(language, seed=2).to(dtype)

    return make


KINDS = ["pre", "post", "6/1", "6/3", "40/2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 6])
def test_values_are_those_of_dense_jacobians(build, make_ids, dense_jacobians, kind, length):
    model = build(kind, length).eval()
    ids, positions = make_ids(5 * length, length)
    # Words are repeated, also in the place of the decoder's row of the word that is hidden.
    v = torch.randn(len(ids), model.total_vocabulary, generator=torch.Generator().manual_seed(4))
    work = fused.FusedNorms(model)
    found = torch.full((len(ids), len(work.names)), torch.nan, dtype=torch.float64)
    for forward in work.batches(ids, positions):
        # A backward pass that is not the last leaves everything as it was.
        forward.norms(torch.ones_like(v[forward.rows]), False)
        found[forward.rows] = forward.norms(v[forward.rows], True)
    double = copy.deepcopy(model).double()
    jacobians = dense_jacobians(double, ids, positions)
    truth = torch.stack(
        [
            torch.stack([(v[row].double() @ j).square().sum() for j in jacobian])
            for row, jacobian in enumerate(jacobians)
        ]
    )
    assert work.names == [name for name, _ in double.named_parameters()]
    assert ((found - truth).abs() / truth.sum(dim=1, keepdim=True)).max() < 2e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [3, 40])
@pytest.mark.parametrize("vectors", ["rademacher", "label"])
def test_values_are_those_of_hooks(build, make_ids, both, kind, length, vectors):
    model = build(kind, length)
    ids, positions = make_ids(5 * length, length)
    compiled, hooked = both(model, ids, positions, seed=3, start=11, vectors=vectors)
    assert compiled.names == hooked.names
    total = hooked.values.sum(dim=1, keepdim=True)
    assert ((compiled.values - hooked.values).abs() / total).max() < 1e-5
    assert torch.equal(compiled.keys, hooked.keys)
    assert compiled.method == hooked.method == "ghost norms"


@pytest.mark.parametrize(("n", "pairs"), [(10, False), (60, True)])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", ["8/2/2/12", "8/2/1/12", "32/1/1/48", "32/1/3/48"])
def test_equal_words_in_equal_places_enter_once(make_model, make_ids, both, counted, shape, norm, n, pairs):
    """It holds with few words too, which enter apart, and for both ways of the last layer's attention."""
    # Steeper models of several layers differ by rounding.
    model = make_model(norm, torch.float32, 5, noise=0.1, shape=shape)
    compiled, hooked = both(model, *make_ids(n, 5), seed=3, draws=2)
    assert (compiled.values.sum(1) / hooked.values.sum(1) - 1).abs().max() < 1e-5
    assert ((compiled.values - hooked.values).abs() / hooked.values.sum(1, keepdim=True)).max() < 1e-5
    # Before the first of a model's inputs, two of them are compared with autograd.
    assert max(counted) == (8 * 5 if pairs else 3 * n)


@pytest.fixture(params=[True, False], ids=["at once", "call by call"])
def counted(monkeypatch, request):
    """Return a list that takes the number of words that enter each pass of an encoder."""
    found, embed, words = [], kernels.embed, tables.words

    def counted_words(*given, **options):
        made = words(*given, **options)
        found.append(len(made.ids))
        return made

    monkeypatch.setattr(kernels, "embed", lambda ids, *rest: (found.append(len(ids)), embed(ids, *rest)))
    monkeypatch.setattr(tables, "words", counted_words)
    if not request.param:
        monkeypatch.setattr(whole, "maker", lambda model: nullcontext())
    return found


@pytest.mark.parametrize("kind", ["pre", "6/2"])
def test_more_words_than_a_chunk_holds(build, make_ids, both, monkeypatch, kind):
    monkeypatch.setattr(fused, "chunk_words", lambda width: 16)
    compiled, hooked = both(build(kind, 6), *make_ids(60, 6))
    torch.testing.assert_close(compiled.values.sum(1), hooked.values.sum(1), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("rows", "classes"), [(5, 8), (9, 32), (6, 208), (3, 300)])
def test_signs_are_those_of_other_devices(rows, classes):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(rows, classes, generator=generator)
    logits[1, 2] = 200.0
    index = torch.arange(rows) * 98765432109 + 7
    [(truth, _)] = cotangents(logits, index, kind="rademacher", seed=2**40, draws=1)
    found = sign_vectors(logits, index, seed=2**40)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6)
    assert found[1].eq(0).all()


def test_frozen_parameters_are_left_out(make_model, make_ids, both):
    model = make_model("pre", torch.float32)
    model.decoder.bias.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    compiled, hooked = both(model, *make_ids(12, 4))
    assert compiled.excluded == hooked.excluded
    torch.testing.assert_close(compiled.values.sum(1), hooked.values.sum(1), rtol=1e-5, atol=0)


def test_frozen_parameters_of_an_lstm_are_left_out(build, make_ids, both):
    model = build("6/2")
    model.token_embedding.weight.requires_grad_(False)
    model.layers[1].left_to_right.weight_hh_l0.requires_grad_(False)
    compiled, hooked = both(model, *make_ids(12, 4))
    assert compiled.names == hooked.names
    assert compiled.excluded == hooked.excluded
    torch.testing.assert_close(compiled.values.sum(1), hooked.values.sum(1), rtol=1e-5, atol=0)


def test_norms_may_differ_in_epsilon(make_model, make_ids, both):
    model = make_model("pre", torch.float32)
    for k, module in enumerate(m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)):
        module.eps = 10.0 ** (-1 - k)
    compiled, hooked = both(model, *make_ids(12, 4))
    gap = (compiled.values - hooked.values).abs() / hooked.values.sum(dim=1, keepdim=True)
    assert gap.max() < 1e-5


def test_other_models_are_left_to_hooks(make_model, make_ids):
    positions = make_ids(4, 4)[1]
    model = make_model("pre", torch.float32)
    assert fused.fits(model, positions, 4)
    assert not fused.fits(make_model("pre", torch.float64), positions, 4)
    assert not fused.fits(model, positions[:, None], 4)
    assert not fused.fits(model, positions, fused.LONGEST + 1)
    handle = model.layers[0].up.register_forward_hook(lambda module, given, made: 2 * made)
    assert not fused.fits(model, positions, 4)
    handle.remove()
    assert fused.fits(model, positions, 4)


def test_a_model_that_computes_otherwise_is_found_out(make_model, make_ids, monkeypatch):
    model = make_model("pre", torch.float32).eval()
    ids, positions = make_ids(8, 4)
    work = fused.FusedNorms(model)
    assert work.agrees(ids, positions)
    monkeypatch.setattr(model.layers[0], "scale", 0.1)
    assert not work.agrees(ids, positions)
    with torch.no_grad():
        model.decoder.bias.fill_(torch.nan)
    with pytest.raises(RunFailedError, match="not finite"):
        input_traces(model, ids, positions)


def test_a_model_that_diverges_later_is_an_error_too(make_model, make_ids):
    model = make_model("pre", torch.float32)
    ids, positions = make_ids(8, 4)
    input_traces(model, ids, positions)
    assert model in fused._agreed
    with torch.no_grad():
        model.decoder.bias.fill_(torch.nan)
    with pytest.raises(RunFailedError, match="not finite"):
        input_traces(model, ids, positions)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_hidden_states_are_the_models(build, make_ids, kind):
    model = build(kind, 7).eval()
    ids, positions = make_ids(40, 7)
    seen, found = torch.full((40, model.width), torch.nan), torch.full((40, 8), torch.nan)
    for forward in fused.FusedNorms(model).batches(ids, positions):
        found[forward.rows], seen[forward.rows] = forward.logits, forward.hidden
    truth = model.encode(ids)[torch.arange(40), positions]
    torch.testing.assert_close(seen, truth, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, model(ids, positions), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["post", "6/2"])
@pytest.mark.parametrize("vectors", ["rademacher", "gaussian", "label", "exact"])
def test_several_draws_are_those_of_hooks(build, make_ids, both, kind, vectors):
    compiled, hooked = both(build(kind, 5), *make_ids(11, 5), seed=5, vectors=vectors, draws=3)
    scale = hooked.values.sum(dim=1)
    assert ((compiled.values - hooked.values).abs() / scale[:, None]).max() < 1e-5
    for name in ("spread", "control"):
        one, other = getattr(compiled, name), getattr(hooked, name)
        assert (one is None) == (other is None)
        if other is not None:
            assert (one - other).abs().max() <= 1e-5 * other.abs().max()


@pytest.mark.parametrize("kind", ["pre", "6/2"])
def test_values_do_not_depend_on_the_number_of_threads(build, make_ids, monkeypatch, kind):
    monkeypatch.setattr(fused, "chunk_words", lambda width: 16)
    monkeypatch.setattr(choice, "gradient_norms", None)  # hooks are not called for
    model, given = build(kind, 6), make_ids(60, 6)
    found, seen, add = [], [], Draws.add

    def noted(*given):
        seen.append(torch.get_num_threads())
        add(*given)

    monkeypatch.setattr(Draws, "add", noted)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(input_traces(model, *given, seed=2, draws=2))
        assert torch.get_num_threads() == threads
    assert set(seen) == {1}
    # Not to the bit: sums are rounded by where in memory their terms lie.
    for other in found[1:]:
        for name in ("values", "spread", "control"):
            one, two = getattr(found[0], name), getattr(other, name)
            assert (one - two).abs().max() <= 1e-5 * one.abs().max()


@pytest.mark.parametrize("when", ["first", "later"])
def test_an_error_leaves_the_number_of_threads_as_it_was(make_model, make_ids, when):
    model, given = make_model("pre", torch.float32), make_ids(8, 4)
    torch.set_num_threads(3)
    if when == "later":
        input_traces(model, *given)
    with torch.no_grad():
        model.decoder.bias.fill_(torch.nan)
    with pytest.raises(RunFailedError, match="not finite"):
        input_traces(model, *given)
    assert torch.get_num_threads() == 3
    # Also of threads that begin later.
    seen = []
    new = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert seen == [3]


def test_the_first_comparison_takes_gradients_where_none_are_wanted(make_model, make_ids, monkeypatch):
    monkeypatch.setattr(choice, "gradient_norms", None)
    model, given = make_model("pre", torch.float32), make_ids(8, 4)
    with torch.no_grad():
        found = input_traces(model, *given)
    torch.testing.assert_close(
        found.values.sum(1), input_traces(model, *given).values.sum(1), rtol=1e-5, atol=0
    )


def test_a_pass_that_is_not_autograds_is_told(make_model, make_ids, monkeypatch, caplog):
    model, given = make_model("pre", torch.float32), make_ids(12, 4)
    compiled, taken, hooks = input_traces(model, *given), [], choice.gradient_norms
    monkeypatch.setattr(choice, "gradient_norms", lambda *given: taken.append(1) or hooks(*given))
    monkeypatch.setattr(fused.FusedNorms, "agrees", lambda *given: False)
    with caplog.at_level(logging.WARNING, "raysweep.flatness"):
        input_traces(model, *given)
    assert not caplog.records  # it has been compared before
    assert not taken
    with caplog.at_level(logging.WARNING, "raysweep.flatness"):
        found = input_traces(copy.deepcopy(model), *given)
    [record] = caplog.records
    assert "this Encoder are not autograd's, so slower hooks are taken" in record.getMessage()
    assert taken
    torch.testing.assert_close(found.values.sum(1), compiled.values.sum(1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["pre", "6/2"])
def test_an_error_in_a_small_share_is_found_out(build, make_ids, monkeypatch, kind):
    model = build(kind, 6).eval()
    with torch.no_grad():
        model.decoder.weight *= 0.01
    ids, positions = make_ids(12, 6)
    ids, positions = ids[-2:], positions[-2:]
    work = fused.FusedNorms(model)
    [forward] = work.batches(ids, positions)
    shares = forward.norms(some_signs(torch.empty(2, 8), positions), True)
    shares = shares.div(shares.sum(dim=1, keepdim=True)).amax(dim=0)
    small = [k for k, share in enumerate(shares) if 1e-5 < share < 1e-4]
    assert small
    assert work.agrees(ids, positions)
    original = work._norms
    for k in small:
        factors = torch.ones(len(shares), dtype=torch.float64)
        factors[k] = 0.5
        monkeypatch.setattr(
            work, "_norms", lambda chunk, v, last, factors=factors: original(chunk, v, last) * factors
        )
        assert not work.agrees(ids, positions)
