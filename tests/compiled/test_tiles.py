"""Blocks of sums against numpy's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numba
import numpy as np
import pytest
import torch

from raysweep.compiled import kernel, tiles
from raysweep.compiled.tiles import PAIRS, Registers, tile

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


_ROUNDED, _SUMMED = tile(4, 2, scalar=True), tile(4, 2, scalar=True, add=True)


@kernel(error_model="numpy")
def _rounded(out, x, y, count):  # type: ignore[no-untyped-def]
    _ROUNDED(out, 0, 32, 16, x, 0, 4, 1, y, 0, 32, 16, count)


@kernel(error_model="numpy")
def _summed(out, x, y, count):  # type: ignore[no-untyped-def]
    _SUMMED(out, 0, 32, 16, x, 0, 4, 1, y, 0, 32, 16, count)


@pytest.mark.skipif(not PAIRS, reason="this processor has no instructions for pairs of bfloat16 numbers")
@pytest.mark.parametrize("count", [0, 1, 9])
def test_pairs_of_bfloat16_numbers_are_multiplied_and_added(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 4, 1, 2, generator=generator).bfloat16()
    y = torch.randn(count, 1, 32, 2, generator=generator).bfloat16()
    exact = (x.double() * y.double()).sum(dim=(0, 3))
    pairs = [given.view(torch.uint32).numpy() for given in (x, y)]
    before = torch.randn(4, 32, generator=generator)
    out = before.clone()
    _summed(out.numpy(), *pairs, count)
    assert (out - before - exact).abs().max() < 1e-6 * (1 + count)
    rounded = torch.full((4, 32), torch.nan, dtype=torch.bfloat16)
    _rounded(rounded.view(torch.uint16).numpy(), *pairs, count)
    assert ((rounded - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all()


@pytest.mark.skipif(not PAIRS, reason="this processor has no instructions for pairs of bfloat16 numbers")
def test_sums_are_rounded_to_nearest_with_ties_to_even() -> None:
    """1 + 2^-8, 1 + 3 · 2^-8 and 1 - 2^-9 each lie halfway between two bfloat16 numbers."""
    first = torch.tensor([1.0, 1.0, 1.0, 1.0, torch.inf, torch.nan]).bfloat16()
    second = torch.tensor([2.0**-8, 3 * 2.0**-8, 2.0**-8 + 2.0**-15, -(2.0**-9), 1.0, 1.0]).bfloat16()
    y = torch.zeros(1, 32, 2).bfloat16()
    y[0, :6, 0], y[0, :6, 1] = first, second
    out = torch.empty(4, 32, dtype=torch.bfloat16)
    pairs = [given.view(torch.uint32).numpy() for given in (torch.ones(1, 4, 2).bfloat16(), y)]
    _rounded(out.view(torch.uint16).numpy(), *pairs, 1)
    wanted = torch.tensor([1.0, 1 + 2.0**-6, 1 + 2.0**-7, 1.0, torch.inf, torch.nan]).bfloat16()
    torch.testing.assert_close(out[:, :6], wanted.expand(4, 6), rtol=0, atol=0, equal_nan=True)


#: Registers of AVX-512, AVX2, NEON and SSE.
_KINDS = [Registers(64, 32), Registers(32, 16), Registers(16, 32), Registers(16, 16)]


#: Each with the sizes of vectors that take one or more of them.
_SIZES = [(registers, size) for registers in _KINDS for size in (64, 32) if size >= registers.size]


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize(("registers", "size"), _SIZES, ids=str)
def test_every_piece_of_a_block_is_in_one_part_whose_sums_fit(
    registers: Registers, size: int, scalar: bool
) -> None:
    for rows, columns in product(range(1, 13), (*range(1, 6), 10)):
        found = tiles.parts(rows, columns, scalar, registers, size)
        pieces = [(r, *at) for part in found for r in part.rows for at in part.columns]
        every = product(range(rows), range(columns), range(size // registers.size))
        assert sorted(pieces) == list(every)
        for part in found:
            assert len(part.rows) * len(part.columns) + len(part.columns) + 1 <= registers.number
        # A part whose columns are of two pieces reads two pieces of each row's vector.
        bands = len({part.rows for part in found})
        mixed = [part for part in found if len({piece for _, piece in part.columns}) > 1]
        assert scalar or len(mixed) <= bands * (size // registers.size - 1)
    # The blocks of all kernels were made for the first.
    whole = [tiles.parts(*block, scalar, Registers(64, 32)) for block in ((5, 5), (4, 4), (12, 2), (8, 3))]
    assert [len(each) for each in whole] == [1] * 4


@pytest.mark.parametrize("size", [64, 32])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("rows", "columns", "scalar", "add"),
    [
        (5, 5, False, False),
        (5, 3, False, True),
        (5, 10, False, False),
        (10, 2, True, False),
        (12, 2, True, False),
        (8, 3, True, True),
    ],
)
def test_no_number_depends_on_the_registers(
    rows: int, columns: int, scalar: bool, add: bool, dtype: type, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, lanes = 9, size // np.dtype(dtype).itemsize
    generator = np.random.default_rng(1)
    x, y, before = (
        generator.standard_normal(shape).astype(dtype)
        for shape in ((count, rows, 1 if scalar else lanes), (count, columns, lanes), (rows, columns, lanes))
    )
    found = []
    for registers in (registers for registers in _KINDS if registers.size <= size):
        monkeypatch.setattr(tiles, "REGISTERS", registers)
        loop, each, wide = (
            tile.__wrapped__(rows, columns, scalar=scalar, add=add, size=size),
            x.shape[2],
            columns * lanes,
        )

        @numba.njit(error_model="numpy")
        def run(out, x, y, loop=loop, each=each, wide=wide):  # type: ignore[no-untyped-def]
            loop(out, 0, wide, lanes, x, 0, rows * each, each, y, 0, wide, lanes, count)

        found.append(before.copy())
        run(found[-1], x, y)
    exact = np.einsum("krs,kcs->rcs", np.broadcast_to(x, (count, rows, lanes)), y, dtype=np.float64)
    atol = 2e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(found[0], exact + (before if add else 0), rtol=0, atol=atol)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
