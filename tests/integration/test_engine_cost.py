"""`raysweep bench engine` from the command line: every engine gives the bytes of the bare loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raysweep.bench.launching import engines
from raysweep.bench.record import load

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_engines_equal_the_bare_loop(raysweep: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    code, out, err = raysweep("bench", "engine", "--quick", "--output", file)
    assert code == 0, out + err
    [case] = load(file).cases
    assert [row.status for row in case.comparisons] == ["equal"] * len(engines())
    named = {figure.name: figure.value for figure in case.figures}
    for engine in engines():
        assert 1.0 < named[f"engine {engine}: launch to first step"] < 120.0
        assert 0.1 < named[f"engine {engine}: memory of all processes at the peak (PSS)"] < 30.0
        assert named[f"engine {engine}: most processes at once"] > 5
