"""Mutated sweep files and overrides: accepted or refused in words, and nothing else.

`python tests/fuzz.py --count 100000` reads more of them.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from helpers.mutations import file_of, good_files, mutated
from helpers.reading import outcome
from raysweep import registry
from raysweep.training import PretrainConfig


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return good_files(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


def test_the_sweeps_that_are_mutated_are_good(sweeps: list[dict[str, Any]], folder: Path) -> None:
    for sweep in sweeps:
        kind, said = outcome(file_of(sweep), [], folder)
        assert kind == "accepted", f"{said}\n{file_of(sweep)}"


# The path of the folder, which hypothesis knows nothing of, is no part of a case.
@settings(
    max_examples=300,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(random=st.randoms(use_true_random=False))
def test_no_sweep_file_is_a_defect(sweeps: list[dict[str, Any]], folder: Path, random: Random) -> None:
    text, overrides = mutated(sweeps, random)
    kind, said = outcome(text, overrides, folder)
    assert kind in ("accepted", "refused"), f"{said}\n{text}\n{overrides}"


#: One value of each shape that YAML has.
SHAPES: list[Any] = [
    *(None, True, 0, -1, 10**30, 0.5, 1e300, math.nan, "", "x", [], [None], [[]], [{}], ["x"], [0.5], {}),
    *({"x": 1}, {"x": [None]}),
]


CONFIGS = {
    f"{family.family}-{kind}": family.get(kind)
    for family in (registry.languages, registry.models, registry.algorithms, registry.evaluations)
    for kind in family.kinds()
} | {"pretrain": PretrainConfig}


@pytest.mark.parametrize("name", CONFIGS)
def test_no_shape_of_a_value_is_a_defect(name: str, tmp_path: Path) -> None:
    cls = CONFIGS[name]
    good = {"steps": 8, "batch_size": 4} if cls is PretrainConfig else cls.example(tmp_path).encode()
    refused = 0
    for field in cls.model_fields:
        for value in SHAPES:
            try:
                cls.decode(good | {field: value})
            except ValidationError:
                refused += 1
    assert refused


@settings(max_examples=100, derandomize=True, database=None, deadline=None)
@given(text=st.text(max_size=200))
def test_no_text_is_a_defect(folder: Path, text: str) -> None:
    kind, said = outcome(text, [], folder)
    assert kind == "refused", f"{said}\n{text!r}"
