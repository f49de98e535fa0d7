"""Vectors of compiled code against numpy."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from raysweep.compiled import simd


@pytest.mark.parametrize("wide", [True, False])
def test_a_block_is_turned_whatever_registers_there_are(monkeypatch: pytest.MonkeyPatch, wide: bool) -> None:
    monkeypatch.setattr(simd, "WIDE", wide)
    turn = simd.turn

    @numba.njit
    def turned(x: Any, place: int, row: int, out: Any, to: int, gap: int) -> None:
        turn(x, place, row, out, to, gap)

    x = np.arange(20 * 30, dtype=np.float32).reshape(20, 30)
    for dtype in (np.float32, np.uint32):
        out = np.zeros((18, 40), dtype=dtype)
        turned(x.astype(dtype), 2 * 30 + 5, 30, out, 40 + 7, 40)
        expected = np.zeros_like(out)
        expected[1:17, 7:23] = x[2:18, 5:21].T
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("wide", [True, False])
def test_a_block_is_turned_in_its_own_place(monkeypatch: pytest.MonkeyPatch, wide: bool) -> None:
    monkeypatch.setattr(simd, "WIDE", wide)
    turn = simd.turn

    @numba.njit
    def turned(x: Any) -> None:
        turn(x, 0, 16, x, 0, 16)

    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    expected = x.T.copy()
    turned(x)
    assert np.array_equal(x, expected)
