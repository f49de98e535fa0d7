"""Products with a matrix laid out beforehand, against those of PyTorch in float64."""

import pytest
import torch

from raysweep.models.fused import products
from raysweep.models.fused.products import Product

SHAPES = [(16, 8, 32), (1, 3, 5), (7, 16, 33), (9, 1, 64), (19, 40, 24), (8, 96, 100)]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_products_are_those_of_torch(monkeypatch, wide, rows, inner, columns):
    monkeypatch.setattr(products, "WIDE", wide)
    generator = torch.Generator().manual_seed(rows)
    x, matrix = (
        torch.randn(rows, inner, generator=generator),
        torch.randn(inner, columns, generator=generator),
    )
    truth = x.double() @ matrix.double()
    # A matrix may come transposed, and `out` may be part of something that must stay as it is.
    for given in (matrix, matrix.T.contiguous().T):
        multiply = Product(given)
        assert (multiply(x) - truth).abs().max() < 1e-5 * inner**0.5
        assert (multiply(x.T.contiguous().T) - truth).abs().max() < 1e-5 * inner**0.5
        around = torch.full((rows + 2, columns), torch.inf)
        returned = multiply(x, out=around[1:-1])
        assert returned.data_ptr() == around[1:-1].data_ptr()
        assert (around[1:-1] - truth).abs().max() < 1e-5 * inner**0.5
        assert around[0].isinf().all()
        assert around[-1].isinf().all()


@pytest.mark.parametrize("wide", [True, False])
def test_what_is_not_finite_stays_so(monkeypatch, wide):
    monkeypatch.setattr(products, "WIDE", wide)
    x = torch.ones(10, 4)
    x[3, 2], x[9, 1] = torch.nan, torch.inf
    found = Product(torch.ones(4, 40))(x)
    assert found[3].isnan().all()
    assert found[9].isposinf().all()
    assert found[[0, 1, 2, 4, 5, 6, 7, 8]].isfinite().all()
