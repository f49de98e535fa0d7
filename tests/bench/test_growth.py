"""The growth of time and memory: exponents of known powers, and a point in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raysweep.bench import growth, table
from raysweep.bench.growth import Point, exponent, figures
from raysweep.bench.growth.axes import AXES
from raysweep.bench.harness import run_case
from raysweep.bench.record import Peak, Record
from raysweep.bench.suites import entries

PEAK = Peak(gemm_float32_gflops=1.0, gemm_float64_gflops=1.0, copy_gbytes=1.0)


def points(time: float, memory: float) -> list[Point]:
    """Return points whose time and memory grow by powers, while operations grow as the square."""
    return [Point(n, 3.0 * n**2, 1e-3 * n**time, 1e6 * n**memory) for n in (8, 16, 32)]


def test_the_exponent_is_that_of_the_power() -> None:
    assert exponent([1.0, 3.0, 10.0], [7.0, 7.0 * 3**1.5, 7.0 * 10**1.5]) == pytest.approx(1.5)


@pytest.mark.parametrize(("time", "memory", "met"), [(2.0, 1.0, True), (2.2, 1.0, False), (1.5, 1.3, False)])
def test_what_grows_faster_than_its_operations_or_its_size_misses(
    time: float, memory: float, met: bool
) -> None:
    found = {figure.name: figure for figure in figures(points(time, memory))}
    assert found["exponent of time"].value == pytest.approx(time, abs=1e-3)
    assert found["of operations"].value == 2.0
    assert found["above these"].value == pytest.approx(time - 2.0, abs=1e-3)
    # The smallest takes too little to count.
    assert found["exponent of memory"].value == pytest.approx(memory, abs=1e-3)
    assert found["memory at the largest"].value == pytest.approx(1e6 * 32**memory / 2**30)
    judged = [figure.met for figure in found.values() if figure.met is not None]
    assert all(judged) is met
    assert len(judged) == 2


def test_memory_that_is_too_little_has_no_exponent() -> None:
    found = figures([point._replace(bytes=1e6) for point in points(1.0, 1.0)])
    assert "exponent of memory" not in {figure.name for figure in found}


def test_the_table_says_what_grows(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "measured", lambda axis, quick: points(2.0, 1.0))
    cases = tuple(run_case(entry, PEAK, quick=False, say=print) for entry in entries("growth"))
    text = table.markdown(record.model_copy(update={"suite": "growth", "cases": cases}))
    assert text.count("\n| `") == len(AXES) == len({axis.key for axis in AXES})
    assert "`hmm-states` exact conditionals of a dense HMM" in text
    assert f"{2 * len(AXES)} of {2 * len(AXES)} goals are met." in text


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.key)
def test_every_axis_does_its_work(axis: growth.Axis) -> None:
    """At its smallest value; operations do not fall with the size."""
    small, next_ = axis.values[0], axis.values[1]
    load = axis.load(small)
    load.call()
    assert 0 < load.operations < axis.load(next_).operations


def test_a_point_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The memory is that of the call: logits of the most words take far more than those of few."""
    found = []
    for value in (50, 3200):
        request = {"key": "hmm-vocabulary", "value": value, "seconds": 0.1}
        file = tmp_path / f"{value}.json"
        line = [sys.executable, "-m", "raysweep.bench.growth", json.dumps(request), str(file)]
        subprocess.run(line, check=True, timeout=300)
        found.append(Point(**json.loads(file.read_text())))
    assert [point.value for point in found] == [50, 3200]
    assert all(point.seconds > 0 for point in found)
    # Conditionals of 1,024 sentences of 16 words, as float32 numbers.
    assert found[1].bytes >= 1024 * 16 * 3200 * 4 > found[0].bytes
