"""The trace at a milestone is the public estimate on the evaluation's own inputs."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raysweep.errors import ConfigError
from raysweep.evaluation import LookupTable, ModelSubject
from raysweep.evaluation.trace import TraceConfig
from raysweep.evaluation.trace_arrays import inputs_of
from raysweep.flatness import fisher_trace
from raysweep.flatness.trace.contrast import difference
from raysweep.models.encoder import EncoderConfig
from raysweep.models.enlarge import enlarge
from raysweep.models.lstm import LSTMConfig
from raysweep.seeding import derive
from raysweep.training.data import some_positions


@pytest.mark.parametrize("inputs", [50, 320])
def test_equals_the_public_estimate(pcfg, make_subject, run, inputs):
    subject = make_subject(pcfg)
    metrics = run(TraceConfig(inputs=inputs, shard_size=inputs // 3, seed=3), subject)
    ids = pcfg.sample(inputs, seed=derive(3, "trace"))
    estimate = fisher_trace(subject.model, ids, seed=3)
    # With few inputs there is no regression on control statistics.
    assert (estimate.standard_error < 0.95 * estimate.plain_standard_error) is (inputs == 320)
    assert metrics["trace"].value == pytest.approx(estimate.value, rel=1e-5)
    assert metrics["trace"].standard_error == pytest.approx(estimate.standard_error, rel=1e-5)
    assert metrics["trace"].n == inputs
    groups = {name.removeprefix("trace/"): m for name, m in metrics.items() if name.startswith("trace/")}
    assert list(groups) == ["embedding", "layers.0", "layers.1", "head"]
    for group, metric in groups.items():
        assert metric.value == pytest.approx(estimate.per_group[group].value, rel=1e-5)
        assert metric.standard_error == pytest.approx(estimate.per_group[group].standard_error, rel=1e-5)
    assert metrics["trace_effective_inputs"].value == pytest.approx(estimate.effective_sample_size, rel=1e-5)
    assert metrics["trace_largest_share"].value == pytest.approx(estimate.largest_share, rel=1e-5)


@pytest.mark.parametrize(("vectors", "draws"), [("label", 3), ("exact", 1)])
def test_other_test_vectors_estimate_the_same(hmm, make_subject, run, vectors, draws):
    subject = make_subject(hmm)
    ours = run(TraceConfig(inputs=400), subject)["trace"]
    other = run(TraceConfig(inputs=400, vectors=vectors, draws=draws), subject)["trace"]
    assert other.value != ours.value
    assert abs(ours.value - other.value) < 4 * (ours.standard_error + other.standard_error)


def test_models_are_measured_on_common_random_numbers(hmm, make_subject, run):
    a, b = make_subject(hmm), make_subject(hmm)
    with torch.no_grad():
        for parameter in b.model.parameters():
            parameter.mul_(1.001)
    config = TraceConfig(inputs=64)
    first, near = run(config, a)["trace"], run(config, b)["trace"]
    assert 0 < abs(first.value - near.value) < 0.2 * first.standard_error


def test_masked_rate_is_the_mean_over_words(pcfg, make_subject, run):
    subject = make_subject(pcfg)
    config = TraceConfig(inputs=60, shard_size=25, mask=0.5, vectors="exact")
    metrics = run(config, subject)
    ids = pcfg.sample(60, seed=derive(0, "trace"))
    mask = some_positions(
        pcfg.lengths(ids), ids.shape[1], 0.5, seed=derive(0, "trace", "mask"), sentences=torch.arange(60)
    )
    assert mask.sum(dim=1).max() > 1
    estimate = fisher_trace(subject.model, ids, mask, vectors="exact")
    assert metrics["trace"].value == pytest.approx(estimate.value, rel=1e-5)
    assert metrics["trace"].standard_error == pytest.approx(estimate.standard_error, rel=1e-5)
    assert metrics["trace_pool_standard_error"].value == 0


def test_enlarged_view(hmm, make_subject, run):
    subject = make_subject(hmm)
    metrics = run(TraceConfig(inputs=40, shard_size=16, enlarged_to="24/6/3/48"), subject)
    larger = ModelSubject(hmm, enlarge(subject.model, "24/6/3/48"))
    real = run(TraceConfig(inputs=40, shard_size=16), larger)["trace"]
    assert metrics["trace_enlarged"].value == pytest.approx(real.value, rel=1e-4)
    assert metrics["trace_enlarged"].standard_error == pytest.approx(real.standard_error, rel=1e-4)
    assert metrics["trace"].value != pytest.approx(real.value, rel=1e-2)


def test_the_enlarged_view_has_the_control_too(hmm, make_subject, run):
    subject = make_subject(hmm)
    found = run(TraceConfig(inputs=320, shard_size=100, enlarged_to="24/6/3/48"), subject)["trace_enlarged"]
    ids = hmm.sample(320, seed=derive(0, "trace"))
    view = fisher_trace(subject.model, ids, enlarged_to="24/6/3/48")
    assert view.standard_error < 0.95 * view.plain_standard_error
    assert found.value == pytest.approx(view.value, rel=1e-5)
    assert found.standard_error == pytest.approx(view.standard_error, rel=1e-5)


def test_stored_values_give_the_view_in_every_shape(hmm, make_subject, run):
    """The arrays of a shard do not depend on the shape, so another shape takes no other measurement."""
    subject = make_subject(hmm)
    plain = TraceConfig(inputs=40, shard_size=16, draws=2)
    shards = [plain.measure(subject, shard) for shard in range(3)]
    for shape in ("8/2/2/16", "24/6/3/48", "16/4/5/47"):
        config = plain.model_copy(update={"enlarged_to": shape})
        assert config.arrays_content() == plain.arrays_content()
        assert config.content() != plain.content()
        again = [config.measure(subject, shard) for shard in range(3)]
        assert all(np.array_equal(a[k], b[k]) for a, b in zip(shards, again, strict=True) for k in a | b)
        found = {metric.name: metric for metric in config.combine(shards)}
        large = ModelSubject(hmm, enlarge(subject.model, shape))
        real = run(TraceConfig(inputs=40, shard_size=16, draws=2), large)["trace"]
        assert found["trace_enlarged"].value == pytest.approx(real.value, rel=1e-4)
        assert found["trace_enlarged"].standard_error == pytest.approx(real.standard_error, rel=1e-4)
        assert found["trace"].value == pytest.approx(run(plain, subject)["trace"].value)
        assert config.notes(shards)["enlarged"].endswith(f"seen as {shape}")


def test_two_sizes_in_one_space_are_paired(hmm, make_subject):
    """Inputs and vectors are common, so the difference of two views is that of two large models."""
    small, other = make_subject(hmm), make_subject(hmm)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.01)
    larger, shape = ModelSubject(hmm, enlarge(other.model, "16/4/3/40")), "32/8/3/80"
    config = TraceConfig(inputs=64, shard_size=40)
    first, second = (
        inputs_of([config.measure(subject, shard) for shard in range(2)], shape)
        for subject in (small, larger)
    )
    found = difference(first, second)
    ids = hmm.sample(64, seed=derive(0, "trace"))
    views = [fisher_trace(subject.model, ids, enlarged_to=shape).value for subject in (small, larger)]
    assert found.difference == pytest.approx(views[1] - views[0], rel=1e-4)
    assert found.standard_error < 0.3 * found.independent


def test_a_shape_that_cannot_hold_the_model_is_a_problem(hmm):
    config = TraceConfig(enlarged_to="24/6/2/40")
    [(field, message)] = config.model_problems(EncoderConfig(shape="8/2/2/16"), hmm)
    assert field == "enlarged_to"
    assert "intermediate must be at least 48" in message
    [(field, message)] = config.model_problems(LSTMConfig(shape="8/1"), hmm)
    assert "'24/6/2/40' is not two positive numbers" in message
    for shape in ("24/6/2/48", "24/6/2/50"):
        assert TraceConfig(enlarged_to=shape).model_problems(EncoderConfig(shape="8/2/2/16"), hmm) == []
    assert TraceConfig(enlarged_to="24/1").model_problems(LSTMConfig(shape="8/1"), hmm) == []


def test_a_model_that_cannot_be_enlarged_is_refused_before_it_is_measured(hmm):
    subject = ModelSubject(hmm, EncoderConfig(shape="8/2/2/16", norm="post").build(hmm, seed=0))
    with pytest.raises(ConfigError, match="with post-norm an added layer normalises"):
        TraceConfig(inputs=4, enlarged_to="8/2/3/16").measure(subject, 0)
    reads_cls = ModelSubject(hmm, EncoderConfig(shape="8/2/2/16", cls=True).build(hmm, seed=0))
    shard = TraceConfig(inputs=4).measure(reads_cls, 0)
    with pytest.raises(ConfigError, match="this model cannot be enlarged; leave it out"):
        inputs_of([shard], "16/4/2/32")


def test_sizes_of_a_sweep_are_seen_as_the_smallest_common_one():
    models = [EncoderConfig(shape=shape) for shape in ("16/1/2/64", "32/2/2/128")]
    config = TraceConfig()
    found, remark = config.among(models)
    assert (found.enlarged_to, remark) == ("32/2/2/128", None)
    # The shape counts and not how it was found.
    assert found.content() == TraceConfig(enlarged_to="32/2/2/128", common=None).content()
    assert "common" not in found.content()
    for settings, sizes in (
        (TraceConfig(common=None), models),
        (TraceConfig(enlarged_to="64/4/2/256"), models),
        (config, models[:1]),
        (config, [models[0], EncoderConfig(shape="16/1/2/64", dropout=0.0)]),
    ):
        assert settings.among(sizes) == (settings, None)
    same, remark = config.among([models[0], EncoderConfig(shape="32/1/2/128")])
    assert same == config
    assert remark.startswith("evaluate.trace.common: no shape holds all models")
    assert "use 32/2/2/128; null turns this off" in remark


def test_the_published_form(hmm, make_subject, run):
    whole = TraceConfig.decode({"preset": "paper"})
    assert (whole.inputs, whole.vectors, whole.draws, whole.repeats) == (10_000, "label", 50, 5)
    config = TraceConfig.decode({"preset": "paper", "inputs": 60, "draws": 4, "shard_size": 40})
    assert config == TraceConfig.decode(config.encode())
    subject = make_subject(hmm)
    metrics = run(config, subject)
    # The decoder's bias is left out, and named.
    assert metrics["trace_excluded/decoder.bias"].value == subject.model.decoder.bias.numel()
    assert all(p.requires_grad for p in subject.model.parameters())
    everything = run(TraceConfig(inputs=60, vectors="exact"), subject)
    subject.model.decoder.bias.requires_grad_(False)
    part = run(TraceConfig(inputs=60, vectors="exact"), subject)
    subject.model.decoder.bias.requires_grad_(True)
    assert part["trace"].value < everything["trace"].value
    spread = metrics["trace_std"]
    assert spread.n == 5
    # 5 repeats of the same inputs: their spread is that of the pool, for one repeat √5 times that for all.
    error = metrics["trace_pool_standard_error"].value
    assert 0.3 < spread.value / (5**0.5 * error) < 2
    assert abs(metrics["trace"].value - part["trace"].value) < 4 * error


def test_a_doubtful_interval_is_said(hmm, make_subject, run, caplog):
    subject = make_subject(hmm)
    few = run(TraceConfig(inputs=10), subject)
    assert few["trace_interval_trusted"].value == 0
    assert "10 inputs are too few" in caplog.text
    caplog.clear()
    with torch.no_grad():
        for parameter in subject.model.parameters():
            parameter.mul_(0.3)
    many = run(TraceConfig(inputs=2000), subject)
    assert many["trace_interval_trusted"].value == 1
    assert not caplog.text


def test_table_has_no_trace(hmm):
    with pytest.raises(ConfigError, match="LookupTable has no parameters"):
        TraceConfig(inputs=4).measure(LookupTable(hmm), 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": 0},
        {"draws": 0},
        {"vectors": "gauss"},
        {"mask": 1.5},
        {"preset": "book"},
        {"common": "64/4/2/256"},
        {"shard_size": -1},
    ],
)
def test_fields_must_make_sense(fields):
    with pytest.raises(ValidationError):
        TraceConfig.decode(fields)
