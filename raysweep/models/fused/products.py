"""Products of many rows with one float32 matrix, which is laid out for it once.

Libraries change the layout of the matrix in every product, and some of them do not use the wide vectors of
other makers' processors.  Where a processor has vectors of 64 bytes, products of the sizes of a small model
take at most half of the libraries' time here; elsewhere torch's product is called.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED
from raysweep.compiled.simd import WIDE, peek, poke
from raysweep.compiled.tiles import tile

#: Columns of a panel, two vectors; and rows that are computed at once.
_COLUMNS, _ROWS = 32, 12

_block, _row = tile(_ROWS, 2, scalar=True), tile(1, 2, scalar=True)


class Product:
    """The map x ↦ x B for a float32 matrix B [I, O] on a processor; do not change B meanwhile."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.panels = matrix, panels(matrix.numpy()) if WIDE else None

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return x B [N, O], in `out` if given, which is contiguous, of x [N, I]."""
        if out is None:
            out = torch.empty(len(x), self.matrix.shape[1])
        if self.panels is None:
            return torch.mm(x, self.matrix, out=out)
        product(x.contiguous().numpy(), self.panels, out.numpy())
        return out


def panels(matrix: np.ndarray) -> np.ndarray:
    """Return the columns of a matrix [I, O] in panels [P, I, 32], zeros behind the last."""
    rows, columns = matrix.shape
    count = -(-columns // _COLUMNS)
    wide = np.zeros((rows, count * _COLUMNS), dtype=np.float32)
    wide[:, :columns] = matrix
    return np.ascontiguousarray(wide.reshape(rows, count, _COLUMNS).transpose(1, 0, 2))


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
