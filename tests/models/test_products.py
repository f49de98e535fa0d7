"""Products with a matrix and sums over rows, against those of PyTorch in float64."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from raysweep.compiled.tiles import PAIRS
from raysweep.models.fused import by_tiles, products
from raysweep.models.fused.products import array, tensor
from raysweep.models.fused.rows import add, add_rows, round_rows, take_rows

needs_pairs = pytest.mark.skipif(
    not PAIRS, reason="this processor has no instructions for pairs of bfloat16 numbers"
)
needs_tiles = pytest.mark.skipif(not products.TILES, reason="this processor has no tiles")


@pytest.fixture(
    params=[
        pytest.param("vectors", marks=needs_pairs),
        pytest.param("tiles", marks=[needs_pairs, needs_tiles]),
    ]
)
def blocks(request, monkeypatch):
    """Return what blocks of bfloat16 sums are made of."""
    monkeypatch.setattr(products, "TILES", request.param == "tiles")
    return request.param


class Product(products.Product):
    """The map of tensors."""

    def __call__(self, x, out=None):
        return tensor(super().__call__(array(x), None if out is None else array(out)))


@pytest.mark.parametrize("dtype", ["float32", "uint16", "float64"])
def test_empty_matrices_have_places_of_their_own(monkeypatch, dtype):
    monkeypatch.setattr(products, "_SLAB", 2**12)
    monkeypatch.setattr(products, "_slab", products._Slab())
    dtype = np.dtype(dtype)

    def several(first):
        made = []
        for number in range(first, first + 40):
            made.append(products.empty(number % 7, number % 5 * 16 + 3, dtype))
            made[-1][:] = number
        return made

    with ThreadPoolExecutor(2) as pool:
        made = [one for part in [several(0), *pool.map(several, (40, 80))] for one in part]
    for number, one in enumerate(made):
        assert one.shape == (number % 7, number % 5 * 16 + 3)
        assert one.dtype == dtype
        assert one.flags.c_contiguous
        assert one.flags.writeable
        assert one.ctypes.data % 64 == 0
        assert (one == number).all()


def add_outer(total, d, x, parts=1):
    products.add_outer(array(total), array(d), array(x), parts)


SHAPES = [
    (16, 8, 32),
    (1, 3, 5),
    (7, 16, 33),
    (13, 1, 64),
    (31, 40, 24),
    (12, 96, 100),
    (24, 33, 64),
    (5, 32, 41),
]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_products_are_those_of_torch(monkeypatch, wide, rows, inner, columns):
    monkeypatch.setattr(products, "FAST", wide)
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    generator = torch.Generator().manual_seed(rows)
    x, matrix = (
        torch.randn(rows, inner, generator=generator),
        torch.randn(inner, columns, generator=generator),
    )
    truth = x.double() @ matrix.double()
    # A matrix may come transposed, and `out` may be part of something that must stay as it is.
    for given in (matrix, matrix.T.contiguous().T, torch.cat([matrix, matrix], dim=1)[:, :columns]):
        multiply = Product(given)
        assert (multiply(x) - truth).abs().max() < 1e-5 * inner**0.5
        assert (multiply(x.T.contiguous().T) - truth).abs().max() < 1e-5 * inner**0.5
        around = torch.full((rows + 2, columns), torch.inf)
        returned = multiply(x, out=around[1:-1])
        assert returned.data_ptr() == around[1:-1].data_ptr()
        assert (around[1:-1] - truth).abs().max() < 1e-5 * inner**0.5
        assert around[0].isinf().all()
        assert around[-1].isinf().all()


#: For blocks of 32 rows and columns, and of 16 pairs: parts of blocks in each direction, and none.
LARGE = [(300, 64, 48), (25, 26, 208), (32, 2, 1), (33, 30, 32), (65, 32, 33), (64, 98, 16), (47, 66, 75)]


@pytest.mark.parametrize(("rows", "inner", "columns"), [*SHAPES, *LARGE])
def test_products_of_bfloat16_are_exact_ones_rounded(blocks, compiled, monkeypatch, rows, inner, columns):
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inner, generator=generator).bfloat16()
    matrix = torch.randn(inner, columns, generator=generator).bfloat16()
    truth = x.double() @ matrix.double()
    for given in (matrix, matrix.T.contiguous().T, torch.cat([matrix, matrix], dim=1)[:, :columns]):
        compiled.clear()
        multiply = Product(given)
        around = torch.full((rows + 2, columns), torch.inf, dtype=torch.bfloat16)
        multiply(x, out=around[1:-1])
        for found in (multiply(x), multiply(x.T.contiguous().T), around[1:-1]):
            assert found.dtype == torch.bfloat16
            assert ((found - truth).abs() <= 2**-8 * truth.abs() + 1e-5 * inner**0.5).all()
        assert around[0].isinf().all()
        assert around[-1].isinf().all()
        name = {"vectors": "product", "tiles": "product_by_tiles"}[blocks]
        assert set(compiled) == (set() if inner % 2 or (blocks == "tiles" and rows < 32) else {name})


def test_products_of_bfloat16_take_any_memory_and_keep_what_is_not_finite(blocks, compiled, monkeypatch):
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    x, matrix = torch.randn(2, 1281, generator=torch.Generator().manual_seed(0)).bfloat16()
    # Memory that begins between two pairs, a single column, and no column at all.
    x, matrix = x[1:].view(40, 32), matrix[:1024].view(32, 32)
    x[3, 2], x[19, 31] = torch.nan, torch.inf
    rest = [*range(3), *range(4, 19), *range(20, 40)]
    for given in (matrix, matrix.T, matrix[:, :1], matrix[:1].T, matrix[:, :0]):
        found = Product(given)(x)
        truth = x.double() @ given.double()
        assert ((found - truth)[rest].abs() <= 2**-8 * truth[rest].abs() + 1e-4).all()
        assert found[3].isnan().all()
        assert found[19].isinf().all()
    assert compiled == [{"vectors": "product", "tiles": "product_by_tiles"}[blocks]] * 4


@pytest.mark.parametrize("outputs", [8, 24, 30, 72])
@pytest.mark.parametrize("inputs", [16, 48, 64, 80, 20])
@pytest.mark.parametrize("rows", [1, 2, 255, 300, 1057])
def test_sums_over_rows_of_bfloat16_are_not_rounded(blocks, compiled, rows, inputs, outputs):
    generator = torch.Generator().manual_seed(rows + inputs)
    d, x = (torch.randn(rows, width, generator=generator).bfloat16() for width in (outputs, inputs))
    before = torch.randn(outputs, inputs, generator=generator)
    truth = before.double() + d.double().T @ x.double()
    total = before.clone()
    add_outer(total, torch.cat([d, d], dim=1)[:, :outputs], x)
    ours = inputs % 16 == 0 and (blocks == "tiles" or outputs % 8 == 0)
    assert compiled == ([{"vectors": "outer_pairs", "tiles": "outer_by_tiles"}[blocks]] if ours else [])
    assert (total - truth).abs().max() < (1e-5 if ours else 2e-2) * rows**0.5


@pytest.mark.parametrize(
    ("rows", "columns", "at_once"), [(4600, 640, 16), (200, 640, 7), (1, 640, 1), (4600, 4096, 16),
    (4600, 16_413, 3), (4600, 2**17, 1)]
)  # fmt: skip
def test_factors_of_sums_by_tiles_take_little_memory(rows, columns, at_once):
    assert by_tiles._tiles_at_once.py_func(rows, columns) == at_once
    assert at_once == 1 or at_once * 16 * columns <= 2**20


@needs_tiles
def test_sums_of_many_outputs_by_tiles_are_right():
    generator = torch.Generator().manual_seed(0)
    d, x = (torch.randn(200, width, generator=generator).bfloat16() for width in (16_381, 32))
    total = torch.zeros(16_381, 32)
    add_outer(total, d, x)
    assert (total - d.double().T @ x.double()).abs().max() < 1e-5 * 200**0.5


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("outputs", [8, 24, 30])
@pytest.mark.parametrize("inputs", [16, 32, 48, 64, 80, 112, 20])
@pytest.mark.parametrize("rows", [1, 128, 300])
def test_sums_over_rows_are_those_of_torch(monkeypatch, wide, rows, inputs, outputs):
    monkeypatch.setattr(products, "FAST", wide)
    generator = torch.Generator().manual_seed(rows + inputs)
    d, x = (torch.randn(rows, width, generator=generator) for width in (outputs, inputs))
    before = torch.randn(outputs, inputs, generator=generator)
    truth = before.double() + d.double().T @ x.double()
    # Either factor may be columns of a wider one, and the sum may have columns side by side.
    for given, other in (
        (d, x),
        (torch.cat([d, d], dim=1)[:, :outputs], torch.cat([x, x], dim=1)[:, :inputs]),
    ):
        for total in (before.clone(), before.T.contiguous().T):
            add_outer(total, given, other)
            assert (total - truth).abs().max() < 1e-5 * rows**0.5


@pytest.mark.parametrize(("outputs", "parts"), [(8, 1), (24, 1), (32, 1), (40, 1), (16, 2), (72, 3)])
@pytest.mark.parametrize("inputs", [16, 48, 64])
@pytest.mark.parametrize("rows", [1, 128, 300])
def test_sums_over_rows_are_the_same_whatever_registers_there_are(rows, inputs, outputs, parts):
    generator = torch.Generator().manual_seed(rows + inputs + outputs)
    d, x = (torch.randn(rows, width, generator=generator).numpy() for width in (outputs, parts * inputs))
    before = torch.randn(outputs, inputs, generator=generator).numpy()
    wide, narrow = before.copy(), before.copy()
    for first in range(0, rows, 128):
        count = min(128, rows - first)
        products._outer_wide(d, x, wide, first, count)
        products._outer_narrow(d, x, narrow, first, count)
    assert np.array_equal(wide, narrow)
    assert not np.array_equal(wide, before)


@pytest.mark.parametrize("tiles", [pytest.param(True, marks=needs_tiles), False])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_pairs)])
@pytest.mark.parametrize(
    ("parts", "inner", "columns"), [(2, 16, 64), (4, 8, 48), (3, 24, 16), (2, 6, 41), (5, 1, 3), (2, 34, 80)]
)
def test_parts_side_by_side_have_matrices_of_their_own(
    monkeypatch, tiles, wide, dtype, parts, inner, columns
):
    """With the sum of the gradients of all these matrices."""
    monkeypatch.setattr(products, "FAST", wide)
    monkeypatch.setattr(products, "PAIRS", wide and PAIRS)
    monkeypatch.setattr(products, "TILES", tiles)
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    generator, rows = torch.Generator().manual_seed(inner), 270
    matrices = torch.randn(parts, inner, columns, generator=generator).to(dtype)
    x, d = (torch.randn(rows, parts * width, generator=generator).to(dtype) for width in (inner, columns))
    each = x.double().chunk(parts, dim=1), d.double().chunk(parts, dim=1)
    truth = torch.cat([a @ b for a, b in zip(each[0], matrices.double(), strict=True)], dim=1)
    near = 2**-8 * truth.abs() if dtype == torch.bfloat16 else 0
    for given in (matrices, matrices.mT.contiguous().mT):
        assert ((Product(given)(x) - truth).abs() <= near + 1e-5 * inner**0.5).all()
    total = torch.ones(parts * inner, columns)
    add_outer(total, x, d, parts)
    truth = 1 + torch.cat([a.T @ b for a, b in zip(*each, strict=True)])
    # torch rounds a sum of bfloat16 products before it is added.
    ours = wide and columns % 16 == 0 and (tiles or inner % 8 == 0)
    loose = dtype == torch.bfloat16 and not ours
    assert (total - truth).abs().max() < (2e-2 if loose else 1e-5) * rows**0.5


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_rows_are_multiplied_and_added(parts, dtype):
    matrix, empty = torch.ones(parts, 16, 16, dtype=dtype), torch.empty(0, parts * 16, dtype=dtype)
    assert Product(matrix)(empty).shape == (0, parts * 16)
    total = torch.ones(parts * 16, 16)
    add_outer(total, empty, empty, parts)
    assert (total == 1).all()


@pytest.mark.parametrize(("width", "parts"), [(32, 1), (16, 2), (48, 2)])
def test_a_factor_of_another_width_is_refused(width, parts):
    with pytest.raises(ValueError, match="is not"):
        add_outer(torch.zeros(16, 16), torch.ones(3, 16), torch.ones(3, width), parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_added_where_they_belong(dtype):
    out, x = torch.randn(2, 5, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = out.clone()
    wanted[[4, 1]] += x[:2]
    add_rows(array(out), np.array([4, 1]), array(x[:2]))
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_taken_added_up_and_rounded(dtype):
    x = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    x[0, :3] = torch.tensor(
        [1 + 2**-8, 1 + 3 * 2**-8, -(2.0**-130)]
    )  # ties, and a number below the normal ones
    low, rows = torch.empty(5, 20, dtype=dtype), np.array([3, 0, 3])
    round_rows(array(x), array(low))
    assert torch.equal(low, x.to(dtype))
    taken, total = torch.empty(3, 20, dtype=dtype), x.clone()
    take_rows(array(low), rows, array(taken))
    assert torch.equal(taken, low[rows])
    add(array(low), array(total))
    assert torch.equal(total, x + low)


@pytest.fixture
def compiled(monkeypatch):
    """Return the names of the compiled loops that have run, on a processor that has the vectors."""
    called = []
    monkeypatch.setattr(products, "FAST", True)
    for name in ("product", "product_by_tiles", "outer", "outer_pairs", "outer_by_tiles"):
        loop = getattr(products, name)
        monkeypatch.setattr(products, name, lambda *a, name=name, loop=loop: (called.append(name), loop(*a)))
    return called


def test_many_rows_of_a_small_matrix_are_multiplied_by_compiled_loops(compiled, monkeypatch):
    monkeypatch.setattr(products, "LARGEST", 500)
    monkeypatch.setattr(products, "PAIRS", False)
    x = torch.ones(products.MANY[torch.float32], 10)
    for few, matrix in (
        (x[1:], torch.ones(10, 50)),
        (x, torch.ones(10, 51)),
        (x.bfloat16(), torch.ones(10, 50, dtype=torch.bfloat16)),
        (x.double(), torch.ones(10, 50, dtype=torch.float64)),
    ):
        assert (Product(matrix)(few) == 10).all()
        assert compiled == []
    assert (Product(torch.ones(10, 50))(x) == 10).all()
    assert compiled == ["product"]


def test_sums_over_rows_are_compiled_where_vectors_fit(compiled, monkeypatch):
    monkeypatch.setattr(products, "LARGEST_SUM", 256)
    for outputs, inputs, dtype in (
        (12, 16, torch.float32), (8, 20, torch.float32), (8, 48, torch.float32), (8, 20, torch.bfloat16),
        (8, 16, torch.float64),
    ):  # fmt: skip
        total = torch.zeros(outputs, inputs)
        add_outer(total, torch.ones(3, outputs, dtype=dtype), torch.ones(3, inputs, dtype=dtype))
        assert (total == 3).all()
        assert compiled == []
    total = torch.zeros(8, 32)
    add_outer(total, torch.ones(3, 8), torch.ones(3, 32))
    assert (total == 3).all()
    assert compiled == ["outer"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["straight", "turned", "columns", "rows"])
def test_a_changed_matrix_is_laid_out_anew(monkeypatch, dtype, way):
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    generator = torch.Generator().manual_seed(0)
    x, whole = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((40, 32), (64, 80)))
    matrix = {
        "straight": whole[:32], "turned": whole[:, :32].T, "columns": whole[:32, :50], "rows": whole[::2]
    }[way]  # fmt: skip
    multiply = Product(matrix)
    for _ in range(3):
        assert torch.equal(multiply(x), Product(matrix.clone())(x))
        before = multiply(x)
        matrix += torch.randn(matrix.shape, generator=generator).to(dtype)
        multiply.forget()
        assert not torch.equal(multiply(x), before)


@pytest.mark.parametrize("rows", [products.MANY[torch.float32], 5])
def test_shapes_that_do_not_fit_are_refused(compiled, rows):
    x = torch.ones(rows, 16)
    with pytest.raises(ValueError, match="times"):
        Product(torch.ones(8, 32))(x)
    with pytest.raises(ValueError, match="is not"):
        Product(torch.ones(16, 32))(x, out=torch.empty(len(x), 31))
    with pytest.raises(ValueError, match="is not"):
        Product(torch.ones(16, 32))(x, out=torch.empty(len(x) + 1, 32))
    with pytest.raises(ValueError, match="uint16"):
        Product(torch.ones(16, 32))(x, out=torch.empty(len(x), 32, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="transposed"):
        add_outer(torch.zeros(8, 32), torch.ones(len(x), 8), x)
    with pytest.raises(ValueError, match="transposed"):
        add_outer(torch.zeros(8, 16), torch.ones(3, 8), x)
    assert compiled == []


@pytest.mark.parametrize("wide", [True, False])
def test_what_is_not_finite_stays_so(monkeypatch, wide):
    monkeypatch.setattr(products, "FAST", wide)
    monkeypatch.setattr(products, "MANY", dict.fromkeys(products.MANY, 1))
    x = torch.ones(10, 4)
    x[3, 2], x[9, 1] = torch.nan, torch.inf
    found = Product(torch.ones(4, 40))(x)
    assert found[3].isnan().all()
    assert found[9].isposinf().all()
    assert found[[0, 1, 2, 4, 5, 6, 7, 8]].isfinite().all()
