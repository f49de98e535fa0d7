"""Control statistics: mean zero over all sign vectors, the forms that they are said to be, their gain."""

from itertools import pairwise, product
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from raysweep.flatness.inputs import batch_rows
from raysweep.flatness.trace.control import Control
from raysweep.flatness.trace.estimate import summarise
from raysweep.flatness.trace.fisher import fisher_trace, input_traces
from raysweep.flatness.trace.regression import CONTROL_INPUTS, adjusted, coefficients
from raysweep.flatness.vectors import cotangents
from raysweep.models.encoder import EncoderConfig
from raysweep.models.lstm import LSTMConfig

SIGNS = torch.tensor(list(product([-1.0, 1.0], repeat=8)), dtype=torch.float64)  # [256, 8]


def heads(kind, make_model):
    """A model of eight logits without symmetry, in float64."""
    if kind != "lstm":
        return make_model(norm=kind)
    language = SimpleNamespace(vocabulary_size=5, pad_id=5, max_length=4)
    return LSTMConfig(shape="8/2").build(language, seed=3).double()


def states(model, n=6):
    """Hidden states of different lengths and the logits that the head makes of them."""
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(n, model.width, generator=generator, dtype=torch.float64)
    hidden *= torch.linspace(0.3, 3, n, dtype=torch.float64)[:, None]
    return hidden, model.head(hidden).detach()


def forms(model, hidden, logits, v):
    """The quadratic forms of v [B, C] themselves, by autograd through the head."""
    stated = [(1 + h2(model, hidden)) * v.square().sum(1), (v @ model.decoder.weight).square().sum(1)]
    if hasattr(model, "head_dense"):
        u = model.head_dense(hidden).detach().requires_grad_()
        (delta,) = torch.autograd.grad(model.decoder(model.head_norm(F.gelu(u))), u, v)
        d2 = delta.square().sum(1)
        stated += [(1 + hidden.square().sum(1)) * d2, d2]
    return torch.stack(stated, dim=1).detach()


def h2(model, hidden):
    h = model.head_norm(F.gelu(model.head_dense(hidden))) if hasattr(model, "head_dense") else hidden
    return h.square().sum(1)


@pytest.mark.parametrize("kind", ["pre", "post", "lstm"])
def test_statistics_are_forms_less_their_means(kind, make_model):
    """Over all 256 sign vectors, which have E rrᵀ = I exactly, means are zero and differences the forms'."""
    model = heads(kind, make_model)
    hidden, logits = states(model)
    p = logits.softmax(dim=1)
    control = Control.of(model, "rademacher")
    found, truth = [], []
    for r in SIGNS:
        u = p.sqrt() * r
        v = u - p * u.sum(dim=1, keepdim=True)
        found.append(control.statistics(logits, hidden, v))
        truth.append(forms(model, hidden, logits, v))
    found, truth = torch.stack(found), torch.stack(truth)
    assert found.shape == (256, 6, control.size)
    size = truth.mean(dim=0)
    # What cancels for a confident input is as large as elsewhere, and so is its rounding.
    assert (found.mean(dim=0).abs() <= 1e-13 * size.amax(dim=0)).all()
    torch.testing.assert_close(found, truth - size, rtol=1e-10, atol=1e-11)


def test_compiled_statistics_are_those_of_float64_and_their_means_are_zero(make_model, monkeypatch):
    model = make_model()
    hidden, logits = (x.float() for x in states(model))
    model, p = model.float(), logits.double().softmax(dim=1)
    control, double = Control.of(model, "rademacher"), Control.of(model.double(), "rademacher")
    taken, own = [], Control._below_compiled
    monkeypatch.setattr(Control, "_below_compiled", staticmethod(lambda *g: taken.append(1) or own(*g)))
    found, truth, size = [], [], []
    for r in SIGNS:
        u = p.sqrt() * r
        v = u - p * u.sum(dim=1, keepdim=True)
        found.append(control.statistics(logits, hidden, v))
        truth.append(double.statistics(logits.double(), hidden.double(), v))
        size.append(forms(model, hidden.double(), logits.double(), v))
    assert len(taken) == len(SIGNS)
    scale = torch.stack(size).mean(dim=0).amax(dim=0)
    assert (torch.stack(found).mean(dim=0).abs() <= 1e-13 * scale).all()
    assert ((torch.stack(found) - torch.stack(truth)).abs() <= 2e-6 * scale).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_confident_logits_leave_nothing_of_rounding(make_model, dtype):
    model = make_model()
    hidden, logits = states(model)
    logits = logits.float() * 200
    [(v, _)] = cotangents(logits, torch.arange(6), kind="rademacher", seed=0, draws=1)
    scale = forms(model, hidden, logits, torch.full_like(logits, 1.0).double())
    control = Control.of(model.to(dtype), "rademacher")
    found = control.statistics(logits, hidden.float(), v)
    assert (found.abs() <= 1e-6 * scale).all()


def test_blocks_of_rows_change_nothing(make_model, monkeypatch):
    model = make_model()
    hidden, logits = states(model)
    [(v, _)] = cotangents(logits, torch.arange(6), kind="rademacher", seed=0, draws=1)
    control = Control.of(model, "rademacher")
    whole = control.statistics(logits, hidden, v)
    monkeypatch.setattr("raysweep.flatness.trace.control._BLOCK", 17)
    torch.testing.assert_close(control.statistics(logits, hidden, v), whole, rtol=1e-12, atol=1e-14)


def test_where_the_head_is_most_of_the_work_there_is_no_control():
    """A small model of a large vocabulary: the statistics would cost more than the inputs that they spare."""
    language = SimpleNamespace(vocabulary_size=2000, pad_id=2000, max_length=16)
    small, large = (EncoderConfig(shape=s).build(language, seed=3) for s in ("8/1/1/16", "64/1/6/256"))
    assert Control.of(small, "rademacher") is None
    assert Control.of(large, "rademacher") is not None
    ids = torch.arange(32).view(4, 8)
    assert input_traces(small, ids, torch.zeros(4, dtype=torch.int64)).control is None


def test_batches_are_bounded_by_their_logits():
    lengths = torch.randint(1, 9, (500,), generator=torch.Generator().manual_seed(0))
    for classes in (0, 8, 1 << 17, 1 << 23):
        batches = list(batch_rows(lengths, 64, None, classes))
        assert sorted(torch.cat(batches).tolist()) == list(range(500))
        assert all(len(rows) == 1 or len(rows) * classes <= 1 << 22 for rows in batches)


def test_several_words_of_an_input_are_added_and_gaps_count_nothing(make_model):
    model = make_model()
    hidden, logits = states(model)
    [(v, _)] = cotangents(logits, torch.arange(6), kind="rademacher", seed=0, draws=1)
    control = Control.of(model, "rademacher")
    single = control.statistics(logits, hidden, v)
    real = torch.tensor([[True, True], [True, False], [True, True]])
    both = control.statistics(*(x.view(3, 2, -1) for x in (logits, hidden, v)), real)
    wanted = single.view(3, 2, -1)
    torch.testing.assert_close(both, wanted[:, 0] + wanted[:, 1] * real[:, 1:])


def test_who_has_a_control(make_model):
    model = make_model()
    assert Control.of(model, "gaussian") is not None
    for vectors in ("label", "exact"):
        assert Control.of(model, vectors) is None

    class Other(type(model)):
        """Its head may be another."""

    other = make_model()
    other.__class__ = Other
    assert Control.of(other, "rademacher") is None


def test_every_way_to_the_trace_gives_the_same_statistics(make_ids):
    """The compiled passes, ghost norms in single and several masks, draws, batches."""
    language = SimpleNamespace(vocabulary_size=5, pad_id=5, max_length=4)
    model = EncoderConfig(shape="8/2/2/12").build(language, seed=3)
    ids, positions = make_ids(32, 4)
    one = input_traces(model, ids, positions, seed=2).control
    wide = input_traces(model.double(), ids, positions, seed=2, batch=5).control
    assert one.shape == (32, 4)
    torch.testing.assert_close(one, wide, rtol=1e-3, atol=1e-5 * wide.abs().max().item())
    several = input_traces(model, ids, positions[:, None], seed=2).control
    torch.testing.assert_close(several, wide)
    drawn = input_traces(model, ids, positions, seed=2, draws=3)
    assert not torch.allclose(drawn.control, wide)
    assert drawn.spread.shape == (32, 5, 5)
    torch.testing.assert_close(drawn.spread, drawn.spread.transpose(1, 2))


def test_spread_is_the_covariance_of_the_draws(make_model, make_ids):
    model = make_model()
    ids, positions = make_ids(8, 4)
    many = input_traces(model, ids, positions, seed=2, draws=4)
    # The draws one by one: those of the first have the seed itself, the others one of their own.
    partial = [input_traces(model, ids, positions, seed=2, draws=k) for k in range(1, 5)]
    sums = [torch.cat([t.values.sum(1, keepdim=True), t.control], 1) * (k + 1) for k, t in enumerate(partial)]
    single = torch.stack([sums[0], *(b - a for a, b in pairwise(sums))])
    for row in range(8):
        truth = torch.cov(single[:, row].T) / 4
        torch.testing.assert_close(many.spread[row], truth, rtol=1e-8, atol=1e-9)


def test_regression_is_that_of_least_squares():
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    m = torch.randint(1, 4, (400,), generator=generator).double()
    x = 5 * m + f @ torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(adjusted(x, m, f), 5 * m)
    # A column that another repeats, or that is zero, changes nothing.
    more = torch.cat([f, f[:, :1], torch.zeros(400, 1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(adjusted(x, m, more), 5 * m)
    # Parts add up to the whole as they did.
    parts = torch.stack([x * 0.3, x * 0.7 + f[:, 2].square()], dim=1)
    torch.testing.assert_close(adjusted(parts, m, f).sum(dim=1), adjusted(parts.sum(dim=1), m, f))
    few = CONTROL_INPUTS * 4 - 1
    assert adjusted(x[:few], m[:few], f[:few]) is not None
    assert torch.equal(adjusted(x[:few], m[:few], f[:few]), x[:few])
    assert coefficients(x, m, None) is None


@pytest.mark.parametrize("kind", ["pre", "lstm"])
def test_what_it_gains(kind, make_model, make_ids):
    """At random weights the variance by test vectors falls to less than half, for the same trace."""
    model = make_model(noise=0.15) if kind == "pre" else heads(kind, make_model)
    ids, positions = make_ids(64, 4)
    exact = input_traces(model, ids, positions, vectors="exact").values.sum(dim=1)
    one = fisher_trace(model, ids.repeat(8, 1), positions.repeat(8), draws=2, seed=5)
    assert abs(one.value - exact.mean().item()) < 4 * one.pool_standard_error
    traces = input_traces(model, ids.repeat(8, 1), positions.repeat(8), draws=2, seed=5)
    plain = traces.spread[:, 0, 0].sum().sqrt().item() / 512
    assert one.pool_standard_error < 0.7 * plain
    assert one.standard_error < one.plain_standard_error
    halves = summarise(traces).per_group
    assert sum(part.value for part in halves.values()) == pytest.approx(one.value, rel=1e-10)


def test_the_mean_keeps_its_expectation():
    """Of skewed values that bend with their statistic, where one's own inputs' β would lower the mean."""
    generator = torch.Generator().manual_seed(4)
    f = -torch.rand(4000, 100, generator=generator, dtype=torch.float64).log() - 1
    x = f.square() + f  # of mean 1
    ones = torch.ones(100, dtype=torch.float64)
    found = torch.stack([adjusted(v, ones, c[:, None]).mean() for v, c in zip(x, f, strict=True)])
    assert abs(found.mean() - 1) < 4 * found.std() / 4000**0.5
    columns = torch.stack([torch.ones_like(f), f], dim=2)
    own = torch.linalg.lstsq(columns, x[:, :, None]).solution[:, 0, 0]
    assert abs(own.mean() - 1) > 10 * own.std() / 4000**0.5
