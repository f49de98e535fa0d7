"""Calls of kernels by the addresses of their machine code."""

from typing import Any

import numpy as np
import pytest
import torch
from numba import types
from numba.core.errors import TypingError

from raysweep.compiled import kernel
from raysweep.compiled.addresses import Calls, Low, allocated, freed, read, write
from raysweep.compiled.scalars import load, save
from raysweep.models.fused.products import array, tensor

M = types.float32[:, ::1]
FLOAT, HALF = np.dtype(np.float32), np.dtype(np.uint16)


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
    return (
        made,
        made.of(scaled, M, types.float32, M),
        made.of(share, types.int64, types.int64, result=types.float64),
    )


def test_a_call_does_what_the_kernel_does() -> None:
    made, scale, ratio = calls()

    @kernel
    def both(addresses, x, factor, out, rows, columns):  # type: ignore[no-untyped-def]
        scale(addresses, ((x, rows, columns), factor, (out, rows, columns)))
        return ratio(addresses, (1, rows))

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    out, factor = np.zeros_like(x), np.float32(1.5)
    assert both(made.addresses(FLOAT), x.ctypes.data, factor, out.ctypes.data, 4, 3) == 0.25
    assert (out == factor * x).all()


def test_kernels_may_be_given_later() -> None:
    made = Calls()
    first = made.of(share, types.int64, types.int64, result=types.float64)
    later = made.later(M, types.float32, M)

    @kernel
    def own(addresses, x, out, rows):  # type: ignore[no-untyped-def]
        if rows > 0:
            later(addresses, ((x, rows, 2), np.float32(2), (out, rows, 2)))
        return first(addresses, (1, 4))

    @kernel
    def tripled(x, factor, out):  # type: ignore[no-untyped-def]
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                out[i, j] = (factor + 1) * x[i, j]

    x = np.ones((3, 2), dtype=np.float32)
    for given, wanted in ((scaled, 2), (tripled, 3), (scaled, 2)):
        out = np.zeros_like(x)
        table = made.addresses(FLOAT, given={later: given})
        assert own(table, x.ctypes.data, out.ctypes.data, 3) == 0.25
        assert (out == wanted).all()
    # Without it, all else can be called.
    assert own(made.addresses(FLOAT), x.ctypes.data, out.ctypes.data, 0) == 0.25


@pytest.mark.parametrize("low", [FLOAT, HALF])
def test_callers_take_no_other_arrays_than_theirs(low: np.dtype) -> None:
    made = Calls()
    double = made.of(doubled, Low(2), Low(2))

    @kernel
    def caller(addresses, x, out):  # type: ignore[no-untyped-def]
        double(addresses, ((x.ctypes.data, 1, len(x)), (out.ctypes.data, 1, len(x))))

    pair = types.Tuple([types.int64[::1], Low(1)])
    table = made.addresses(low, {caller: [pair, Low(1), Low(1), types.none]})
    assert len(caller.signatures) == 1
    other = np.zeros(2, dtype=HALF if low == FLOAT else FLOAT)
    with pytest.raises(TypeError):
        caller(table, other, other)


def test_an_error_comes_back() -> None:
    made, _, ratio = calls()

    @kernel
    def divide(addresses, whole):  # type: ignore[no-untyped-def]
        return ratio(addresses, (1, whole))

    with pytest.raises(ZeroDivisionError):
        divide(made.addresses(FLOAT), 0)


def test_numbers_of_another_type_are_converted_and_other_arguments_refused() -> None:
    made, scale, ratio = calls()

    @kernel
    def small(addresses, whole):  # type: ignore[no-untyped-def]
        return ratio(addresses, (np.int32(1), whole))

    @kernel
    def flat(addresses, x):  # type: ignore[no-untyped-def]
        scale(addresses, ((x, 4), np.float32(2), (x, 4)))

    @kernel
    def few(addresses, x):  # type: ignore[no-untyped-def]
        scale(addresses, ((x, 2, 2), np.float32(2)))

    x = np.ones((2, 2), dtype=np.float32)
    assert small(made.addresses(FLOAT), np.int32(4)) == 0.25
    for wrong in (flat, few):
        with pytest.raises(TypingError):
            wrong(made.addresses(FLOAT), x.ctypes.data)


@kernel
def doubled(x, out):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            save(out, i, j, np.float32(2) * load(x, i, j))


@kernel
def halves(terms):  # type: ignore[no-untyped-def]
    return np.float64(terms[0] >> np.uint32(16))


@kernel
def single(terms):  # type: ignore[no-untyped-def]
    return np.float64(terms[0])


@pytest.mark.parametrize("low", [FLOAT, HALF])
def test_a_call_is_for_the_precision_that_stands_beside_the_addresses(low: np.dtype) -> None:
    made = Calls()
    double = made.of(doubled, Low(2), Low(2))
    first = made.of(single, Low(1, terms=True), result=types.float64, of_pairs=halves)

    @kernel
    def both(addresses, x, out):  # type: ignore[no-untyped-def]
        double(addresses, ((x, 2, 2), (out, 2, 2)))
        return first(addresses, ((out, 2),))

    numbers = torch.tensor([[1.0, 2.0], [3.0, -0.5]])
    given = array(numbers if low == FLOAT else numbers.bfloat16())
    out = np.zeros_like(given)
    found = both(made.addresses(low), given.ctypes.data, out.ctypes.data)
    assert (tensor(out).float() == 2 * numbers).all()
    # The first number, or the bits of the second of the first pair.
    assert found == (2 if low == FLOAT else out[0, 1])


def test_memory_is_written_and_read() -> None:
    @kernel
    def total(numbers):  # type: ignore[no-untyped-def]
        place = allocated(64, 256)
        for k in range(len(numbers)):
            write(place, k, numbers[k])
        found = np.float32(place % 64)
        for k in range(len(numbers)):
            found += read(place, k)
        freed(place)
        return found

    assert total(np.arange(64, dtype=np.float32)) == 63 * 32


def test_a_call_that_is_not_made_needs_no_kernel() -> None:
    made, scale, ratio = calls()

    @kernel
    def some(addresses, x, out, rows):  # type: ignore[no-untyped-def]
        if rows > 0:
            scale(addresses, ((x, rows, 2), np.float32(2), (out, rows, 2)))
        return ratio(addresses, (1, 4))

    table, low = made.addresses(FLOAT, given={scale: None})
    assert [place == 0 for place in table] == [True, False]
    assert some((table, low), 0, 0, 0) == 0.25
