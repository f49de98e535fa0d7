"""Products with a matrix laid out beforehand, against those of PyTorch in float64."""

import pytest
import torch

from raysweep.models.fused import products
from raysweep.models.fused.products import Product, add_outer

SHAPES = [(16, 8, 32), (1, 3, 5), (7, 16, 33), (13, 1, 64), (31, 40, 24), (12, 96, 100)]


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
@pytest.mark.parametrize("outputs", [8, 24, 30])
@pytest.mark.parametrize("inputs", [16, 32, 48, 64, 80, 112, 20])
@pytest.mark.parametrize("rows", [1, 128, 300])
def test_sums_over_rows_are_those_of_torch(monkeypatch, wide, rows, inputs, outputs):
    monkeypatch.setattr(products, "WIDE", wide)
    generator = torch.Generator().manual_seed(rows + inputs)
    d, x = (torch.randn(rows, width, generator=generator) for width in (outputs, inputs))
    before = torch.randn(outputs, inputs, generator=generator)
    truth = before.double() + d.double().T @ x.double()
    # Either factor may be columns of a wider one.
    for given in (d, torch.cat([d, d], dim=1)[:, :outputs]):
        total = before.clone()
        add_outer(total, given, x)
        assert (total - truth).abs().max() < 1e-5 * rows**0.5


def test_other_dtypes_and_large_matrices_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(products, "WIDE", True)
    monkeypatch.setattr(products, "LARGEST", 500)
    assert Product(torch.ones(10, 50)).panels is not None
    assert Product(torch.ones(10, 51)).panels is None
    assert Product(torch.ones(10, 50, dtype=torch.bfloat16)).panels is None
    total, d, x = torch.zeros(8, 16), torch.ones(3, 8).bfloat16(), torch.ones(3, 16).bfloat16()
    add_outer(total, d, x)
    assert total.tolist() == [[3.0] * 16] * 8


@pytest.mark.parametrize("wide", [True, False])
def test_what_is_not_finite_stays_so(monkeypatch, wide):
    monkeypatch.setattr(products, "WIDE", wide)
    x = torch.ones(10, 4)
    x[3, 2], x[9, 1] = torch.nan, torch.inf
    found = Product(torch.ones(4, 40))(x)
    assert found[3].isnan().all()
    assert found[9].isposinf().all()
    assert found[[0, 1, 2, 4, 5, 6, 7, 8]].isfinite().all()
