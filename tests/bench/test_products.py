"""Products with weights are timed and counted while they are measured, and only then."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysweep.bench import products
from raysweep.models.fused.products import array, tensor
from raysweep.models.fused.weights import Matrix


def test_products_are_timed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(products.time, "process_time", lambda: float(next(ticks)))
    x, d = torch.ones(5, 3), torch.ones(5, 2)
    for dtype in (torch.float32, torch.bfloat16):
        matrix = Matrix(torch.ones(2, 3, dtype=dtype), array(torch.zeros(2, 3)))
        of_x, of_d = array(x.to(dtype)), array(d.to(dtype))

        def work(matrix: Matrix = matrix, of_x: np.ndarray = of_x, of_d: np.ndarray = of_d) -> None:
            assert tensor(matrix.apply(of_x)).tolist() == [[3.0, 3.0]] * 5
            assert tensor(matrix.through(of_d)).tolist() == [[2.0, 2.0, 2.0]] * 5
            matrix.learn(of_d, of_x)

        ticks = iter(range(100))
        share, rate = products.products(work)
        # Eight looks at the clock, two of them around each of three products.
        assert (share, rate) == (3 / 7, 3 * 2 * 5 * 3 * 2 / 3)
        assert matrix.gradient.tolist() == [[10.0] * 3] * 2
        ticks = iter(range(100))
        work()
        assert next(ticks) == 0, "nothing is timed any more"
