"""Indented JSON is that of the standard library, to the byte."""

from __future__ import annotations

import json
import random
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from raysweep.cli.indented import indented


class Colour(StrEnum):
    RED = "red"


def standard(data: Any) -> str:
    return json.dumps(data, indent=2, default=str, allow_nan=False)


def made(rng: random.Random, depth: int) -> Any:
    """Return some nested data with every kind of value that JSON knows, and with some that it does not."""
    kind = rng.randrange(12 if depth else 9)
    if kind >= 9:
        size = rng.randrange(4)
        keys = rng.sample(["a", 'ö"', 1, 2.5, True, None, "b\n", ""], size)
        mapping = {key: made(rng, depth - 1) for key in keys}
        return (mapping, list(mapping.values()), tuple(mapping.values()))[kind - 9]
    return rng.choice(
        ["", 'a "b" \\ \n ü, ]', "{", 0, -7, 10**30, 1e16, 1e-7, 0.1, True, None, Path("x/y"), Colour.RED]
    )


@pytest.mark.parametrize("seed", range(200))
def test_indented_is_what_the_standard_library_writes(seed: int) -> None:
    data = made(random.Random(seed), 4)
    assert indented(data) == standard(data)


def test_a_shared_container_is_written_at_each_depth() -> None:
    shared = [{"a": 1, "b": []}, ()]
    data = {"x": shared, "y": [shared, {"z": shared}]}
    assert indented(data) == standard(data)


@pytest.mark.parametrize("data", [float("nan"), [1.0, float("inf")], {"a": [[float("nan")], 1]}])
def test_numbers_that_json_has_not_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        indented(data)
