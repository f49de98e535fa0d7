"""Products with weights are timed and counted while they are measured, in turns with the peak."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from raysweep.bench import harness, products
from raysweep.bench.record import Goal
from raysweep.models.fused.products import array, tensor
from raysweep.models.fused.weights import Matrix


def test_products_are_timed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(products.time, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(products, "_SIZE", 10)
    x, d = torch.ones(5, 3), torch.ones(5, 2)
    for dtype in (torch.float32, torch.bfloat16):
        matrix = Matrix(torch.ones(2, 3, dtype=dtype), array(torch.zeros(2, 3)))
        of_x, of_d = array(x.to(dtype)), array(d.to(dtype))

        def work(matrix: Matrix = matrix, of_x: np.ndarray = of_x, of_d: np.ndarray = of_d) -> None:
            assert tensor(matrix.apply(of_x)).tolist() == [[3.0, 3.0]] * 5
            assert tensor(matrix.through(of_d)).tolist() == [[2.0, 2.0, 2.0]] * 5
            matrix.learn(of_d, of_x)

        share, by_peak = products.products(work, dtype)
        # Eight looks at the clock, two of them around each of three products; a second for the peak's.
        assert (share, by_peak) == (3 / 7, (3 * 2 * 5 * 3 * 2 / 3) / 2000)
        # One call before five that are measured.
        assert matrix.gradient.tolist() == [[30.0] * 3] * 2
        ticks = iter(range(100))
        work()
        assert next(ticks) == 0, "nothing is timed any more"
        ticks = iter(range(1000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_peak_is_a_product_of_large_matrices(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(products, "_SIZE", 8)
    peak = products.peak(dtype)
    found = peak.work()
    assert isinstance(found, torch.Tensor)
    assert (found.dtype, found.tolist()) == (dtype, [[2.0] * 8] * 8)
    assert peak.units == 2 * 8**3


def test_a_share_of_the_peak_is_measured_in_turns_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 0.0, []
    monkeypatch.setattr(harness.time, "process_time", lambda: now)

    def taking(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            calls.append(name)
            now += seconds

        return run

    peak = harness.Contestant(units=1000.0, work=taking("peak", 2.0))
    monkeypatch.setattr(products, "peak", lambda dtype: peak)
    work = taking("work", 8.0)
    assert products.share_of_peak(1200, work, rounds=2) == 1200 / 8 / (1000 / 2)
    # The first turn warms up.
    assert calls == ["peak", "work"] * 3
    figure = products.share_of_gemm(1200, work, goal=0.5)
    assert (figure.value, figure.goal) == (0.3, Goal(sense="at least", value=0.5))
    assert products.share_of_gemm(1200, work).goal is None
