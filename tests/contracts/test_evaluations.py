"""What every evaluation promises, over the registry."""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch

from raysweep.algorithms.adamw import AdamWConfig
from raysweep.algorithms.dyck import DyckRandomFeaturesConfig
from raysweep.algorithms.lookup_table import LookupTableConfig
from raysweep.errors import RunFailedError
from raysweep.evaluation import ModelSubject
from raysweep.languages.dyck import Dyck
from raysweep.languages.hmm import HMM
from raysweep.languages.pcfg import PCFG
from raysweep.models.encoder import EncoderConfig
from raysweep.registry import evaluations

#: The smallest settings of each kind that make more than one shard where the kind has shards at all.
SMALL = {
    "excess_loss": {"sentences": 40, "shard_size": 16},
    "trace": {"inputs": 40, "shard_size": 16},
    "hessian": {"inputs": 40, "shard_size": 16},
    "spectrum": {"inputs": 6, "eigenvalues": 2, "tolerance": 0.1, "steps": 4},
    "sharpness": {"inputs": 40, "pool_size": 8, "steps": 2, "shard_size": 16},
    "held_out_loss": {"sentences": 40, "shard_size": 16, "mask": 0.5},
    "probe": {"train": 96, "test": 64, "projection": 16, "epochs": 3, "seeds": 2},
    "bartlett": {"inputs": 48, "shard_size": 16},
    "descent": {
        "lrs": [0.01], "batches": [4], "time": 2e-4, "points": 1, "replicates": 2, "shard_size": 1,
    },
    "dyck": {"examples": [0, 3], "sets": 5},
}  # fmt: skip

LANGUAGES = {
    "hmm": lambda: HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2, 4)),
    "pcfg": lambda: PCFG.random(roots=2, layers=2, symbols=3, rules=3, words=4, vocabulary=6, stop=0.4),
    "pair": lambda: HMM.random(states=3, vocabulary=2, length=2, blocks=1, tasks=(1,)),
    "dyck": lambda: Dyck(length=6),
}
#: Of these, those that a kind can measure where it cannot measure sentences of any language.
FITTING = {"descent": ("pair",), "dyck": ("dyck",)}


#: What can be measured: a trained model, and what algorithms give that do not train.
SUBJECTS = {"model": AdamWConfig(), "table": LookupTableConfig(), "solution": DyckRandomFeaturesConfig()}

#: Every kind with every subject and language that it can measure.
CASES = [
    (kind, subject, language)
    for kind in evaluations.kinds()
    for subject, algorithm in SUBJECTS.items()
    for language in FITTING.get(kind, ("hmm", "pcfg"))
    if evaluations.get(kind)().applies_to(algorithm)
]


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    return request.param


@pytest.fixture
def evaluation(case):
    kind = case[0]
    assert kind in SMALL, f"give SMALL the smallest sensible settings of '{kind}'"
    return evaluations.decode({"kind": kind, **SMALL[kind]})


@cache
def built(name):
    return LANGUAGES[name]()


@pytest.fixture
def language(case):
    return built(case[2])


@pytest.fixture
def subject(case, language):
    if case[1] == "model":
        return ModelSubject(language, EncoderConfig(shape="8/2/2/16").build(language, seed=0))
    return SUBJECTS[case[1]].subject(language)


def measure(evaluation, subject, shard):
    reference = None
    if evaluation.needs_reference:
        reference = evaluation.reference(subject.language, shard)
        reference.flags.writeable = False
    return evaluation.measure(subject, shard, reference)


def same(a, b):
    return list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)


def test_shards_are_pure_and_may_come_in_any_order(evaluation, subject):
    shards = range(evaluation.shards())
    forward = {k: measure(evaluation, subject, k) for k in shards}
    for k in reversed(shards):
        fresh = evaluations.decode({"kind": evaluation.kind, **SMALL[evaluation.kind]})
        assert same(measure(fresh, subject, k), forward[k])
    for arrays in forward.values():
        assert all(isinstance(a, np.ndarray) and np.isfinite(a).all() for a in arrays.values())


def test_one_shard_measures_the_same_terms(evaluation, subject):
    if "shard_size" not in type(evaluation).model_fields:
        assert evaluation.shards() == 1
        return
    assert evaluation.shards() > 1
    whole = evaluation.model_copy(update={"shard_size": 10**6})
    assert whole.shards() == 1
    parts = [measure(evaluation, subject, k) for k in range(evaluation.shards())]
    (one,) = [measure(whole, subject, 0)]
    assert list(parts[0]) == list(one)
    for key in one:
        joined = np.concatenate([part[key] for part in parts])
        np.testing.assert_allclose(joined, one[key], rtol=1e-4, atol=1e-7)
    for a, b in zip(evaluation.combine(parts), whole.combine([one]), strict=True):
        assert (a.name, a.unit, a.n) == (b.name, b.unit, b.n)
        assert a.value == pytest.approx(b.value, rel=1e-4, abs=1e-7)


def test_shards_are_asked_for_up_to_the_last(evaluation, subject):
    # With a target that is out of reach, where there is one to be set.
    if "target_rse" in type(evaluation).model_fields:
        assert evaluation.next_shards([]) == evaluation.shards()
        evaluation = evaluation.model_copy(update={"target_rse": 1e-6, "inputs": 600, "shard_size": 200})
    done = []
    while (wanted := evaluation.next_shards(done)) > len(done):
        assert wanted <= evaluation.shards()
        done += [measure(evaluation, subject, k) for k in range(len(done), wanted)]
        assert evaluation.next_shards(done) == evaluation.next_shards([dict(arrays) for arrays in done])
    assert wanted == len(done) == evaluation.shards()
    notes = evaluation.notes(done)
    assert all(isinstance(text, str) and text for text in [*notes, *notes.values()])


def test_arrays_survive_storage(evaluation, subject, tmp_path):
    arrays = [measure(evaluation, subject, k) for k in range(evaluation.shards())]
    stored = []
    for k, shard in enumerate(arrays):
        np.savez(tmp_path / f"{k}.npz", **shard)
        with np.load(tmp_path / f"{k}.npz") as file:
            stored.append(dict(file))
    assert evaluation.combine(stored) == evaluation.combine(arrays)


def test_metrics_are_finite_named_and_bounded(evaluation, subject):
    metrics = evaluation.combine([measure(evaluation, subject, k) for k in range(evaluation.shards())])
    names = [metric.name for metric in metrics]
    assert names
    assert len(set(names)) == len(names)
    assert any(name.split("/")[0] == evaluation.kind for name in names)
    for metric in metrics:
        assert math.isfinite(metric.value)
        assert metric.n > 0
        assert metric.unit
        assert metric.standard_error is None or (
            metric.standard_error >= 0 and math.isfinite(metric.standard_error)
        )
        json.loads(metric.model_dump_json(), parse_constant=lambda name: pytest.fail(name))


def test_the_reference_is_what_the_evaluation_would_compute(evaluation, subject):
    if not evaluation.needs_reference:
        with pytest.raises(TypeError, match="no exact conditionals"):
            evaluation.reference(subject.language, 0)
        with pytest.raises(TypeError, match="no exact conditionals"):
            evaluation.reference_bytes(subject.language)
        return
    references = [evaluation.reference(subject.language, k) for k in range(evaluation.shards())]
    assert all(reference.dtype == np.float32 for reference in references)
    assert sum(reference.nbytes for reference in references) == evaluation.reference_bytes(subject.language)
    for shard in range(evaluation.shards()):
        given, computed = measure(evaluation, subject, shard), evaluation.measure(subject, shard)
        for key in given:
            np.testing.assert_allclose(given[key], computed[key], rtol=1e-5, atol=1e-6)


def test_no_shard_beyond_the_last(evaluation, subject):
    for shard in (-1, evaluation.shards()):
        with pytest.raises(IndexError, match=f"shard {shard}"):
            evaluation.measure(subject, shard)


def test_another_seed_is_another_measurement(evaluation, subject):
    other = evaluation.model_copy(update={"seed": 7})
    assert not same(measure(evaluation, subject, 0), measure(other, subject, 0))


def test_the_global_generator_is_left_alone(evaluation, subject):
    before = torch.get_rng_state()
    measure(evaluation, subject, 0)
    assert torch.equal(before, torch.get_rng_state())


def test_configurations_round_trip_and_fit(evaluation, language):
    assert evaluations.decode(evaluation.encode()) == evaluation
    assert evaluation.problems(language) == []
    assert hash(evaluation) == hash(evaluations.decode(evaluation.encode()))


def test_a_model_that_diverged_is_a_known_error(evaluation, subject):
    if not isinstance(subject, ModelSubject):
        return
    with torch.no_grad():
        subject.model.token_embedding.weight.fill_(math.nan)
    with pytest.raises(RunFailedError, match=r"not finite|no finite"):
        evaluation.combine([measure(evaluation, subject, k) for k in range(evaluation.shards())])
