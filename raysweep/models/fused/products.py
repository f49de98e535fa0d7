"""Products of float32 matrices of a small model's sizes, by compiled blocks of sums.

Libraries change the layout of a matrix in every product, and some do not use the wide vectors of other
makers' processors.  Here a matrix that many rows are multiplied with is laid out once, and a sum over rows
needs no layout at all.  Torch computes where a processor lacks vectors of 64 bytes, in other dtypes, and with
matrices of more than `LARGEST` numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED
from raysweep.compiled.simd import WIDE, peek, poke
from raysweep.compiled.tiles import tile

#: Numbers of a matrix up to which laying it out costs little beside a product with it.
LARGEST = 2**20

#: Columns of a panel, two vectors; and rows that are computed at once.
_COLUMNS, _ROWS = 32, 12

#: Outputs whose gradients are added up at once, and rows between which they are in memory.
_OUTPUTS, _BETWEEN = 8, 128

_block, _row = tile(_ROWS, 2, scalar=True), tile(1, 2, scalar=True)
_two, _three = (tile(_OUTPUTS, vectors, scalar=True, add=True) for vectors in (2, 3))
_one = tile(_OUTPUTS, 1, scalar=True, add=True)


def _ours(matrix: Tensor) -> bool:
    return WIDE and matrix.dtype == torch.float32 and matrix.numel() <= LARGEST


class Product:
    """The map x ↦ x B for a matrix B [I, O] on a processor; do not change B meanwhile."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.panels = panels(matrix.detach().numpy()) if _ours(matrix) else None

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return x B [N, O], in `out` if given, which is contiguous, of x [N, I]."""
        if self.panels is None:
            return torch.mm(x, self.matrix, out=out)
        if out is None:
            out = torch.empty(len(x), self.matrix.shape[1])
        product(x.contiguous().numpy(), self.panels, out.numpy())
        return out


def add_outer(total: Tensor, d: Tensor, x: Tensor) -> None:
    """Add dᵀ x to `total` [O, I], of d [N, O] and x [N, I]: the gradient of x ↦ x Wᵀ by W, given d."""
    whole = d.shape[1] % _OUTPUTS == 0 and x.shape[1] % 16 == 0
    if whole and _ours(total) and d.dtype == torch.float32:
        outer(d.contiguous().numpy(), x.contiguous().numpy(), total.numpy())
    else:
        total.add_(d.T @ x)


@kernel(error_model="numpy")
def panels(matrix):  # type: ignore[no-untyped-def]
    """Return the columns of a matrix [I, O] in panels [P, I, 32], zeros behind the last."""
    rows, columns = matrix.shape
    out = np.zeros(((columns + _COLUMNS - 1) // _COLUMNS, rows, _COLUMNS), dtype=matrix.dtype)
    for k in range(rows):
        for j in range(columns):
            out[j // _COLUMNS, k, j % _COLUMNS] = matrix[k, j]
    return out


@kernel(**COMPILED)
def outer(d, x, total):  # type: ignore[no-untyped-def]
    """Do what `add_outer` does, for O a multiple of 8 and I of 16."""
    rows, outputs, inputs = d.shape[0], d.shape[1], x.shape[1]
    for n in range(0, rows, _BETWEEN):
        count = min(_BETWEEN, rows - n)
        for o in range(0, outputs, _OUTPUTS):
            i, p = 0, n * outputs + o
            while i < inputs:
                at, q, rest = o * inputs + i, n * inputs + i, inputs - i
                if rest == 16:
                    _one(total, at, inputs, 16, d, p, outputs, 1, x, q, inputs, 16, count)
                    i += 16
                elif rest == 48:
                    _three(total, at, inputs, 16, d, p, outputs, 1, x, q, inputs, 16, count)
                    i += 48
                else:
                    _two(total, at, inputs, 16, d, p, outputs, 1, x, q, inputs, 16, count)
                    i += 32


@kernel(**COMPILED)
def product(x, panels, out):  # type: ignore[no-untyped-def]
    """out [N, O] = x [N, I] B, of a matrix B in `panels`."""
    rows, inner, columns = x.shape[0], x.shape[1], out.shape[1]
    spare = np.empty((_ROWS, _COLUMNS), dtype=np.float32)
    for p in range(panels.shape[0]):
        y, j = p * inner * _COLUMNS, p * _COLUMNS
        width = min(_COLUMNS, columns - j)
        for i in range(0, rows - _ROWS + 1, _ROWS):
            if width == _COLUMNS:
                _block(
                    out, i * columns + j, columns, 16, x, i * inner, 1, inner, panels, y, _COLUMNS, 16, inner
                )
                continue
            _block(spare, 0, _COLUMNS, 16, x, i * inner, 1, inner, panels, y, _COLUMNS, 16, inner)
            for r in range(_ROWS):
                for c in range(width):
                    poke(out, (i + r) * columns + j + c, peek(spare, r * _COLUMNS + c))
        for i in range(rows // _ROWS * _ROWS, rows):
            _row(spare, 0, _COLUMNS, 16, x, i * inner, 1, inner, panels, y, _COLUMNS, 16, inner)
            for c in range(width):
                poke(out, i * columns + j + c, peek(spare, c))
