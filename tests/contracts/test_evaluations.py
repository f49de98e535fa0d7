"""The contract of evaluations, over the registry."""

from typing import ClassVar

import pytest

from raysweep.algorithms import LookupTableConfig
from raysweep.evaluation import Evaluation
from raysweep.registry import evaluations
from raysweep.testing import EvaluationContract
from raysweep.testing.contract import example_language
from raysweep.testing.evaluation import measure, same

KINDS = {kind: evaluations.get(kind) for kind in evaluations.kinds()}
TABLE = LookupTableConfig()


class TestEvaluations(EvaluationContract):
    """Every kind, with every subject that it can measure."""

    configs: ClassVar = {kind: cls.example for kind, cls in KINDS.items()}


def test_the_cases_are_those_that_were_meant() -> None:
    cases = TestEvaluations.cases
    assert {"descent-model-pair", "dyck-solution-dyck", "trace-model-pcfg", "probe-table-hmm"} <= set(cases)
    assert {name for name in cases if name.startswith(("dyck", "descent"))} == {
        "descent-model-pair", "dyck-solution-dyck",
    }  # fmt: skip
    assert not [name for name in cases if name.startswith("trace-table")]
    # A test that fits no case is left out, and no other.
    tests = [name for name in dir(EvaluationContract) if name.startswith("test_")]
    assert [name for name in tests if getattr(TestEvaluations, name) is None] == [
        "test_without_draws_there_is_no_seed"
    ]


@pytest.mark.parametrize("language", ["hmm", "pcfg"])
@pytest.mark.parametrize("kind", [kind for kind, cls in KINDS.items() if not cls.needs_parameters])
def test_another_seed_is_another_measurement_of_the_table(kind: str, language: str, tmp_path) -> None:
    evaluation: Evaluation = KINDS[kind].example(tmp_path)
    other = evaluation.model_copy(update={"seed": 7})
    subject = TABLE.subject(example_language(language))
    assert not same(measure(evaluation, subject, 0), measure(other, subject, 0))
