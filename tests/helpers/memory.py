"""The memory of the C library that is in use."""

import ctypes
from collections.abc import Callable

import pytest


class _Used(ctypes.Structure):
    """The result of glibc's mallinfo2: its fifth and eighth number are the bytes in use."""

    _fields_ = tuple((f"number{k}", ctypes.c_size_t) for k in range(1, 11))


def assert_gives_back(work: Callable[[], object], label: object = "") -> None:
    """Assert that calls leave no memory in use; skip where nobody can tell."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("this C library does not tell how much memory is in use")
    library.mallinfo2.restype = _Used

    def used() -> int:
        found = library.mallinfo2()
        return int(found.number5 + found.number8)

    for _ in range(3):
        work()
    left = []
    # Python itself keeps some memory at times; what is not given back shows each time.
    while len(left) < 3 and (not left or left[-1] >= 10_000):
        before = used()
        for _ in range(200):
            work()
        left.append(abs(used() - before))
    # The smallest arrays have a line of the cache, 64 bytes.
    assert left[-1] < 10_000, (label, left)
