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
from raysweep.compiled.simd import WIDE, fetch, peek, plus, poke, put, splat

_F0 = np.float32(0.0)

#: Columns of a panel, two vectors; and rows that are computed at once.
_COLUMNS, _ROWS = 32, 8


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
        first, j = p * inner * _COLUMNS, p * _COLUMNS
        width = min(_COLUMNS, columns - j)
        for i in range(0, rows - _ROWS + 1, _ROWS):
            q = i * inner
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = splat(_F0)
            b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = splat(_F0)
            for k in range(inner):
                v = fetch(panels, first + k * _COLUMNS)
                w = fetch(panels, first + k * _COLUMNS + 16)
                s = splat(peek(x, q + k))
                a0, b0 = plus(s, v, a0), plus(s, w, b0)
                s = splat(peek(x, q + inner + k))
                a1, b1 = plus(s, v, a1), plus(s, w, b1)
                s = splat(peek(x, q + 2 * inner + k))
                a2, b2 = plus(s, v, a2), plus(s, w, b2)
                s = splat(peek(x, q + 3 * inner + k))
                a3, b3 = plus(s, v, a3), plus(s, w, b3)
                s = splat(peek(x, q + 4 * inner + k))
                a4, b4 = plus(s, v, a4), plus(s, w, b4)
                s = splat(peek(x, q + 5 * inner + k))
                a5, b5 = plus(s, v, a5), plus(s, w, b5)
                s = splat(peek(x, q + 6 * inner + k))
                a6, b6 = plus(s, v, a6), plus(s, w, b6)
                s = splat(peek(x, q + 7 * inner + k))
                a7, b7 = plus(s, v, a7), plus(s, w, b7)
            to = out if width == _COLUMNS else spare
            at = i * columns + j if width == _COLUMNS else 0
            row = to.shape[1]
            put(to, at, a0)
            put(to, at + 16, b0)
            put(to, at + row, a1)
            put(to, at + row + 16, b1)
            put(to, at + 2 * row, a2)
            put(to, at + 2 * row + 16, b2)
            put(to, at + 3 * row, a3)
            put(to, at + 3 * row + 16, b3)
            put(to, at + 4 * row, a4)
            put(to, at + 4 * row + 16, b4)
            put(to, at + 5 * row, a5)
            put(to, at + 5 * row + 16, b5)
            put(to, at + 6 * row, a6)
            put(to, at + 6 * row + 16, b6)
            put(to, at + 7 * row, a7)
            put(to, at + 7 * row + 16, b7)
            if width < _COLUMNS:
                for r in range(_ROWS):
                    for c in range(width):
                        poke(out, (i + r) * columns + j + c, peek(spare, r * _COLUMNS + c))
        for i in range(rows // _ROWS * _ROWS, rows):
            a0 = b0 = splat(_F0)
            for k in range(inner):
                s = splat(peek(x, i * inner + k))
                a0 = plus(s, fetch(panels, first + k * _COLUMNS), a0)
                b0 = plus(s, fetch(panels, first + k * _COLUMNS + 16), b0)
            put(spare, 0, a0)
            put(spare, 16, b0)
            for c in range(width):
                poke(out, i * columns + j + c, peek(spare, c))
