"""The closed form of the enlarged view against real enlargement: each the other's test."""

import pytest
import torch

from raysweep.errors import ConfigError
from raysweep.flatness import fisher_trace
from raysweep.flatness.trace.enlarged import Parts, enlarged
from raysweep.flatness.trace.fisher import input_traces
from raysweep.models.encoder import EncoderConfig
from raysweep.models.enlarge import enlarge
from raysweep.models.lstm import LSTM, LSTMConfig

SHAPES = [
    ("pre", "24/6/2/36"),
    ("pre", "16/4/4/24"),
    ("pre", "8/2/3/12"),
    ("pre", "16/4/2/31"),
    ("pre", "24/6/3/40"),
    ("post", "24/6/2/36"),
    ("post", "16/4/2/29"),
    ("lstm", "6/2"),
    ("lstm", "12/2"),
    ("lstm", "18/2"),
]


@pytest.fixture(scope="module")
def make(make_model):
    """Return a maker of small models by their form: an encoder's norm, or lstm."""

    def made(form):
        if form != "lstm":
            return make_model(form)
        model = LSTMConfig(shape="6/2").build(make_model(), seed=0).double()
        assert isinstance(model, LSTM)
        with torch.no_grad():
            model.decoder.bias.normal_(generator=torch.Generator().manual_seed(1))
        return model

    return made


def measured(model, make_ids, several=False):
    ids, positions = make_ids(8, 4)
    positions = ids != 5 if several else positions
    return input_traces(model, ids, positions, vectors="exact"), ids, positions


@pytest.mark.parametrize(("form", "shape"), SHAPES)
@pytest.mark.parametrize("several", [False, True])
def test_closed_form_is_the_enlarged_models_own(make, make_ids, form, shape, several):
    model = make(form)
    traces, ids, positions = measured(model, make_ids, several)
    small = enlarged(traces, model, shape)
    large = input_traces(enlarge(model, shape), ids, positions, vectors="exact")
    theirs = dict(zip(large.names, large.values.T, strict=True))
    ours = dict(zip(small.names, small.values.T, strict=True))
    for name, values in theirs.items():
        if name in ours:
            torch.testing.assert_close(ours.pop(name), values, rtol=1e-9, atol=1e-9)
        else:
            # Nothing else of an added layer has a gradient.
            assert values.abs().max() < 1e-18
    assert not ours
    torch.testing.assert_close(small.values.sum(dim=1), large.values.sum(dim=1), rtol=1e-10, atol=0)


@pytest.mark.parametrize(("form", "shape"), SHAPES)
def test_parts_give_the_trace_in_any_shape(make, make_ids, form, shape):
    model = make(form)
    traces, _, _ = measured(model, make_ids)
    parts = Parts.of(traces, model)
    found = parts.enlarged(traces.values.sum(dim=1), shape)
    assert parts.shape == model.shape
    torch.testing.assert_close(found, enlarged(traces, model, shape).values.sum(dim=1), rtol=1e-12, atol=0)


def test_estimate_of_the_enlarged_view(make_model, make_ids):
    model = make_model()
    ids, positions = make_ids(40, 4)
    view = fisher_trace(model, ids, positions, enlarged_to="16/4/3/24")
    real = fisher_trace(enlarge(model, "16/4/3/24"), ids, positions)
    assert view.value == pytest.approx(real.value, rel=1e-10)
    assert view.standard_error == pytest.approx(real.standard_error, rel=1e-10)
    assert list(view.per_group) == ["embedding", "layers.0", "layers.1", "layers.2", "head"]
    for group, part in view.per_group.items():
        assert part.value == pytest.approx(real.per_group[group].value, rel=1e-9)


def test_the_control_is_the_small_models(make_model, make_ids):
    """With inputs enough for it the standard error falls, and the mean stays that of exact vectors."""
    model, shape = make_model(noise=0.15), "16/4/3/24"
    ids, positions = make_ids(16, 4)
    exact = fisher_trace(model, ids, positions, vectors="exact", enlarged_to=shape).per_input.repeat(20)
    view = fisher_trace(model, ids.repeat(20, 1), positions.repeat(20), seed=5, enlarged_to=shape)
    apart = view.per_input - exact
    assert abs(apart.mean()) < 4 * apart.std() / 320**0.5
    assert view.standard_error < 0.95 * view.plain_standard_error


def test_the_spread_of_the_small_model_is_not_taken_for_the_views(make_model, make_ids):
    model = make_model()
    ids, positions = make_ids(40, 4)
    small = fisher_trace(model, ids, positions, draws=3)
    real = fisher_trace(enlarge(model, "16/4/3/24"), ids, positions, draws=3)
    assert small.pool_standard_error != pytest.approx(real.pool_standard_error, rel=1e-2)
    assert fisher_trace(model, ids, positions, draws=3, enlarged_to="16/4/3/24").pool_standard_error is None
    exact = fisher_trace(model, ids, positions, vectors="exact", enlarged_to="16/4/3/24")
    assert exact.pool_standard_error == 0


def test_what_has_no_enlarged_view_is_refused(make_model, make_ids):
    model = make_model()
    ids, positions = make_ids(4, 4)
    with pytest.raises(ConfigError, match="use 16"):
        fisher_trace(model, ids, positions, enlarged_to="12/3/2/18")
    lstm = LSTMConfig(shape="6/1").build(model, seed=0).double()
    with pytest.raises(ConfigError, match="an added layer of an LSTM is no identity; use 12/1"):
        fisher_trace(lstm, ids, positions, enlarged_to="12/2")
    reads_cls = EncoderConfig(shape="6/1/1/6", cls=True).build(model, seed=0).double()
    assert Parts.of(input_traces(reads_cls, ids, positions), reads_cls) is None
    with pytest.raises(ConfigError, match="a WithCLS cannot be enlarged, only an encoder or an LSTM"):
        fisher_trace(reads_cls, ids, positions, enlarged_to="12/2/1/12")
    model.layers[1].down.bias.requires_grad_(False)
    assert fisher_trace(model, ids, positions, enlarged_to="16/4/2/24").value > 0
    with pytest.raises(ConfigError, match=r"layers.1.down.bias, which is left out"):
        fisher_trace(model, ids, positions, enlarged_to="16/4/3/24")
    parts = Parts.of(input_traces(model, ids, positions), model)
    assert parts.enlarged(torch.ones(4, dtype=torch.float64), "16/4/2/24").min() > 0
    with pytest.raises(ConfigError, match="the last layer's output bias, which is left out"):
        parts.enlarged(torch.ones(4, dtype=torch.float64), "16/4/3/24")
