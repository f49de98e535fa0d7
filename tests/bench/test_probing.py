"""`raysweep bench downstream`: linear probes whose heads agree, or are no less accurate."""

from __future__ import annotations

import ctypes

import pytest
import torch

from raysweep.bench import suites
from raysweep.bench.downstream import probing
from raysweep.bench.downstream.memory import added_memory
from raysweep.bench.downstream.probing import QUICK, Data
from raysweep.bench.harness import run_case
from raysweep.bench.record import Peak
from raysweep.downstream import AdamW, Convex

PEAK = Peak(gemm_float32_gflops=1.0, gemm_float64_gflops=1.0, copy_gbytes=1.0)


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(QUICK, True)


def test_the_loop_takes_the_same_steps(data: Data) -> None:
    recipe = AdamW(epochs=3, steps=0)
    ours, theirs = data.probe(recipe, [512]), probing.looped(data, recipe)
    found = probing.disagreement(ours, theirs)
    assert found.passed
    other = probing.looped(data, AdamW(epochs=3, steps=0, learning_rate=2e-3))
    assert not probing.disagreement(ours, other).passed


def test_heads_that_are_worse_are_found(data: Data) -> None:
    best = data.probe(Convex(), [512])
    theirs = {task: result.predicted[0].long() for task, result in best.items()}
    assert probing.shortfall(data, best, theirs).value == pytest.approx(0, abs=1e-9)
    assert probing.accuracy_difference(data, best, theirs).value == pytest.approx(0, abs=1e-9)
    constant = {task: torch.zeros_like(predicted) for task, predicted in theirs.items()}
    # Here raysweep is the better one, which is no shortfall, and no equality.
    assert probing.shortfall(data, best, constant).passed
    assert not probing.accuracy_difference(data, best, constant).passed


def test_the_memory_of_a_call_is_counted() -> None:
    # Earlier work of this process may have left freed memory, which the call would take first.
    ctypes.CDLL(None).malloc_trim(0)
    assert 0.09 < added_memory(lambda: torch.ones(25 * 2**20).sum()) < 0.2


@pytest.mark.parametrize("key", ["probe", "probe-adamw", "probe-curve"])
def test_a_quick_run(key: str) -> None:
    (entry,) = suites.entries("downstream", [key])
    record = run_case(entry, PEAK, quick=True, say=lambda text: None)
    assert [row.status for row in record.comparisons] == ["equal"]
    units = ["GiB", "GiB", "", ""] if key == "probe-adamw" else ["GiB", "GiB"]
    assert [figure.unit for figure in record.figures] == units
