"""Tiles of bfloat16 numbers against sums of products in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysweep.compiled import amx, kernel
from raysweep.compiled.amx import add_product, clear, put_low, read_tile, write_tile

needs_tiles = pytest.mark.skipif(
    not amx.usable(), reason="this processor has no tiles, or the system none for us"
)


@kernel(error_model="numpy")
def _summed(x, y, out, count):  # type: ignore[no-untyped-def]
    """Add the products of tiles side by side in x and one below the other in y to a tile of `out`."""
    amx.begin()
    read_tile(0, out, 3, 20)
    for k in range(count):
        read_tile(5, x, 16 * k, 16 * count)
        read_tile(7, y, 16 * 16 * k, 16)
        add_product(0, 5, 7)
    write_tile(0, out, 3, 20)
    amx.end()


@needs_tiles
@pytest.mark.parametrize("count", [1, 5])
def test_a_tile_is_a_sum_of_products_of_pairs(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(16, 32 * count, generator=generator).bfloat16()
    y = torch.randn(16 * count, 16, 2, generator=generator).bfloat16()
    before = torch.randn(16, 20, generator=generator)
    out = torch.cat([before.flatten(), torch.zeros(3)])
    _summed(x.view(torch.uint32).numpy(), y.view(torch.uint32).numpy().reshape(-1, 16), out.numpy(), count)
    exact = x.double() @ y.double().transpose(1, 2).reshape(-1, 16)
    # The tile begins at the fourth number; what lies between its rows stays.
    found = out[3:].view(16, 20)
    was = torch.cat([before.flatten()[3:], torch.zeros(3)]).view(16, 20)
    assert (found[:, :16] - was[:, :16] - exact).abs().max() < 1e-6 * (1 + 8 * count)
    assert torch.equal(found[:, 16:], was[:, 16:])
    assert torch.equal(out[:3], before.flatten()[:3])


@kernel(error_model="numpy")
def _cleared(out):  # type: ignore[no-untyped-def]
    amx.begin()
    read_tile(3, out, 0, 16)
    clear(3)
    write_tile(3, out, 0, 16)
    amx.end()


@needs_tiles
def test_a_tile_is_cleared() -> None:
    out = np.ones((16, 16), dtype=np.float32)
    _cleared(out)
    assert (out == 0).all()


@kernel(error_model="numpy")
def _rounded(numbers, out):  # type: ignore[no-untyped-def]
    put_low(numbers, 1, out, 2)


@needs_tiles
def test_numbers_are_rounded_to_nearest_with_ties_to_even() -> None:
    numbers = torch.randn(33, generator=torch.Generator().manual_seed(0))
    # Halfway between two numbers of bfloat16, and what is not finite.
    numbers[1:6] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 - 2.0**-9, torch.inf, torch.nan])
    out = torch.full((36,), 7.0).bfloat16()
    _rounded(numbers.numpy(), out.view(torch.uint16).numpy())
    torch.testing.assert_close(out[2:34], numbers[1:].bfloat16(), rtol=0, atol=0, equal_nan=True)
    assert (out[[0, 1, 34, 35]] == 7).all()


def test_a_process_that_gets_no_tiles_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amx, "has", lambda feature: True)
    monkeypatch.setattr("torch.cpu._init_amx", lambda: False)
    assert not amx.usable.__wrapped__()
    assert "the system does not let this process use the processor's tiles (AMX)" in caplog.text
    caplog.clear()
    monkeypatch.setattr(amx, "has", lambda feature: False)
    assert not amx.usable.__wrapped__()
    assert caplog.text == ""
