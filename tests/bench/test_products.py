"""Products with weights are timed and counted while they are measured, in turns with the peak."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.fused_oracle import LANGUAGE, draw
from raysweep.bench import products
from raysweep.bench.record import Goal
from raysweep.flatness.fused import whole
from raysweep.models import EncoderConfig
from raysweep.models.fused.encoder_weights import EncoderWeights
from raysweep.models.fused.packing import packed
from raysweep.models.fused.products import FAST, array, tensor
from raysweep.models.fused.weights import Matrix


def test_products_are_timed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(products.time, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(products, "product_flops", lambda *given: 2000.0)
    x, d = torch.ones(5, 3), torch.ones(5, 2)
    for dtype in (torch.float32, torch.bfloat16):
        matrix = Matrix(torch.ones(2, 3, dtype=dtype), array(torch.zeros(2, 3)))
        of_x, of_d = array(x.to(dtype)), array(d.to(dtype))

        def work(matrix: Matrix = matrix, of_x: np.ndarray = of_x, of_d: np.ndarray = of_d) -> None:
            assert tensor(matrix.apply(of_x)).tolist() == [[3.0, 3.0]] * 5
            assert tensor(matrix.through(of_d)).tolist() == [[2.0, 2.0, 2.0]] * 5
            matrix.learn(of_d, of_x)

        share, by_peak = products.products(work, dtype)
        # Each look at the clock is a second later: one passes in the work, which does not look, and one in
        # each of its three products where these are timed.
        assert (share, by_peak) == (3 / 1, (3 * 2 * 5 * 3 * 2 / 3) / 2000)
        # One call before five that are measured as they are, and five whose products are timed.
        assert matrix.gradient.tolist() == [[55.0] * 3] * 2
        ticks = iter(range(100))
        work()
        assert next(ticks) == 0, "nothing is timed any more"
        ticks = iter(range(1000))


def test_a_share_of_the_peak_is_measured_between_two_of_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor becomes twice as fast within a round; the share is by the mean of both peaks."""
    now, speed, calls = 0.0, iter([100.0, 200.0, 200.0, 400.0]), []
    monkeypatch.setattr(products.time, "process_time", lambda: now)

    def peak(size: int, dtype: torch.dtype, *more: object) -> float:
        calls.append(f"peak {dtype}")
        return next(speed)

    def work() -> None:
        nonlocal now
        calls.append("work")
        now += 8.0

    monkeypatch.setattr(products, "product_flops", peak)
    # 150 operations a second, beside 150, 200 and 300.
    assert products.share_of_peak(1200, work, torch.float64, rounds=3) == 150 / 200
    assert calls == ["peak torch.float64", *["work", "peak torch.float64"] * 3]
    monkeypatch.setattr(products, "product_flops", lambda *given: 300.0)
    figure = products.share_of_gemm(1200, work, goal=0.5)
    assert (figure.value, figure.goal) == (0.5, Goal(sense="at least", value=0.5))
    assert products.share_of_gemm(1200, work).goal is None


def test_passes_are_call_by_call_for_a_while() -> None:
    model = EncoderConfig(shape="32/2/2/48").build(LANGUAGE, seed=0)
    batch = draw()
    [chunk] = packed(batch, model, 10_000)
    weights = EncoderWeights(model, torch.float32)

    def at_once() -> list[bool]:
        with whole.maker(model) as maker:
            return [weights.whole_for(chunk) is not None, maker is not None]

    before = at_once()
    assert products.call_by_call(at_once) == [False, False]
    with pytest.raises(ZeroDivisionError):
        products.call_by_call(lambda: 1 / 0)
    assert at_once() == before
    assert before == [FAST, FAST]
