"""Products of matrices of a small model's sizes, by compiled blocks of sums.

Libraries change the layout of a matrix in every product, and some do not use the wide vectors of other
makers' processors.  Here a matrix that many rows are multiplied with is laid out once.  A sum over rows
takes float32 numbers as they lie; where registers are narrow, it copies a vector of columns side by side
first.  It pairs bfloat16 numbers in one pass.  Torch computes where that is slower (see `Product` and
`add_outer`), in other dtypes, and on processors without the instructions (`FAST`, `PAIRS`).

Compiled code takes bfloat16 numbers in pairs, as uint32: the terms 2 k and 2 k + 1 of a sum.  A row of a
matrix holds such pairs side by side; of rows, neighbours are paired first (`paired`).  Where a processor has
tiles, blocks of their sums are made of these (`TILES`, .by_tiles).
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from raysweep.compiled import amx, kernel
from raysweep.compiled.scalars import COMPILED
from raysweep.compiled.simd import fetch, peek, poke, put, turn
from raysweep.compiled.tiles import FAST, PAIRS, WHOLE, tile
from raysweep.models.fused.by_tiles import DEPTH, SIDE, outer_by_tiles, paired, product_by_tiles
from raysweep.models.fused.rows import ask_for

#: Whether products of bfloat16 matrices are those of tiles, and not of vectors.
TILES = amx.usable()

#: Most numbers of a matrix that is laid out, and of a sum over rows: larger ones do not stay in the cache.
LARGEST, LARGEST_SUM = 2**20, 2**19

#: Rows of a product from which on a layout of the matrix is worth its time.
MANY = {torch.float32: 128, torch.bfloat16: 32}

#: Numbers in a vector; columns of a panel, and rows that are computed at once.
_LANES, COLUMNS, _ROWS = 16, SIDE, 12

#: Bytes of memory that small matrices share.
_SLAB = 2**22

#: Words of four bytes in the rows of a block.
_BLOCK = 2**15

#: Outputs whose gradients are summed at once where registers are wide.
_OUTPUTS = 8

#: Rows after which sums of gradients are written to memory.
_BETWEEN = 128

_block, _narrow, _row = tile(_ROWS, 2, scalar=True), tile(_ROWS, 1, scalar=True), tile(1, 2, scalar=True)
_two, _three = (tile(_OUTPUTS, vectors, scalar=True, add=True) for vectors in (2, 3))
_four, _one, _twelve = (tile(outputs, 1, scalar=True, add=True) for outputs in (4, _OUTPUTS, 12))


_OF_TORCH = {np.dtype(name): getattr(torch, name) for name in ("float32", "float64", "uint16")}


def array(given: Tensor) -> np.ndarray:
    """Return a tensor's memory as the kernels take it: float32, or bfloat16's bits as uint16."""
    given = given.detach()
    return given.view(torch.uint16).numpy() if given.dtype == torch.bfloat16 else given.numpy()


def tensor(found: np.ndarray) -> Tensor:
    """Return the tensor whose memory `array` returns."""
    made = torch.from_numpy(found)
    return made.view(torch.bfloat16) if made.dtype == torch.uint16 else made


class _Slab(threading.local):
    """Memory that a thread gives out part by part; it lasts until no part is used and another has begun."""

    memory: np.ndarray
    used = _SLAB + 1  # more than any: there is no memory yet


_slab = _Slab()


def empty(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """Return an empty matrix that begins where a line of the cache does.

    Small ones share a piece of memory: to ask for one of their own takes a noticeable part of a small model's
    step.
    """
    size = rows * columns * dtype.itemsize
    if size > _SLAB // 4:
        return torch.empty(rows, columns, dtype=_OF_TORCH[dtype]).numpy()
    first = _slab.used
    if first + size > _SLAB:
        _slab.memory, first = torch.empty(_SLAB, dtype=torch.uint8).numpy(), 0
    _slab.used = first + size + 63 & -64
    return np.ndarray((rows, columns), dtype, _slab.memory, first)


def serves(matrix: Tensor) -> bool:
    """Return whether products of many rows with a matrix B [I, O], or several [G, I, O], are compiled."""
    served = {torch.float32: FAST, torch.bfloat16: PAIRS and matrix.shape[-2] % 2 == 0}
    return served.get(matrix.dtype, False) and 0 < matrix.numel() <= LARGEST


class Product:
    """The map x ↦ x B for a matrix B [I, O] on a processor, of arrays as `array` returns them.

    With several matrices B [G, I, O], x [N, G I] and x B [N, G O] are G parts side by side, each with a
    matrix of its own.

    B is laid out at the first product of at least `MANY` rows; call `forget` between a change of B and the
    next product.  Products of fewer rows, and with a B of more than `LARGEST` numbers, are torch's, and in
    bfloat16 those with an odd I.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix if matrix.dim() == 3 else matrix[None]
        self.parts, self.inner, columns = self.matrix.shape
        self.columns = self.parts * columns
        self._tiles = TILES and matrix.dtype == torch.bfloat16
        few = SIDE if self._tiles else 1
        self._many = max(few, MANY[matrix.dtype]) if serves(self.matrix) else None
        self._turned = self.matrix.mT.is_contiguous()
        self._given = array(self.matrix.mT if self._turned else self.matrix)
        self._panels: np.ndarray | None = None
        self._laid_out = False

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return x B [N, G O], in `out` if given, which is contiguous, of x [N, G I]."""
        rows = len(x)
        if out is None:
            out = empty(rows, self.columns, self._given.dtype)
        fits = x.shape[1] == self.parts * self.inner and out.shape == (rows, self.columns)
        if not fits or not x.dtype == out.dtype == self._given.dtype:
            made = f"{list(out.shape)} in {out.dtype}"
            raise ValueError(f"{list(x.shape)} times {list(self.matrix.shape)} in {x.dtype} is not {made}")
        if self._many is None or rows < self._many:
            if self.parts == 1:
                torch.mm(tensor(x), self.matrix[0], out=tensor(out))
            else:
                found = torch.bmm(_apart(x, self.parts), self.matrix)
                _apart(out, self.parts).copy_(found)
            return out
        multiply = product_by_tiles if self._tiles else product
        multiply(_terms(np.ascontiguousarray(x)), self._layout(), out)
        return out

    def forget(self) -> None:
        """Lay the matrix out anew at the next product, because it has changed."""
        self._laid_out = False

    def _layout(self) -> np.ndarray:
        """Return the columns of each matrix, or its pairs [I / 2, O], in panels [G, P, I, 32].

        Zeros are behind the last column, and behind the last pair up to a whole tile of pairs.
        """
        low = self.matrix.dtype == torch.bfloat16
        terms = self.inner // 2 if low else self.inner
        if self._tiles:
            terms = -(-terms // DEPTH) * DEPTH
        if self._panels is None:
            size = self.parts, -(-self.matrix.shape[2] // COLUMNS), terms, COLUMNS
            self._panels = torch.zeros(size, dtype=torch.uint32 if low else torch.float32).numpy()
        if self._laid_out:
            return self._panels
        given = np.ascontiguousarray(self._given)
        if self._turned:
            turned(_terms(given), self._panels)
        elif low:
            straight_pairs(given, self._panels)
        else:
            straight(given, self._panels)
        self._laid_out = True
        return self._panels


def add_outer(total: np.ndarray, d: np.ndarray, x: np.ndarray, parts: int = 1) -> None:
    """Add dᵀ x to `total` [O, I], of d [N, O] and x [N, I]: the gradient of x ↦ x Wᵀ by W, given d.

    With G `parts`, x is [N, G I], and part g of the rows of `total` is for part g of the columns of d and x.

    It is compiled where I is a multiple of 16, O / G one of 8, which sums of bfloat16 by tiles do not need,
    and where `total` has at most `LARGEST_SUM` numbers.  Elsewhere it is torch's.
    """
    outputs, inputs = total.shape
    if len(d) != len(x) or d.shape[1] != outputs or x.shape[1] != parts * inputs or outputs % parts != 0:
        raise ValueError(f"{list(d.shape)} transposed times {list(x.shape)} is not {list(total.shape)}")
    if not (d.dtype == x.dtype and serves_sum(total, parts, x.dtype)):
        if parts == 1:
            tensor(total).add_(tensor(d).T @ tensor(x))
        else:
            found = torch.bmm(_apart(d, parts).mT, _apart(x, parts))
            tensor(total).add_(found.view(outputs, inputs))
        return
    low = outer_by_tiles if TILES else outer_pairs
    add = low if x.dtype == np.uint16 else outer
    add(np.ascontiguousarray(d), np.ascontiguousarray(x), total)


def serves_sum(total: np.ndarray, parts: int, dtype: np.dtype) -> bool:
    """Return whether `add_outer` to a total [O, I] is compiled for factors of this type."""
    served = PAIRS if dtype == np.uint16 else FAST and dtype == np.float32
    outputs, inputs = total.shape
    any_outputs = TILES and dtype == np.uint16
    whole = inputs % _LANES == 0 and (any_outputs or outputs // parts % _OUTPUTS == 0)
    fits = whole and total.flags.c_contiguous and total.size <= LARGEST_SUM
    return served and fits and total.dtype == np.float32


def _apart(found: np.ndarray, parts: int) -> Tensor:
    """Return the view [parts, N, C / parts] of a matrix [N, C]."""
    return tensor(found).view(len(found), parts, found.shape[1] // parts).transpose(0, 1)


def _terms(found: np.ndarray) -> np.ndarray:
    """Return the terms of a contiguous matrix's rows: its numbers, or pairs of them [N, I / 2]."""
    return found.view(np.uint32) if found.dtype == np.uint16 else found


@kernel(error_model="numpy")
def straight(matrices, out):  # type: ignore[no-untyped-def]
    """Write matrices [G, I, O] to panels."""
    parts, rows, columns = matrices.shape
    for g in range(parts):
        for p in range(out.shape[1]):
            for k in range(rows):
                for j in range(min(COLUMNS, columns - p * COLUMNS)):
                    out[g, p, k, j] = matrices[g, k, p * COLUMNS + j]


@kernel(error_model="numpy")
def straight_pairs(matrices, out):  # type: ignore[no-untyped-def]
    """Do what `straight` does with the pairs of matrices uint16, of an even number of rows."""
    parts, rows, columns = matrices.shape
    pairs = np.empty((1, rows // 2, columns), dtype=np.uint32)
    for g in range(parts):
        paired(matrices[g], 0, rows, pairs[0])
        straight(pairs, out[g : g + 1])


@kernel(error_model="numpy")
def turned(weights, out):  # type: ignore[no-untyped-def]
    """Write the transposes of matrices [G, O, I] to panels."""
    parts, columns, rows = weights.shape
    for g in range(parts):
        weight, own = weights[g], out[g]
        for j in range(columns):
            first = (j // COLUMNS * out.shape[2]) * COLUMNS + j % COLUMNS
            done = 0
            if j // _LANES * _LANES + _LANES <= columns:
                # Blocks of 16 × 16 numbers, with the first row of each.
                done = rows // _LANES * _LANES
                for k in range(0, done if j % _LANES == 0 else 0, _LANES):
                    turn(weight, j * rows + k, rows, own, first + k * COLUMNS, COLUMNS)
            for k in range(done, rows):
                poke(own, first + k * COLUMNS, peek(weight, j * rows + k))


@kernel(**COMPILED)
def outer(d, x, total):  # type: ignore[no-untyped-def]
    """Do what `add_outer` does with float32 numbers, for O a multiple of 8 and I of 16."""
    for n in range(0, len(d), _BETWEEN):
        if WHOLE:
            _outer_wide(d, x, total, n, min(_BETWEEN, len(d) - n))
        else:
            _outer_narrow(d, x, total, n, min(_BETWEEN, len(d) - n))


@kernel(**COMPILED)
def outer_pairs(d, x, total):  # type: ignore[no-untyped-def]
    """Do what `outer` does with bfloat16 numbers as uint16."""
    # Pairs stay in the cache.
    of_d = np.empty((_BETWEEN, d.shape[1]), dtype=np.uint32)
    of_x = np.empty((_BETWEEN, x.shape[1]), dtype=np.uint32)
    for n in range(0, len(d), 2 * _BETWEEN):
        count = min(2 * _BETWEEN, len(d) - n)
        paired(d, n, count, of_d)
        paired(x, n, count, of_x)
        _outer_wide(of_d, of_x, total, 0, (count + 1) // 2)


@kernel(**COMPILED)
def _outer_wide(d, x, total, n, count):  # type: ignore[no-untyped-def]
    """Add the products of `count` rows from n on to the sums."""
    outputs, inputs = total.shape
    columns = x.shape[1]
    each = outputs * inputs // columns  # outputs of a part
    for o in range(0, outputs, _OUTPUTS):
        i, p, first = 0, n * outputs + o, n * columns + o // each * inputs
        while i < inputs:
            at, q, rest = o * inputs + i, first + i, inputs - i
            if rest == 16:
                _one(total, at, inputs, 16, d, p, outputs, 1, x, q, columns, 16, count)
                i += 16
            elif rest == 48:
                _three(total, at, inputs, 16, d, p, outputs, 1, x, q, columns, 16, count)
                i += 48
            else:
                _two(total, at, inputs, 16, d, p, outputs, 1, x, q, columns, 16, count)
                i += 32


@kernel(**COMPILED)
def _outer_narrow(d, x, total, n, count):  # type: ignore[no-untyped-def]
    """Do what `_outer_wide` does, with the same sums, where registers are few and hold half a vector.

    Twelve outputs by one vector are two loops whose sums fill the registers.  All outputs meet a vector of
    inputs, whose rows are copied side by side: rows at some distances would share few places of the cache.
    """
    outputs, inputs = total.shape
    columns = x.shape[1]
    each = outputs * inputs // columns  # outputs of a part
    of_x = np.empty(_BETWEEN * _LANES, dtype=np.float32)
    for g in range(outputs // each):
        for i in range(0, inputs, _LANES):
            for k in range(count):
                put(of_x, k * _LANES, fetch(x, (n + k) * columns + g * inputs + i))
            o, end = g * each, (g + 1) * each
            while o < end:
                at, p = o * inputs + i, n * outputs + o
                if end - o >= 12:
                    _twelve(total, at, inputs, 16, d, p, outputs, 1, of_x, 0, _LANES, 16, count)
                    o += 12
                elif end - o == 8:
                    _one(total, at, inputs, 16, d, p, outputs, 1, of_x, 0, _LANES, 16, count)
                    o += 8
                else:
                    _four(total, at, inputs, 16, d, p, outputs, 1, of_x, 0, _LANES, 16, count)
                    o += 4


@kernel(**COMPILED)
def product(x, panels, out):  # type: ignore[no-untyped-def]
    """out [N, G O] = x [N, G I] B, of matrices B in `panels`; bfloat16 as pairs x [N, G I / 2]."""
    rows, row, whole = x.shape[0], x.shape[1], out.shape[1]
    parts, inner = panels.shape[0], panels.shape[2]
    columns = whole // parts
    spare = np.empty((_ROWS, COLUMNS), dtype=out.dtype)
    # Rows of x that stay in the cache while they meet all panels.
    block = max(1, _BLOCK // (_ROWS * row)) * _ROWS
    for first in range(0, rows, block):
        last = min(first + block, rows)
        ask_for(x, last, min(last + block, rows))
        for g in range(parts):
            for p in range(panels.shape[1]):
                y, j = (g * panels.shape[1] + p) * inner * COLUMNS, g * columns + p * COLUMNS
                width = min(COLUMNS, columns - p * COLUMNS)
                for i in range(first, last - _ROWS + 1, _ROWS):
                    c, a = i * whole + j, i * row + g * inner
                    if width == COLUMNS:
                        _block(out, c, whole, 16, x, a, 1, row, panels, y, COLUMNS, 16, inner)
                    elif width == _LANES:
                        _narrow(out, c, whole, 16, x, a, 1, row, panels, y, COLUMNS, 16, inner)
                    else:
                        _block(spare, 0, COLUMNS, 16, x, a, 1, row, panels, y, COLUMNS, 16, inner)
                        for r in range(_ROWS):
                            for k in range(width):
                                poke(out, c + r * whole + k, peek(spare, r * COLUMNS + k))
                for i in range(last - (last - first) % _ROWS, last):
                    a = i * row + g * inner
                    _row(spare, 0, COLUMNS, 16, x, a, 1, row, panels, y, COLUMNS, 16, inner)
                    for c in range(width):
                        poke(out, i * whole + j + c, peek(spare, c))
