"""Calls of kernels by the addresses of their machine code."""

from typing import Any

import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

from raysweep.compiled import kernel
from raysweep.compiled.addresses import Calls, numbers

F = types.float32[:, ::1]


@kernel
def scaled(x, factor, out):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = factor * x[i, j]


@kernel
def share(part, whole):  # type: ignore[no-untyped-def]
    return part / whole


def calls() -> tuple[Calls, Any, Any]:
    made = Calls()
    one = made.of(scaled, F, types.float32, F)
    return made, one, made.of(share, types.int64, types.int64, result=types.float64)


def test_a_call_does_what_the_kernel_does() -> None:
    made, scale, ratio = calls()

    @kernel
    def both(addresses, x, factor, out):  # type: ignore[no-untyped-def]
        scale(addresses, (x, factor, out))
        return ratio(addresses, (1, len(x)))

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    out = np.zeros_like(x)
    assert both(made.addresses(), x, np.float32(1.5), out) == 0.25
    assert (out == np.float32(1.5) * x).all()


def test_an_error_comes_back() -> None:
    made, _, ratio = calls()

    @kernel
    def divide(addresses, whole):  # type: ignore[no-untyped-def]
        return ratio(addresses, (1, whole))

    with pytest.raises(ZeroDivisionError):
        divide(made.addresses(), 0)


def test_arguments_of_other_types_are_converted_or_refused() -> None:
    made, scale, ratio = calls()

    @kernel
    def wide(addresses, x):  # type: ignore[no-untyped-def]
        scale(addresses, (x, np.float32(2.0), x))

    @kernel
    def small(addresses, whole):  # type: ignore[no-untyped-def]
        return ratio(addresses, (np.int32(1), whole))

    assert small(made.addresses(), np.int32(4)) == 0.25
    with pytest.raises(TypingError):
        wide(made.addresses(), np.ones((2, 2)))
    with pytest.raises(TypingError):
        wide(made.addresses(), np.ones((2, 4), dtype=np.float32)[:, ::2])


def test_numbers_are_read_and_written_where_they_lie() -> None:
    from numba import carray

    @kernel
    def double(place, rows, columns):  # type: ignore[no-untyped-def]
        x = carray(numbers(place), (rows, columns))
        for i in range(rows):
            for j in range(columns):
                x[i, j] *= 2

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    double(x.ctypes.data, 2, 3)
    assert (x == [[0, 2, 4], [6, 8, 10]]).all()
