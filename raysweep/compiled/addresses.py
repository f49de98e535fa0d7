"""Calls of kernels by the addresses of their machine code, and arrays by those of their numbers.

A kernel that calls others by name holds a copy of them, which LLVM optimises once more: that takes about as
long as to compile them again, and their last digits may differ from those of the kernels themselves.  A call
by address takes little time to compile, and runs the very same code.

This module relies on these parts of numba (0.62 to 0.68) that are not public: `Dispatcher.overloads`, whose
results have `library.get_pointer_to_function` and `fndesc.llvm_func_name`; and of a context's `call_conv`,
`get_function_type`, `call_function` and `return_status_propagate`.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from raysweep.compiled.simd import element_at, intrinsic


class Calls:
    """Kernels that another kernel calls by their addresses, each for arguments of certain types.

    The other kernel takes `addresses()` as an argument, and hands it to the calls that `of` returned.
    """

    def __init__(self) -> None:
        self._kernels: list[tuple[Any, tuple[Any, ...]]] = []
        self._addresses: np.ndarray | None = None

    def of(self, kernel: Any, *kinds: Any, result: Any = types.none) -> Any:
        """Return the call of a kernel: `call(addresses, arguments)` in compiled code, with a tuple."""
        number, signature = len(self._kernels), result(types.int64[::1], types.Tuple(kinds))
        self._kernels.append((kernel, kinds))

        @intrinsic
        def call(context, addresses, arguments):  # type: ignore[no-untyped-def]
            def generate(context, builder, signature, given):  # type: ignore[no-untyped-def]
                table, packed = given
                convention = context.call_conv
                place = element_at(context, builder, signature.args[0], table, ir.IntType(64)(number))
                kind = convention.get_function_type(result, kinds)
                code = builder.inttoptr(builder.load(place), kind.as_pointer())
                values = [builder.extract_value(packed, k) for k in range(len(kinds))]
                status, found = convention.call_function(builder, code, result, kinds, values)
                with builder.if_then(status.is_error, likely=False):
                    convention.return_status_propagate(builder, status)
                return context.get_dummy_value() if result == types.none else found

            return signature, generate

        return call

    def addresses(self) -> np.ndarray:
        """Return the addresses int64 [kernels]; kernels that are not yet compiled are compiled first.

        Of several processes that do so at once, each takes them in an order of its own: where one compiles a
        kernel, the others would all wait for it.
        """
        if self._addresses is None:
            order = range(len(self._kernels))
            found = np.zeros(len(order), dtype=np.int64)
            for k in random.Random(os.getpid()).sample(order, len(order)):  # noqa: S311 -- no secret
                found[k] = _address(*self._kernels[k])
            self._addresses = found
        return self._addresses


def _address(kernel: Any, kinds: tuple[Any, ...]) -> int:
    kernel.compile(kinds)
    found = kernel.overloads[kinds]
    place: int = found.library.get_pointer_to_function(found.fndesc.llvm_func_name)
    return place


@intrinsic
def numbers(context, place):  # type: ignore[no-untyped-def]
    """Return the pointer to float32 numbers at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate
