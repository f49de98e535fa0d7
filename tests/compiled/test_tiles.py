"""Blocks of sums against numpy's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from raysweep.compiled import kernel
from raysweep.compiled.tiles import tile

_VECTORS, _ADDED, _SCALED = tile(3, 2), tile(5, 4, add=True), tile(6, 2, scalar=True)


@kernel(error_model="numpy")
def _vectors(out, x, y, count):  # type: ignore[no-untyped-def]
    lanes = out.shape[2]
    _VECTORS(out, 0, 2 * lanes, lanes, x, 0, 3 * lanes, lanes, y, 0, 2 * lanes, lanes, count)


@kernel(error_model="numpy")
def _added(out, x, y, count):  # type: ignore[no-untyped-def]
    lanes = out.shape[2]
    _ADDED(out, 0, 4 * lanes, lanes, x, 0, 5 * lanes, lanes, y, 0, 4 * lanes, lanes, count)


@kernel(error_model="numpy")
def _scaled(out, x, y, count):  # type: ignore[no-untyped-def]
    lanes = out.shape[2]
    _SCALED(out, 0, 2 * lanes, lanes, x, 0, 6, 1, y, 0, 2 * lanes, lanes, count)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize(
    ("loop", "rows", "columns", "scalar", "add"),
    [(_vectors, 3, 2, False, False), (_added, 5, 4, False, True), (_scaled, 6, 2, True, False)],
)
def test_a_block_is_a_sum_of_products(
    loop: Callable[..., None], rows: int, columns: int, scalar: bool, add: bool, count: int, dtype: type
) -> None:
    lanes, generator = 64 // np.dtype(dtype).itemsize, np.random.default_rng(count)
    x = generator.standard_normal((count, rows, 1 if scalar else lanes)).astype(dtype)
    y = generator.standard_normal((count, columns, lanes)).astype(dtype)
    out = generator.standard_normal((rows, columns, lanes)).astype(dtype)
    exact = np.einsum("krs,kcs->rcs", np.broadcast_to(x, (count, rows, lanes)), y, dtype=np.float64)
    exact += out if add else 0
    loop(out, x, y, count)
    np.testing.assert_allclose(out, exact, rtol=0, atol=2e-6 if dtype == np.float32 else 1e-14)
