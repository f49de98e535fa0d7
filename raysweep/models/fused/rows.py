"""Kernels that ask for, move, add and round the rows of matrices; "low" is as in `.kernels`."""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED, HELPER, load, save
from raysweep.compiled.simd import BYTES, ahead, fetch, itemsize, peek, plus, poke, put

_F1 = np.float32(1.0)

#: Numbers in a vector.
_LANES = 16


@kernel(**HELPER)
def ask_for(x, first, last):  # type: ignore[no-untyped-def]
    """Ask for rows of x from `first` up to `last`: they are read soon, and nothing waits for them then."""
    for k in range(first * x.shape[1], last * x.shape[1], BYTES // itemsize(x)):
        ahead(x, k)


@kernel(**COMPILED)
def add_rows(out, rows, x):  # type: ignore[no-untyped-def]
    """Add x [M, D], low, to rows of `out` [N, D]."""
    M, D = x.shape
    for m in range(M):
        for j in range(D):
            save(out, rows[m], j, load(out, rows[m], j) + load(x, m, j))


@kernel(**COMPILED)
def take_rows(x, rows, out):  # type: ignore[no-untyped-def]
    """Copy rows of x to `out` [M, D], of the same type."""
    D = x.shape[1]
    for m in range(len(rows)):
        p, q = rows[m] * D, m * D
        for j in range(D):
            poke(out, q + j, peek(x, p + j))


@kernel(**COMPILED)
def add(x, out):  # type: ignore[no-untyped-def]
    """Add x [N, D], low, to `out`, float32."""
    for n in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[n, j] += load(x, n, j)


@kernel(**COMPILED)
def round_rows(x, out):  # type: ignore[no-untyped-def]
    """Round x [N, D], float32, to `out`, low."""
    for n in range(x.shape[0]):
        for j in range(x.shape[1]):
            save(out, n, j, x[n, j])


@kernel(**COMPILED)
def sum_rows(x, rows, out):  # type: ignore[no-untyped-def]
    """Add x [N, D], low, to rows of `out`, float32; several may go to one."""
    N, D = x.shape
    for n in range(N):
        p, q = n * D, rows[n] * D
        for j in range(0, D // _LANES * _LANES, _LANES):
            put(out, q + j, plus(_F1, fetch(x, p + j), fetch(out, q + j)))
        for j in range(D // _LANES * _LANES, D):
            out[rows[n], j] += load(x, n, j)
