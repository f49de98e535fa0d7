"""The trace at a milestone is the public estimate on the evaluation's own inputs."""

import pytest
import torch
from pydantic import ValidationError

from raysweep.errors import ConfigError
from raysweep.evaluation import LookupTable
from raysweep.evaluation.trace import TraceConfig
from raysweep.flatness import fisher_trace
from raysweep.seeding import derive


def test_equals_the_public_estimate(pcfg, make_subject, run):
    subject = make_subject(pcfg)
    metrics = run(TraceConfig(inputs=50, shard_size=16, seed=3), subject)
    ids = pcfg.sample(50, seed=derive(3, "trace"))
    estimate = fisher_trace(subject.model, ids, seed=3)
    assert metrics["trace"].value == pytest.approx(estimate.value, rel=1e-5)
    assert metrics["trace"].standard_error == pytest.approx(estimate.standard_error, rel=1e-5)
    assert metrics["trace"].n == 50
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


def test_table_has_no_trace(hmm):
    with pytest.raises(ConfigError, match="LookupTable has no parameters"):
        TraceConfig(inputs=4).measure(LookupTable(hmm), 0)


@pytest.mark.parametrize("fields", [{"inputs": 0}, {"draws": 0}, {"vectors": "gauss"}, {"shard_size": -1}])
def test_fields_must_make_sense(fields):
    with pytest.raises(ValidationError):
        TraceConfig.decode(fields)
