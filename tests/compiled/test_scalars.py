"""Exponential, logarithm and normal distribution of the kernels against numpy and scipy in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numba.core.errors import LoweringError, TypingError
from scipy import stats

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED, exponential, logarithm, logarithms, normal
from raysweep.compiled.simd import BYTES, LANES, aligned, fetch, load, plus, put, store, times


@kernel(**COMPILED)
def _exponentials(x, out):  # type: ignore[no-untyped-def]
    for k in range(len(x)):
        out[k] = exponential(x[k])


@kernel(**COMPILED)
def _logarithms(x, out):  # type: ignore[no-untyped-def]
    for k in range(len(x)):
        out[k] = logarithm(x[k])


@kernel(**COMPILED)
def _logarithms_of_vectors(x, out):  # type: ignore[no-untyped-def]
    for k in range(0, len(x), 16):
        put(out, k, logarithm(fetch(x, k)))


@kernel(error_model="numpy")
def _doubled(x, out, two):  # type: ignore[no-untyped-def]
    step = BYTES // x.itemsize
    store(out, 0, 0, times(two, load(x, 0, 0, 2)))
    store(out, 1, step, plus(two, load(x, 0, step, 1), load(x, 1, step, 1)))
    store(out, 2, 0, times(load(x, 0, 0, 4), load(x, 1, 0, 4)))


@kernel(error_model="numpy")
def _several(x, place, count, out, to):  # type: ignore[no-untyped-def]
    logarithms(x, place, count, out, to)


@kernel(**COMPILED)
def _copied(x, out):  # type: ignore[no-untyped-def]
    for k in range(0, len(x), 16):
        put(out, k, fetch(x, k))


@kernel(**COMPILED)
def _normals(x, below, density):  # type: ignore[no-untyped-def]
    for k in range(len(x)):
        below[k], density[k] = normal(x[k])


def test_vectors_of_bfloat16_are_rounded_to_nearest_and_ties_to_even() -> None:
    near = [
        0.0,
        -0.0,
        1.0,
        np.inf,
        -np.inf,
        np.nan,
        3e-39,
        *(1 + k * 2.0**-9 for k in range(1, 7)),
        3e38,
        -2.5,
        7.0,
    ]
    x = torch.tensor(near)
    low = torch.empty(16, dtype=torch.bfloat16)
    bits = low.view(torch.uint16).numpy()
    _copied(x.numpy(), bits)
    torch.testing.assert_close(low, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    again = np.empty(16, dtype=np.float32)
    _copied(bits, again)
    np.testing.assert_array_equal(again, low.float().numpy())


def test_a_vector_of_another_kind_is_not_stored() -> None:
    with pytest.raises(TypingError):
        _copied(np.ones(16, dtype=np.float32), np.ones(16))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_several_vectors_are_multiplied_as_one(dtype: str) -> None:
    rng = np.random.default_rng(0)
    space = [aligned(3 * LANES, np.dtype(dtype)).reshape(3, LANES) for _ in range(2)]
    x, out = space
    x[:], out[:] = rng.random(x.shape), 7
    _doubled(x, out, x.dtype.type(2))
    step = BYTES // x.itemsize
    wanted = np.full_like(x, 7)
    wanted[0, : 2 * step] = 2 * x[0, : 2 * step]
    wanted[1, step : 2 * step] = 2 * x[0, step : 2 * step] + x[1, step : 2 * step]
    wanted[2, : 4 * step] = x[0, : 4 * step] * x[1, : 4 * step]
    np.testing.assert_array_equal(out, wanted)


def test_vectors_of_another_kind_are_not_stored_in_rows() -> None:
    x = aligned(3 * LANES, np.dtype(np.float64)).reshape(3, LANES)
    with pytest.raises(TypingError):
        _doubled(x, x.astype(np.float32), 2.0)


def test_a_number_of_another_kind_multiplies_no_vector() -> None:
    x = aligned(3 * LANES, np.dtype(np.float32)).reshape(3, LANES)
    with pytest.raises(TypingError):
        _doubled(x, x, 2.0)


def test_the_exponential_is_exact_down_to_what_adds_nothing_to_one() -> None:
    x = np.concatenate([np.linspace(-50, 0, 100_003), [-1e-8]]).astype(np.float32)
    out = np.empty_like(x)
    _exponentials(x, out)
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=4e-7)
    far = np.array([-50.001, -60, -87, -88, -104, -1e4, -3e38, -np.inf, np.nan], dtype=np.float32)
    out = np.empty_like(far)
    _exponentials(far, out)
    assert out[:-1].tolist() == [0.0] * 8
    assert np.isnan(out[-1])


@pytest.mark.parametrize("write", [_logarithms, _logarithms_of_vectors])
def test_the_logarithm_is_within_two_units_from_the_least_number_on(write: Callable[..., None]) -> None:
    x = np.geomspace(1e-44, 1e30, 100_000).astype(np.float32)
    x[:4] = 0, 1, np.nextafter(np.float32(1), np.float32(0)), np.finfo(np.float32).tiny
    out = np.empty_like(x)
    write(x, out)
    assert np.isfinite(out[0])
    exact = np.log(x[1:].astype(np.float64))
    assert (np.abs(out[1:] - exact) <= 2 * np.spacing(np.abs(exact).astype(np.float32))).all()


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 31, 32, 33, 64, 200])
def test_logarithms_of_any_number_are_those_of_each_and_minus_infinity_at_zero(count: int) -> None:
    x = np.random.default_rng(count).random(count + 10, dtype=np.float32)
    x[3::7], x[4::11] = 0, 1e-42
    x[5::13] = np.nan
    each, out = np.empty_like(x), np.full(count + 20, 7, dtype=np.float32)
    _logarithms(x, each)
    each[(x == 0) | np.isnan(x)] = -np.inf
    _several(x, 4, count, out, 9)
    np.testing.assert_array_equal(out[9 : 9 + count], each[4 : 4 + count])
    assert (out[:9] == 7).all()
    assert (out[9 + count :] == 7).all()


@pytest.mark.parametrize("dtypes", [("float64", "float32"), ("float32", "float64")])
def test_numbers_of_another_kind_have_no_logarithms_side_by_side(dtypes: tuple[str, str]) -> None:
    x, out = (np.ones(64, dtype=dtype) for dtype in dtypes)
    with pytest.raises(TypingError):
        _several(x, 0, 64, out, 0)


def test_a_kernel_takes_places_of_arrays_in_c_order_alone() -> None:
    x, out = np.ones(64, dtype=np.float32), np.empty(32, dtype=np.float32)
    _logarithms_of_vectors(x[:32], out)
    with pytest.raises(LoweringError, match="counted in C order"):
        _logarithms_of_vectors(x[::2], out)


def test_products_of_small_probabilities_are_no_denormals() -> None:
    """A matrix product of denormals takes many times as long: a unit far below 0 gives 0, not 1e-38."""
    x = np.linspace(-60, 60, 100_001, dtype=np.float32)
    below, density = np.empty_like(x), np.empty_like(x)
    _normals(x, below, density)
    np.testing.assert_allclose(below, stats.norm.cdf(x.astype(np.float64)), atol=3e-7)
    np.testing.assert_allclose(density, stats.norm.pdf(x.astype(np.float64)), atol=3e-7)
    for value in (x * below, x * density, below * np.float32(1e-12)):
        small = np.abs(value[value != 0])
        assert small.min() >= np.finfo(np.float32).tiny
    assert (below[x < -11] == 0).all()
