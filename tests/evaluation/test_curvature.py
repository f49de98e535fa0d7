"""Hessian, spectrum and sharpness at a milestone are the public measures on the evaluation's own inputs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raysweep.errors import ConfigError
from raysweep.evaluation import LookupTable
from raysweep.evaluation.hessian import HessianConfig
from raysweep.evaluation.sharpness import MEASURES, SharpnessConfig
from raysweep.evaluation.spectrum import SpectrumConfig
from raysweep.evaluation.trace import TraceConfig
from raysweep.flatness.curvature.loss import gradient_norm, weight_norm
from raysweep.flatness.curvature.operator import CurvatureOperator
from raysweep.flatness.curvature.relative import fisher_rao_norms, scaled_traces
from raysweep.flatness.curvature.sharpness import sharpness
from raysweep.flatness.curvature.spectrum import density, extreme_eigenvalues
from raysweep.flatness.pool import Pool
from raysweep.flatness.trace.hessian import hessian_trace
from raysweep.models.encoder import EncoderConfig
from raysweep.seeding import derive
from raysweep.training.data import some_positions

KINDS = [HessianConfig, SpectrumConfig, SharpnessConfig]


def inputs(subject, n, seed, labels="soft"):
    """Return sentences, the pool of them, and their conditionals where labels are soft."""
    language = subject.language
    ids = language.sample(n, seed=derive(seed, "trace"))
    pool = Pool.of(subject.model, ids, seed=seed)
    soft = language.conditionals_at(ids, pool.positions) if labels == "soft" else None
    return ids, Pool.of(subject.model, ids, seed=seed, log_probs=soft), soft


@pytest.mark.parametrize(("labels", "n"), [("soft", 50), ("hard", 50), ("soft", 320)])
def test_hessian(pcfg, make_subject, run, labels, n):
    subject = make_subject(pcfg)
    metrics = run(HessianConfig(inputs=n, shard_size=n // 3, seed=3, labels=labels), subject)
    ids, _, soft = inputs(subject, n, 3, labels)
    estimate = hessian_trace(subject.model, ids, log_probs=soft, seed=3)
    assert metrics["hessian/trace"].value == pytest.approx(estimate.value, rel=1e-4)
    assert metrics["hessian/trace"].standard_error == pytest.approx(estimate.standard_error, rel=1e-4)
    assert metrics["hessian/residual"].value == pytest.approx(estimate.residual.value, rel=1e-4)
    # With 320 inputs the regression on control statistics is taken off both.
    trace = run(TraceConfig(inputs=n, seed=3), subject)["trace"]
    part = metrics["hessian/gauss_newton"]
    assert part.value == pytest.approx(trace.value, rel=1e-5)
    assert part.standard_error == pytest.approx(trace.standard_error, rel=1e-5)
    assert metrics["hessian/trace"].n == n
    share = estimate.per_input.abs().max() / estimate.per_input.abs().sum()
    assert metrics["hessian/largest_share"].value == pytest.approx(share.item(), rel=1e-4)


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_hessian_of_a_rate_of_masks(pcfg, make_subject, run, labels):
    subject, n = make_subject(pcfg), 60
    config = HessianConfig(inputs=n, shard_size=25, seed=3, labels=labels, mask=0.5)
    metrics = run(config, subject)
    ids = pcfg.sample(n, seed=derive(3, "trace"))
    mask = some_positions(
        pcfg.lengths(ids), ids.shape[1], 0.5, seed=derive(3, "trace", "mask"), sentences=torch.arange(n)
    )
    assert mask.sum(dim=1).max() > 1
    soft = pcfg.conditionals(ids, mask) if labels == "soft" else None
    estimate = hessian_trace(subject.model, ids, mask, log_probs=soft, seed=3)
    assert metrics["hessian/trace"].value == pytest.approx(estimate.value, rel=1e-4)
    assert metrics["hessian/trace"].standard_error == pytest.approx(estimate.standard_error, rel=1e-4)
    trace = run(TraceConfig(inputs=n, seed=3, mask=0.5), subject)["trace"]
    assert metrics["hessian/gauss_newton"].value == pytest.approx(trace.value, rel=1e-5)
    if labels == "soft":
        reference = [config.reference(pcfg, shard) for shard in range(config.shards())]
        assert sum(array.nbytes for array in reference) == config.reference_bytes(pcfg)
        given, own = config.measure(subject, 1, reference[1]), config.measure(subject, 1)
        np.testing.assert_array_equal(given["residual"], own["residual"])


def test_hessian_asks_for_no_more_hidden_words_than_are_known(hmm):
    text = SimpleNamespace(exact=True, most_hidden=1, max_length=24)
    ((field, message),) = HessianConfig(mask=0.15).problems(text)
    assert field == "mask"
    assert "0.15 hides 4 words, and exact conditionals of a SimpleNamespace hide 1 at most" in message
    for fits in (HessianConfig(), HessianConfig(mask=0.15, labels="hard"), HessianConfig(mask=0.05)):
        assert fits.problems(text) == []
    assert HessianConfig(mask=0.15).problems(hmm) == []
    with pytest.raises(ValidationError, match="neither 'one' nor a rate"):
        HessianConfig(mask=1.5)


def test_spectrum(hmm, make_subject, run):
    subject = make_subject(hmm)
    metrics = run(SpectrumConfig(inputs=8, eigenvalues=3, steps=6, seed=1), subject)
    _, pool, _ = inputs(subject, 8, 1)
    for matrix in ("hessian", "gauss_newton"):
        operator = CurvatureOperator(subject.model, pool, matrix=matrix, keep=True)
        found = [metrics[f"spectrum/{matrix}/{rank}"].value for rank in (1, 2, 3)]
        np.testing.assert_allclose(found, extreme_eigenvalues(operator, 3), rtol=2e-3)
        whole = density(operator, steps=6, vectors=2, seed=1)
        for name, estimate in (("trace", whole.trace), ("squares", whole.squares)):
            metric = metrics[f"spectrum/{matrix}/{name}"]
            assert metric.value == pytest.approx(estimate.value, rel=1e-3)
            assert metric.standard_error == pytest.approx(estimate.standard_error, rel=1e-3)
            assert metric.n == 2
    smallest = extreme_eigenvalues(
        CurvatureOperator(subject.model, pool, matrix="hessian"), 1, end="smallest"
    )
    assert metrics["spectrum/hessian/smallest"].value == pytest.approx(smallest[0], rel=2e-2)
    assert "spectrum/gauss_newton/smallest" not in metrics


def test_one_matrix_without_density(hmm, make_subject, run):
    config = SpectrumConfig(inputs=4, eigenvalues=1, vectors=0, matrices=("gauss_newton",))
    assert list(run(config, make_subject(hmm))) == ["spectrum/gauss_newton/1"]


def test_sharpness(pcfg, make_subject, run):
    subject = make_subject(pcfg)
    metrics = run(SharpnessConfig(inputs=30, pool_size=10, shard_size=12, steps=2, seed=4), subject)
    model = subject.model
    _, wide, _ = inputs(subject, 30, 4, "hard")
    _, pool, _ = inputs(subject, 10, 4)
    plain, adaptive = (
        sharpness(model, pool, steps=2),
        sharpness(model, pool, radius=0.5, steps=2, adaptive=True),
    )
    expected = {
        "sam": plain.rise.value,
        "sam_first_order": plain.first_order,
        "asam": adaptive.rise.value,
        "asam_first_order": adaptive.first_order,
        "gradient_norm": gradient_norm(model, pool),
        "weight_norm": weight_norm(model),
        "scaled_trace": scaled_traces(model, wide, seed=4).mean().item(),
        "fisher_rao": fisher_rao_norms(model, wide).mean().item(),
    }
    for name, value in expected.items():
        assert metrics[f"sharpness/{name}"].value == pytest.approx(value, rel=1e-4), name
    assert metrics["sharpness/sam"].standard_error == pytest.approx(plain.rise.standard_error, rel=1e-4)
    assert (metrics["sharpness/sam"].n, metrics["sharpness/fisher_rao"].n) == (10, 30)
    assert set(metrics) == {f"sharpness/{name}" for name in (*expected, "geometric_complexity")}


@pytest.mark.parametrize("measure", MEASURES)
def test_each_measure_alone(hmm, make_subject, run, measure):
    config = SharpnessConfig(which=(measure,), inputs=6, pool_size=4, steps=1, shard_size=4)
    names = [
        name.removeprefix("sharpness/").removesuffix("_first_order")
        for name in run(config, make_subject(hmm))
    ]
    assert set(names) == {measure}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_has_no_curvature_and_a_corpus_hard_labels(kind, hmm):
    with pytest.raises(ConfigError, match="LookupTable has no parameters"):
        kind(inputs=4).measure(LookupTable(hmm), 0)
    corpus = SimpleNamespace(exact=False)
    ((field, message),) = kind().problems(corpus)
    assert (field, message) == (
        "labels",
        "nobody knows the exact conditionals of a SimpleNamespace; use hard",
    )
    assert kind(labels="hard").problems(corpus) == []
    assert not kind(labels="hard").needs_reference


def test_what_needs_no_labels_fits_any_language(hmm):
    config = SharpnessConfig(which=("weight_norm", "fisher_rao"))
    assert not config.needs_reference
    assert config.problems(SimpleNamespace(exact=False)) == []


def test_what_is_too_much_is_said_before(hmm):
    model = EncoderConfig(shape="1024/16/16/4096")
    ((field, message),) = SpectrumConfig().model_problems(model, hmm)
    assert field == "steps"
    assert "exceed 4 GB; use at most 2" in message
    assert SpectrumConfig(vectors=0).model_problems(model, hmm) == []
    assert (
        SpectrumConfig(eigenvalues=10**6).model_problems(EncoderConfig(shape="8/2/2/16"), hmm)[0][0]
        == "eigenvalues"
    )


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (HessianConfig, {"draws": 0}),
        (HessianConfig, {"labels": "firm"}),
        (SpectrumConfig, {"matrices": []}),
        (SpectrumConfig, {"tolerance": 1.0}),
        (SharpnessConfig, {"which": ["sam", "sam"]}),
        (SharpnessConfig, {"radius": 0.0}),
    ],
)
def test_fields_must_make_sense(kind, fields):
    with pytest.raises(ValidationError):
        kind.decode(fields)
