"""The number of inputs of a trace follows the rule of `fisher_trace`, whatever the order of the shards."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raysweep.errors import RunFailedError
from raysweep.evaluation.run import run_evaluation, stored_shards
from raysweep.evaluation.trace import TraceConfig
from raysweep.flatness import fisher_trace
from raysweep.flatness.trace.fisher import draw_positions, input_traces
from raysweep.flatness.trace.places import groups_of
from raysweep.flatness.trace.regression import FOLDS
from raysweep.registry import evaluations
from raysweep.seeding import derive
from raysweep.sweep import evaluation_identity


def cut(arrays, size):
    """Return the arrays of a shard as those of shards of `size` inputs."""
    n = len(arrays["weights"])
    return [{name: a[k : k + size] for name, a in arrays.items()} for k in range(0, n, size)]


def skewed(n, *, sigma=1.5, seed=0):
    """Return a made-up shard whose values are lognormal: relative variance exp(σ²) − 1."""
    generator = np.random.default_rng(seed)
    values = generator.lognormal(sigma=sigma, size=n)
    return {"embedding": 0.25 * values, "head": 0.75 * values, "weights": np.ones(n)}


def looks(config, shards):
    """Return the numbers of shards that the rule asks for, one look after the other."""
    asked = []
    while (wanted := config.next_shards(shards[: asked[-1] if asked else 0])) > (asked[-1] if asked else 0):
        asked.append(wanted)
    return asked


@pytest.fixture(scope="module")
def subject(pcfg, make_subject):
    return make_subject(pcfg)


@pytest.mark.parametrize("target", [0.01, 0.001, 0.0002])
def test_the_rule_is_that_of_the_public_estimate(pcfg, subject, target):
    inputs = 6000
    whole = TraceConfig(inputs=inputs, shard_size=inputs, seed=3).measure(subject, 0)
    # With one input a shard both look at the same places.
    config = TraceConfig(inputs=inputs, shard_size=1, seed=3, target_rse=target)
    shards, missing = stored_shards(config, cut(whole, 1).__getitem__)
    assert missing == []
    expected = fisher_trace(
        subject.model, pcfg.sample(inputs, seed=derive(3, "trace")), seed=3, target_rse=target
    )
    metrics = {metric.name: metric for metric in config.combine(shards)}
    assert metrics["trace"].n == expected.n
    assert metrics["trace"].value == pytest.approx(expected.value, rel=1e-5)
    assert metrics["trace"].standard_error == pytest.approx(expected.standard_error, rel=1e-5)
    assert metrics["trace_target_reached"].value == expected.reached
    assert (expected.n == inputs, expected.reached) == {
        0.01: (False, True),
        0.001: (False, True),
        0.0002: (True, False),
    }[target]


def test_looks_are_at_whole_shards_and_at_most_twice_as_far():
    config = TraceConfig(inputs=100_000, shard_size=700, target_rse=0.01)
    shards = cut(skewed(100_000, sigma=1.2), 700)
    asked = looks(config, shards)
    assert asked[0] == 3  # the first whole shards that hold the 2,048 inputs of the first look
    assert len(asked) > 4
    assert all(a < b <= 2 * a for a, b in pairwise(asked))
    assert asked[-1] < config.shards()
    # The first look ends it at which the error is small enough, and none before.
    errors = []
    for count in asked:
        values = np.concatenate([s["embedding"] + s["head"] for s in shards[:count]])
        errors.append(values.std(ddof=1) / len(values) ** 0.5 / values.mean())
    assert errors[-1] <= 0.01
    assert all(error > 0.01 for error in errors[:-1])


def test_it_does_not_end_while_something_speaks_against_the_interval():
    values = np.ones(8192)
    values[5] = 40.0  # a relative error of 0.02, and a skewness of sqrt(n)
    shards = cut({"head": values, "weights": np.ones(8192)}, 512)
    config = TraceConfig(inputs=8192, shard_size=512, target_rse=0.1)
    assert looks(config, shards)[-1] == config.shards()
    [reached] = [m for m in config.combine(shards) if m.name == "trace_target_reached"]
    assert reached.value == 0


def test_a_sum_that_is_not_positive_reaches_no_target():
    values = 1 + 0.1 * np.random.default_rng(0).normal(size=8192)
    config = TraceConfig(inputs=8192, shard_size=512, target_rse=0.02)
    for sign, asked in ((1, [4]), (-1, [4, 8, 16])):
        shards = cut({"head": sign * values, "weights": np.ones(8192)}, 512)
        assert looks(config, shards) == asked
        metrics = {metric.name: metric.value for metric in config.combine(shards[: asked[-1]])}
        assert metrics["trace_target_reached"] == metrics["trace_interval_trusted"] == (sign > 0)


def test_fewer_inputs_than_the_first_look(hmm, make_subject, caplog):
    config = TraceConfig(inputs=100, shard_size=40, target_rse=0.001)
    assert config.next_shards([]) == 3
    found = run_evaluation(config, make_subject(hmm))
    metrics = {metric.name: metric for metric in found.metrics}
    assert metrics["trace"].n == metrics["trace_target_reached"].n == 100
    assert metrics["trace_target_reached"].value == 0
    assert "trace.target_rse=0.001 is not reached: 100 inputs give a relative standard error" in caplog.text


def test_without_a_target_nothing_is_said_of_one(hmm, make_subject, run):
    metrics = run(TraceConfig(inputs=100, shard_size=40), make_subject(hmm))
    assert metrics["trace"].n == 100
    assert "trace_target_reached" not in metrics


@pytest.mark.parametrize("seed", range(4))
def test_the_same_shards_whatever_is_finished_first_or_lost(seed):
    config = TraceConfig(inputs=60_000, shard_size=256, target_rse=0.02)
    shards = cut(skewed(60_000, seed=1), 256)
    expected, missing = stored_shards(config, shards.__getitem__)
    assert missing == []
    assert 4 < len(expected) < len(shards)

    generator, ledger = np.random.default_rng(seed), {}
    # Shards from before, some of them behind what is wanted.
    for k in generator.choice(len(shards), size=seed * 40, replace=False):
        ledger[int(k)] = shards[k]
    lost = 0
    while (missing := stored_shards(config, ledger.get)[1]) != []:
        # Some of what is asked for comes in any order; then the machine dies and takes shards with it.
        for k in generator.permutation(missing)[: 1 + len(missing) // 2]:
            ledger[int(k)] = shards[k]
        if lost < 3:
            del ledger[int(generator.choice(sorted(ledger)))]
            lost += 1
    found, _ = stored_shards(config, ledger.get)
    assert [id(shard) for shard in found] == [id(shard) for shard in expected]


def test_a_model_that_diverged_asks_for_no_more():
    values = np.ones(512)
    values[3] = np.nan
    shard = {"head": values, "weights": np.ones(512), "control": np.ones((512, 2))}
    config = TraceConfig(inputs=10_000, shard_size=512, target_rse=0.01)
    with pytest.raises(RunFailedError, match="trace is nan"):
        config.next_shards([shard])
    with pytest.raises(RunFailedError, match="trace is nan"):
        config.combine([shard])


def test_what_does_not_go_with_a_target():
    for fields, message in (
        ({"target_rse": 0.02, "repeats": 3}, "target_rse: 0.02 does not go with repeats 3"),
        ({"target_rse": 0.02, "preset": "paper"}, "does not go with preset 'paper'"),
        ({"target_rse": 0.02, "preset": "paper", "repeats": 1}, "does not go with preset 'paper'"),
        ({"target_rse": 0.0}, "target_rse"),
        ({"target_rse": 1.0}, "target_rse"),
    ):
        with pytest.raises(ValidationError, match=message):
            TraceConfig.decode(fields)
    assert TraceConfig.decode({"target_rse": 0.02, "vectors": "exact"}).target_rse == 0.02


def test_identities_are_those_of_ledgers():
    """Stored results keep their identities; `trace` has its fourth version, `hessian` its fifth."""
    known = {
        "held_out_loss": "d6f1943de68f627afe79aaaa12fd566dc9b558c59bcfba85275e86057fd406b7",
        "excess_loss": "d7ca7eb2bfd41be931673985aef7b58ceb7a33bf415c4631293f4e7e24ab3610",
        "spectrum": "8dc3a3c5ddc354aaa6b3fe7bfd1ed0b860e851884a02d588dee2704fc068ec03",
        "sharpness": "f1bc1cdea6e7b80db910751d701b06b9bb41a97ec0bd5664d5f15d92caa9dd74",
        "trace": "49b22cb19dd6cf76cd1aff4483d78a2d3a5aabbfdf056f016db2fd781545bf55",
        "hessian": "be00f9582cfcba9cc4297617dac47b99334f143cd36e6649a77f1475185e1d7e",
    }
    fields = {"trace": {"inputs": 64}, "hessian": {"inputs": 64}}
    found = {kind: evaluations.decode({"kind": kind, **fields.get(kind, {})}) for kind in known}
    assert {kind: evaluation_identity(evaluation) for kind, evaluation in found.items()} == known
    # Earlier versions of both have another identity, and so has another target.
    firsts = {
        "4fd5f3993cb9a95f784b90b6c82fd303a2dc3d92fb0c11f0124c2463f233217a",
        "46adc8b0a9cc9e576aea2958086eda8eaac0593f9f10388bdb392e8b37cb9f84",
        "7d8b75e1ceff5b336dbb5f377fe06a3661f549ca89df01c9462f9845e463a9af",
        "0391f559c0130fbd58118dc60b865f411460ecb575e996f8b3b308189e6342d0",
        "a76a5db38a1ca033707ce2cf4b52f7cf48e332e9ac119eccb2c7812d2f2952e2",
        "01a32688de98f7448a8471de20cab6b0ccb6e55849bf829716d60195fc06535d",
    }
    assert firsts.isdisjoint(known.values())
    assert evaluation_identity(TraceConfig(inputs=64, target_rse=0.02)) != known["trace"]


@pytest.mark.parametrize(("vectors", "inputs"), [("label", 60), ("rademacher", 300)])
def test_repeats_tell_the_error_of_the_pool(hmm, make_subject, run, vectors, inputs):
    subject = make_subject(hmm)
    metrics = run(TraceConfig(inputs=inputs, vectors=vectors, repeats=3, shard_size=100), subject)
    ids = hmm.sample(inputs, seed=derive(0, "trace"))
    seeds = [0, derive(0, "repeat", 1), derive(0, "repeat", 2)]
    found = [input_traces_of(subject, ids, vectors, seed) for seed in seeds]
    plain = np.array([traces.values.sum(dim=1).numpy() for traces in found])
    left = per_repeat = plain
    if vectors == "label":
        assert found[0].control is None
    else:
        # 300 inputs suffice for six coefficients: that of the mean, four of vectors and one of places.
        positions = draw_positions(ids, hmm.pad_id, seed=0).numpy()
        half = groups_of(hmm.lengths(ids), 2).numpy() == 0
        shares = [half[:n].mean() for n in hmm.lengths(ids)]
        place = np.stack([half[positions] - shares], axis=1)
        controls = np.array([np.hstack([traces.control.numpy(), place]) for traces in found])
        # The mean of the repeats, less its regression on theirs, is what the trace is the mean of.
        beta = regression(plain.mean(axis=0), controls.mean(axis=0))
        left = plain - (controls * beta).sum(axis=2)
        per_repeat = [x - (c * regression(x, c)).sum(axis=1) for x, c in zip(plain, controls, strict=True)]
        assert np.abs(left - plain).max() > 1e-3 * plain.mean()
    assert metrics["trace"].value == pytest.approx(left.mean(), rel=1e-5)
    variances = left.var(axis=0, ddof=1) / 3
    assert metrics["trace_pool_standard_error"].value == pytest.approx(
        np.sqrt(variances.sum()) / inputs, rel=1e-4
    )
    means = [np.mean(values) for values in per_repeat]
    assert metrics["trace_std"].value == pytest.approx(np.std(means, ddof=1), rel=1e-3)


def input_traces_of(subject, ids, vectors, seed):
    positions = draw_positions(ids, subject.language.pad_id, seed=0)
    return input_traces(subject.model, ids, positions, seed=seed, vectors=vectors)


def regression(values, control):
    """Return each input's coefficients [n, K]: those of least squares over the inputs of other folds."""
    columns = np.column_stack([np.ones(len(values)), control])
    fold = np.arange(len(values)) % FOLDS
    fits = [np.linalg.lstsq(columns[fold != k], values[fold != k], rcond=None)[0][1:] for k in range(FOLDS)]
    return np.array(fits)[fold]


class Scaled(torch.nn.Linear):
    """A linear layer that is not a plain one, which ghost norms do not know."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("kind", ["trace", "hessian"])
def test_notes_say_how_gradient_norms_were_computed(hmm, make_subject, kind):
    config = evaluations.decode({"kind": kind, "inputs": 8, "shard_size": 4})
    assert run_evaluation(config, make_subject(hmm)).notes == {"method": "ghost norms"}
    subject = make_subject(hmm)
    width = subject.model.width
    subject.model.head_dense = Scaled(width, width)
    found = run_evaluation(config, subject)
    assert found.notes["method"] == "one gradient at a time"
    assert "Scaled" in found.notes["reason"]
    assert found.metrics[0].n == 8


@pytest.mark.parametrize("kind", ["trace", "hessian"])
@pytest.mark.parametrize("fallback", [0, 1])
def test_shards_that_were_measured_in_different_ways_go_together(hmm, make_subject, kind, fallback):
    """Only one of two shards has notes, whichever it is: the metrics are those of equal ways."""
    config = evaluations.decode({"kind": kind, "inputs": 300, "shard_size": 150})
    subject = make_subject(hmm)
    usual = [config.measure(subject, shard) for shard in range(2)]
    note = {f"note/{k}": np.frombuffer(v, np.uint8) for k, v in (("method", b"vmap"), ("reason", b"why"))}
    mixed = [shard | (note if k == fallback else {}) for k, shard in enumerate(usual)]
    assert config.combine(mixed) == config.combine(usual)
    notes = config.notes(mixed)
    assert notes["reason"] == "why"
    assert sorted(notes["method"].split("; ")) == ["ghost norms", "vmap"]
    # A control that some lack is none.
    plain = [{k: v for k, v in shard.items() if k != "control"} for shard in usual]
    assert config.combine(plain) != config.combine(usual)
    for partly in ([plain[0], usual[1]], [usual[0], plain[1]]):
        assert config.combine(partly) == config.combine(plain)
