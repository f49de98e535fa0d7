"""The promises of every evaluation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import pytest
import torch

from raysweep.algorithms import AdamWConfig, AlgorithmConfig, LookupTableConfig
from raysweep.algorithms.dyck import DyckRandomFeaturesConfig
from raysweep.errors import RunFailedError
from raysweep.evaluation import Arrays, Evaluation, Metric, ModelSubject
from raysweep.languages import Language
from raysweep.models import EncoderConfig, ModelConfig
from raysweep.testing.contract import Contract, example_language, kept_folder, made

F = TypeVar("F", bound=Callable[..., Any])


#: Fields that say how much is measured: the work grows with the first of them that a kind has.
SIZES = ("inputs", "sentences", "train", "replicates", "sets", "seeds")


class Case(NamedTuple):
    """An evaluation with a subject and a language that it can measure."""

    evaluation: Evaluation
    algorithm: AlgorithmConfig
    language: str


def only(wanted: Callable[[Case], bool]) -> Callable[[F], F]:
    """Make a test for those cases alone."""

    def mark(test: F) -> F:
        test.wanted = wanted  # type: ignore[attr-defined]
        return test

    return mark


class EvaluationContract(Contract):
    """The promises of an evaluation, with each subject and the first two languages that it can measure.

    A configuration should have more than one shard where the kind has a field `shard_size`.  A kind without
    that field has one shard, unless its shards are `cells`.
    """

    #: Examples of languages, by kind; "pair" is a hidden Markov model of two words a sentence.
    languages: ClassVar[tuple[str, ...]] = ("hmm", "pcfg", "pair", "dyck")
    #: Algorithms that give the subjects; those that train stand for a model with its initial weights.
    algorithms: ClassVar[Mapping[str, AlgorithmConfig]] = {
        "model": AdamWConfig(), "table": LookupTableConfig(), "solution": DyckRandomFeaturesConfig(),
    }  # fmt: skip
    #: The model whose initial weights are evaluated.
    model: ClassVar[ModelConfig] = EncoderConfig(shape="8/2/2/16")

    #: All cases by name, found when a subclass names its configurations.
    cases: ClassVar[Mapping[str, Case]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Find the cases, and leave out the tests that are for none of them."""
        super().__init_subclass__(**options)
        if not cls.given():
            return  # a base of further contracts
        cls.cases = cls._find_cases()
        for name in dir(cls):
            wanted = getattr(getattr(cls, name), "wanted", None)
            if wanted is not None and not any(map(wanted, cls.cases.values())):
                setattr(cls, name, None)

    @classmethod
    def _find_cases(cls) -> dict[str, Case]:
        """Return all cases by name; raises `pytest.UsageError` for a configuration without any."""
        found: dict[str, Case] = {}
        for name, given in cls.given().items():
            evaluation = made(given, kept_folder())
            own = {
                f"{name}-{subject}-{language}": Case(evaluation, algorithm, language)
                for subject, algorithm in cls.algorithms.items()
                for language in cls._fitting(evaluation, algorithm)[:2]
            }
            if not own:
                raise pytest.UsageError(
                    f"{cls.__name__}: '{name}' measures no subject in any of the languages "
                    f"{', '.join(cls.languages)}; name one that it fits in `languages`"
                )
            found |= own
        return found

    @classmethod
    def _fitting(cls, evaluation: Evaluation, algorithm: AlgorithmConfig) -> list[str]:
        """Return the languages in which an evaluation measures what an algorithm gives."""
        if not evaluation.applies_to(algorithm):
            return []
        known = {name: example_language(name) for name in cls.languages}
        return [
            name
            for name, language in known.items()
            if not (
                evaluation.problems(language)
                or algorithm.problems(language)
                or (algorithm.trains and evaluation.model_problems(cls.model, language))
            )
        ]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test for each case that the test is for."""
        if not self.cases:
            raise pytest.UsageError(f"{type(self).__name__}: give `configs` at least one configuration")
        wanted = getattr(metafunc.function, "wanted", lambda case: True)
        cases = {name: case for name, case in self.cases.items() if wanted(case)}
        metafunc.parametrize("case", list(cases.values()), ids=list(cases), scope="class")

    @pytest.fixture
    def evaluation(self, case: Case, language: Language) -> Evaluation:
        """The evaluation under test, fitted to the language."""
        return case.evaluation.fitted(language)

    @pytest.fixture
    def language(self, case: Case) -> Language:
        """The language of the subject."""
        return example_language(case.language)

    @pytest.fixture
    def subject(self, case: Case, language: Language) -> Any:
        """A model with its initial weights, or what an untrained algorithm gives."""
        if case.algorithm.trains:
            return ModelSubject(language, self.model.build(language, seed=0))
        return case.algorithm.subject(language)

    def test_shards_are_pure_and_may_come_in_any_order(self, evaluation: Evaluation, subject: Any) -> None:
        shards = range(evaluation.shards())
        forward = {k: measure(evaluation, subject, k) for k in shards}
        for k in reversed(shards):
            fresh = type(evaluation).decode(evaluation.encode())
            assert same(measure(fresh, subject, k), forward[k])
        for arrays in forward.values():
            assert all(isinstance(a, np.ndarray) and np.isfinite(a).all() for a in arrays.values())

    @only(lambda case: "shard_size" not in type(case.evaluation).model_fields and not case.evaluation.cells)
    def test_a_kind_without_a_size_of_shards_has_one(self, evaluation: Evaluation) -> None:
        assert evaluation.shards() == 1

    @only(lambda case: "shard_size" in type(case.evaluation).model_fields)
    def test_one_shard_measures_the_same_terms(self, evaluation: Evaluation, subject: Any) -> None:
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

    def test_shards_are_asked_for_up_to_the_last(self, evaluation: Evaluation, subject: Any) -> None:
        # With a target that is out of reach, where there is one to be set.
        if "target_rse" in type(evaluation).model_fields:
            assert evaluation.next_shards([]) == evaluation.shards()
            evaluation = evaluation.model_copy(update={"target_rse": 1e-6, "inputs": 600, "shard_size": 200})
        done: list[Arrays] = []
        while (wanted := evaluation.next_shards(done)) > len(done):
            assert wanted <= evaluation.shards()
            done += [measure(evaluation, subject, k) for k in range(len(done), wanted)]
            assert evaluation.next_shards(done) == evaluation.next_shards([dict(arrays) for arrays in done])
        assert wanted == len(done) == evaluation.shards()
        notes = evaluation.notes(done)
        assert all(isinstance(text, str) and text for text in [*notes, *notes.values()])

    def test_operations_grow_with_the_work(
        self, case: Case, evaluation: Evaluation, language: Language
    ) -> None:
        found = evaluation.operations(1000, language)
        if found is None:
            assert type(evaluation).operations is Evaluation.operations, "an example should have a known cost"
            return
        assert 0 < found.least <= found.middle <= found.most
        size = next(name for name in SIZES if name in type(evaluation).model_fields)
        twice = evaluation.model_copy(update={size: 2 * getattr(evaluation, size)})
        more, larger = twice.operations(1000, language), evaluation.operations(4000, language)
        assert more is not None
        assert larger is not None
        assert more.most > found.most
        assert larger.most > found.most or not case.algorithm.trains

    def test_arrays_survive_storage(self, evaluation: Evaluation, subject: Any, tmp_path: Path) -> None:
        arrays = [measure(evaluation, subject, k) for k in range(evaluation.shards())]
        stored = []
        for k, shard in enumerate(arrays):
            np.savez(tmp_path / f"{k}.npz", **shard)  # type: ignore[arg-type]  # of numpy's own options
            with np.load(tmp_path / f"{k}.npz") as file:
                stored.append(dict(file))
        assert evaluation.combine(stored) == evaluation.combine(arrays)

    def test_metrics_are_finite_named_and_bounded(self, evaluation: Evaluation, subject: Any) -> None:
        metrics = combined(evaluation, subject)
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
            stored = metric.model_dump_json()
            json.loads(stored, parse_constant=lambda name: pytest.fail(name))
            assert Metric.model_validate_json(stored) == metric

    def test_what_claims_may_name_is_declared(self, evaluation: Evaluation, subject: Any) -> None:
        patterns = [
            ".+".join(map(re.escape, re.split(r"\{[^}]*\}", quantity.name)))
            for quantity in evaluation.quantities()
        ]
        for metric in combined(evaluation, subject):
            if metric.kind == "flatness" or (metric.kind == "accuracy" and metric.report):
                assert any(re.fullmatch(pattern, metric.name) for pattern in patterns), metric.name

    @only(lambda case: not case.evaluation.needs_reference)
    def test_without_a_reference_there_is_none(self, evaluation: Evaluation, language: Language) -> None:
        with pytest.raises(TypeError, match="no exact conditionals"):
            evaluation.reference(language, 0)
        with pytest.raises(TypeError, match="no exact conditionals"):
            evaluation.reference_bytes(language)

    @only(lambda case: case.evaluation.needs_reference)
    def test_the_reference_is_what_the_evaluation_would_compute(
        self, evaluation: Evaluation, subject: Any, language: Language
    ) -> None:
        references = [evaluation.reference(language, k) for k in range(evaluation.shards())]
        assert all(reference.dtype == np.float32 for reference in references)
        assert sum(reference.nbytes for reference in references) == evaluation.reference_bytes(language)
        for shard in range(evaluation.shards()):
            given, computed = measure(evaluation, subject, shard), evaluation.measure(subject, shard)
            assert list(given) == list(computed)
            for key in given:
                np.testing.assert_allclose(given[key], computed[key], rtol=1e-5, atol=1e-6)

    def test_no_shard_beyond_the_last(self, evaluation: Evaluation, subject: Any) -> None:
        for shard in (-1, evaluation.shards()):
            with pytest.raises(IndexError, match=f"shard {shard}"):
                evaluation.measure(subject, shard)

    # The look-up table may have the same answer whatever is drawn: its excess loss is zero.
    @only(lambda case: case.evaluation.stochastic and case.algorithm.gives_parameters)
    def test_another_seed_is_another_measurement(self, evaluation: Evaluation, subject: Any) -> None:
        assert "seed" in type(evaluation).model_fields, "what is drawn needs a field `seed`"
        other = evaluation.model_copy(update={"seed": 7})
        assert not same(measure(evaluation, subject, 0), measure(other, subject, 0))

    @only(lambda case: not case.evaluation.stochastic)
    def test_without_draws_there_is_no_seed(self, evaluation: Evaluation) -> None:
        assert "seed" not in type(evaluation).model_fields

    def test_the_global_generator_is_left_alone(self, evaluation: Evaluation, subject: Any) -> None:
        before = torch.get_rng_state()
        measure(evaluation, subject, 0)
        assert torch.equal(before, torch.get_rng_state())

    def test_configurations_round_trip_and_fit(self, evaluation: Evaluation, language: Language) -> None:
        again = type(evaluation).decode(evaluation.encode())
        assert again == evaluation
        assert evaluation.problems(language) == []
        assert hash(evaluation) == hash(again)

    @only(lambda case: case.algorithm.trains)
    def test_a_model_that_diverged_is_a_known_error(self, evaluation: Evaluation, subject: Any) -> None:
        with torch.no_grad():
            for parameter in subject.model.parameters():
                parameter.fill_(math.nan)
        with pytest.raises(RunFailedError, match=r"not finite|no finite"):
            combined(evaluation, subject)


def measure(evaluation: Evaluation, subject: Any, shard: int) -> Arrays:
    """Measure a shard, with a reference that cannot be written where one is wanted."""
    reference = None
    if evaluation.needs_reference:
        reference = evaluation.reference(subject.language, shard)
        reference.flags.writeable = False
    return evaluation.measure(subject, shard, reference)


def combined(evaluation: Evaluation, subject: Any) -> list[Metric]:
    """Return the metrics of all shards."""
    return evaluation.combine([measure(evaluation, subject, k) for k in range(evaluation.shards())])


def same(a: Arrays, b: Arrays) -> bool:
    """Return whether two shards hold the same arrays, bit by bit."""
    return list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)
