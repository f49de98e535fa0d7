"""Arrays and kernels by their addresses, in compiled code that calls many kernels one after the other.

A kernel that calls others by name holds a copy of them, which LLVM optimises once more: that takes about as
long as to compile them again, and their last digits may differ from those of the kernels themselves.  A call
by address takes little time to compile, and runs the very same code.

An array is a tuple here, its address and its lengths in C order, because numba counts who uses one of its
own, and compiles such counts around each call.  So whoever asks for memory by `allocated` gives it back by
`freed`.

Kernels that take arrays in low precision (`raysweep.compiled.scalars`) are compiled once for each, and `Low`
stands for the types of such arrays.  Which precision a call is for is known where it is compiled: beside the
table of addresses is an array without entries, whose type tells.

This module relies on these parts of numba (0.62 to 0.68) that are not public: `Dispatcher.overloads`, whose
results have `library.get_pointer_to_function` and `fndesc.llvm_func_name`; of a context, its `call_conv` with
`get_function_type`, `call_function` and `return_status_propagate`, and `make_array`; and `populate_array`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.np.arrayobj import populate_array

from raysweep.compiled.simd import element_at, intrinsic


class Low(types.Type):
    """The type of an array in low precision with so many axes: of float32, or of bfloat16's bits as uint16.

    With `terms` it holds terms of sums: numbers of float32, or pairs of bfloat16 as uint32.
    """

    def __init__(self, axes: int, *, terms: bool = False) -> None:
        self.axes, self.terms = axes, terms
        super().__init__(name=f"Low({axes}, {terms})")


class Calls:
    """Kernels that another kernel calls by their addresses, each for arguments of certain types.

    The other kernel takes what `addresses` returns as an argument, and hands it to the calls that `of`
    and `later` returned.
    """

    def __init__(self) -> None:
        #: Calls, their kernels by the type of low numbers, and the types of their arguments and results.
        self._calls: list[tuple[Any, Mapping[Any, Any], tuple[Any, ...], Any]] = []
        self._addresses: dict[tuple[Any, ...], np.ndarray] = {}
        self._lock = Lock()

    def of(self, kernel: Any, *kinds: Any, result: Any = types.none, of_pairs: Any = None) -> Any:
        """Return the call of a kernel: `call(addresses, arguments)` in compiled code.

        In the tuple of arguments, an array in C order is a tuple itself: its address and its lengths.  Where
        low arrays are bfloat16, `of_pairs` is called in place of `kernel`, if given.
        """
        return self._call({types.float32: kernel, types.uint16: of_pairs or kernel}, kinds, result)

    def later(self, *kinds: Any) -> Any:
        """Return the call of a kernel that `addresses` is given, and that returns nothing; see `of`."""
        return self._call({}, kinds, types.none)

    def _call(self, kernels: Mapping[Any, Any], kinds: tuple[Any, ...], result: Any) -> Any:
        """Return the call of one of these kernels, which is in the next row of the table."""
        number = len(self._calls)
        wanted = types.Tuple([types.UniTuple(types.int64, 1 + _axes(k)) if _axes(k) else k for k in kinds])

        @intrinsic
        def call(context, addresses, arguments):  # type: ignore[no-untyped-def]
            if not isinstance(addresses, types.Tuple) or not _alike(arguments, wanted):
                return None  # numba refuses the call
            own = [_kind(k, addresses.types[1].dtype) for k in kinds]

            def generate(context, builder, signature, given):  # type: ignore[no-untyped-def]
                pair, packed = given
                table = builder.extract_value(pair, 0)
                place = element_at(context, builder, signature.args[0][0], table, ir.IntType(64)(number))
                convention = context.call_conv
                kind = convention.get_function_type(result, own)
                code = builder.inttoptr(builder.load(place), kind.as_pointer())
                values = [
                    _array(context, builder, k, value) if _axes(k) else value
                    for n, k in enumerate(own)
                    for value in [builder.extract_value(packed, n)]
                ]
                status, found = convention.call_function(builder, code, result, own, values)
                with builder.if_then(status.is_error, likely=False):
                    convention.return_status_propagate(builder, status)
                return context.get_dummy_value() if result == types.none else found

            return result(addresses, wanted), generate

        self._calls.append((call, kernels, kinds, result))
        return call

    def addresses(
        self,
        low: np.dtype,
        callers: Mapping[Any, Sequence[Any]] = MappingProxyType({}),
        given: Mapping[Any, Any] = MappingProxyType({}),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the addresses int64 [kernels] for low arrays of type `low`, and an empty array of that type.

        `low` is float32 or uint16.  `callers` are the kernels that make the calls, each with the types of its
        arguments and of its result.  `given` has the kernels of the calls of `later`, and None for a call of
        `of` that is not made.  Without a kernel, a call must not be reached.

        All that is not yet compiled for `low` is compiled first.  Of several processes that do so at once,
        each takes kernels in an order of its own: where one compiles a kernel, the others would all wait for
        it.  Callers take no other types: they would read arrays as what these are not.
        """
        key = low, *callers, *given.items()
        with self._lock:
            if key not in self._addresses:
                for caller in callers:
                    caller.disable_compile(False)
                try:
                    self._addresses[key] = self._made(low, callers, given)
                finally:
                    for caller in callers:
                        caller.disable_compile(len(caller.signatures) > 0)
            return self._addresses[key], np.empty(0, dtype=low)

    def _made(
        self, low: np.dtype, callers: Mapping[Any, Sequence[Any]], given: Mapping[Any, Any]
    ) -> np.ndarray:
        """Return the table of `addresses`."""
        kind = from_dtype(low)
        kernels = [
            (given.get(call, chosen.get(kind)), *kinds, result) for call, chosen, kinds, result in self._calls
        ] + [(caller, *kinds) for caller, kinds in callers.items()]
        order = [k for k, (kernel, *_) in enumerate(kernels) if kernel is not None]
        found = np.zeros(len(kernels), dtype=np.int64)
        for k in random.Random(os.getpid()).sample(order, len(order)):
            kernel, *kinds, result = kernels[k]
            found[k] = _address(kernel, tuple(_kind(each, kind) for each in kinds), result)
        return found


def _alike(one: Any, other: Any) -> bool:
    """Return whether two types are tuples of as many parts, which are tuples in the same places."""
    tuples = [isinstance(kind, types.BaseTuple) for kind in (one, other)]
    if not all(tuples):
        return not any(tuples)
    return len(one) == len(other) and all(_alike(*both) for both in zip(one, other, strict=True))


def _axes(kind: Any) -> int:
    """Return the number of axes of an array's type, 0 for another type."""
    if isinstance(kind, Low):
        return kind.axes
    return kind.ndim if isinstance(kind, types.Array) else 0


def _kind(kind: Any, low: Any) -> Any:
    """Return a type with each `Low` in it replaced by the array's own type, where low numbers are `low`."""
    if isinstance(kind, types.NamedTuple):
        return types.NamedTuple([_kind(part, low) for part in kind.types], kind.instance_class)
    if isinstance(kind, types.Tuple):
        return types.Tuple([_kind(part, low) for part in kind.types])
    if not isinstance(kind, Low):
        return kind
    pairs = kind.terms and low == types.uint16
    return types.Array(types.uint32 if pairs else low, kind.axes, "C")


def _array(context, builder, kind, given):  # type: ignore[no-untyped-def]
    """Return numba's array of an address and lengths."""
    made = context.make_array(kind)(context, builder)
    place, *shape = (builder.extract_value(given, k) for k in range(1 + kind.ndim))
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    strides: list[Any] = []
    step = ir.IntType(64)(size)
    for length in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, length)
    data = builder.inttoptr(place, context.get_data_type(kind.dtype).as_pointer())
    populate_array(made, data=data, shape=shape, strides=strides, itemsize=ir.IntType(64)(size), meminfo=None)
    return made._getvalue()


def _address(kernel: Any, kinds: tuple[Any, ...], result: Any) -> int:
    kernel.compile(kinds)
    found = kernel.overloads[kinds]
    place: int = found.library.get_pointer_to_function(found.fndesc.llvm_func_name)
    if place == 0 or found.signature.return_type != result:
        raise TypeError(f"{kernel.__name__} is no kernel of {kinds} that returns {result}")
    return place


def _float_at(builder, arguments):  # type: ignore[no-untyped-def]
    place, number = arguments[:2]
    return builder.gep(builder.inttoptr(place, ir.FloatType().as_pointer()), [number])


@intrinsic
def read(context, place, number):  # type: ignore[no-untyped-def]
    """Return one of the float32 numbers at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(_float_at(builder, arguments))

    return types.float32(types.int64, types.int64), generate


@intrinsic
def write(context, place, number, value):  # type: ignore[no-untyped-def]
    """Replace one of the float32 numbers at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(arguments[2], _float_at(builder, arguments))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.float32), generate


#: allocated(multiple, bytes) returns an address that is a multiple of the first number, 0 where there is no
#: memory; `bytes` are a multiple of it, too.
allocated = types.ExternalFunction("aligned_alloc", types.int64(types.int64, types.int64))
#: freed(address) gives memory back.
freed = types.ExternalFunction("free", types.void(types.int64))
