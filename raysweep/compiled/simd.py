"""Vectors of 64 bytes as values of compiled code, so that sums stay in registers.

    load(array, row, column, vectors)   `vectors` vectors, a literal number, side by side as one, at columns
                                        column .. of a row
    store(array, row, column, vector)   writes one vector, or several as one
    fetch(array, place)                 the vector from element `place` on, counted over all axes, in float32
    put(array, place, vector)           where the array is uint16: bfloat16's bits, to which put rounds, to
                                        nearest with ties to even
    stream(array, place, vector)        put past the cache, not for uint16, to a place that must be aligned to
                                        64 bytes
    ahead(array, place)                 asks for the line of the cache with an element, which is read soon
    itemsize(array)                     the bytes of an element, a constant where the kernel is compiled
    peek(array, place)                  the element at `place`, counted over all axes, and
    poke(array, place, number)          its store, both without numba's test for negative indices, which
                                        prevents vector loops
    splat(number)                       the vector that holds a number everywhere
    times(x, y), plus(x, y, z)          x y and x y + z, contracted into one operation where there is one, of
                                        one vector or several as one; a number as x multiplies all of y
    larger(x, y)                        number by number x where x > y, else y, also where either is NaN
    inverse(x)                          1 / x
    total(x)                            the sum of a vector's numbers
    turn(array, place, row, out, to, gap)   write the transpose of a block of 16 × 16 numbers of four bytes,
                                        whose rows are `row` apart in `array`, to rows `gap` apart in `out`

Arrays of rows are [rows, LANES] in C order, aligned to 64 bytes; others are in C order too, and a kernel that
is given another one does not compile.  A processor with shorter registers uses several for a vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.errors import LoweringError
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, register_model

#: Typed Any, because numba types it with the context argument, which callers leave out.
intrinsic: Any = _intrinsic
of_literals: Any = _intrinsic(prefer_literal=True)

#: Numbers in a row of an array; in float32, four vectors.
LANES = 64

BYTES = 64

#: Whether this processor has such vectors.
WIDE = bool(binding.get_host_cpu_features().get("avx512f", False))


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Return an empty array [size] whose vectors each lie in one line of the cache."""
    space = np.empty(size + BYTES // dtype.itemsize, dtype=dtype)
    first = -space.ctypes.data % BYTES // dtype.itemsize
    return space[first : first + size]


_ELEMENTS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.uint32: ir.IntType(32)}
_WORDS, HALVES = (ir.VectorType(ir.IntType(bits), BYTES // 4) for bits in (32, 16))


class Vector(types.Type):
    """The type of a vector of `dtype`, or of several as one."""

    def __init__(self, dtype, vectors=1):  # type: ignore[no-untyped-def]
        self.dtype, self.vectors = dtype, vectors
        super().__init__(name=f"Vector({dtype}, {vectors})")


def shape_of(dtype, vectors=1):  # type: ignore[no-untyped-def]
    """Return LLVM's type of vectors of `dtype`: float32, float64 or uint32."""
    return ir.VectorType(_ELEMENTS[dtype], vectors * BYTES * 8 // dtype.bitwidth)


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, vector):  # type: ignore[no-untyped-def]
        super().__init__(manager, vector, shape_of(vector.dtype, vector.vectors))


def _data(context, builder, kind, array):  # type: ignore[no-untyped-def]
    if kind.layout != "C":
        raise LoweringError(f"places are counted in C order, and this is a {kind}")
    return context.make_array(kind)(context, builder, array).data


def _pointer(context, builder, kind, array, row, column, shape):  # type: ignore[no-untyped-def]
    data = _data(context, builder, kind, array)
    place = builder.add(builder.mul(row, ir.IntType(64)(LANES)), column)
    return builder.bitcast(builder.gep(data, [place]), shape.as_pointer())


@of_literals
def load(context, array, row, column, vectors):  # type: ignore[no-untyped-def]
    if not isinstance(vectors, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        given, row, column, _ = arguments
        shape = shape_of(array.dtype, vectors.literal_value)
        out = builder.load(_pointer(context, builder, signature.args[0], given, row, column, shape))
        out.align = BYTES
        return out

    return Vector(array.dtype, vectors.literal_value)(array, types.int64, types.int64, vectors), generate


@intrinsic
def store(context, array, row, column, vector):  # type: ignore[no-untyped-def]
    if not isinstance(vector, Vector) or vector.dtype != array.dtype:
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        given, row, column, found = arguments
        pointer = _pointer(context, builder, signature.args[0], given, row, column, found.type)
        builder.store(found, pointer, align=BYTES)
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64, vector), generate


def element_at(context, builder, kind, array, place):  # type: ignore[no-untyped-def]
    """Return the pointer to an array's element, and refuse an array that is not in C order."""
    return builder.gep(_data(context, builder, kind, array), [place], inbounds=True)


def vector_at(context, builder, kind, array, place):  # type: ignore[no-untyped-def]
    """Return the pointer to the vector from an element on."""
    element = element_at(context, builder, kind, array, place)
    return builder.bitcast(element, shape_of(kind.dtype).as_pointer())


@intrinsic
def itemsize(context, array):  # type: ignore[no-untyped-def]
    size = ir.IntType(64)(array.dtype.bitwidth // 8)
    return types.int64(array), lambda *_: size


@intrinsic
def peek(context, array, place):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(element_at(context, builder, signature.args[0], *arguments))

    return array.dtype(array, types.int64), generate


@intrinsic
def poke(context, array, place, number):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(arguments[2], element_at(context, builder, signature.args[0], *arguments[:2]))
        return context.get_dummy_value()

    return types.none(array, types.int64, array.dtype), generate


@intrinsic
def fetch(context, array, place):  # type: ignore[no-untyped-def]
    low = array.dtype == types.uint16
    kind = Vector(types.float32 if low else array.dtype)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        element = element_at(context, builder, signature.args[0], *arguments)
        shape = shape_of(kind.dtype)
        out = builder.load(builder.bitcast(element, (HALVES if low else shape).as_pointer()))
        out.align = array.dtype.bitwidth // 8
        if not low:
            return out
        return builder.bitcast(builder.shl(builder.zext(out, _WORDS), _constant(16)), shape)

    return kind(array, types.int64), generate


@intrinsic
def put(context, array, place, vector):  # type: ignore[no-untyped-def]
    if vector != Vector(types.float32 if array.dtype == types.uint16 else array.dtype):
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        element, found = element_at(context, builder, signature.args[0], *arguments[:2]), arguments[2]
        if array.dtype == types.uint16:
            bits = builder.bitcast(found, _WORDS)
            odd = builder.and_(builder.lshr(bits, _constant(16)), _constant(1))
            bits = builder.add(bits, builder.add(odd, _constant(0x7FFF)))
            found = builder.trunc(builder.lshr(bits, _constant(16)), HALVES)
        target = builder.bitcast(element, found.type.as_pointer())
        builder.store(found, target, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.int64, vector), generate


@intrinsic
def stream(context, array, place, vector):  # type: ignore[no-untyped-def]
    if vector != Vector(array.dtype):
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        target = vector_at(context, builder, signature.args[0], *arguments[:2])
        stored = builder.store(arguments[2], target, align=BYTES)
        one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        stored.set_metadata("nontemporal", one)
        return context.get_dummy_value()

    return types.none(array, types.int64, vector), generate


@intrinsic
def ahead(context, array, place):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        element = element_at(context, builder, signature.args[0], *arguments)
        pointer, number = builder.bitcast(element, ir.IntType(8).as_pointer()), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), (pointer.type, *(number,) * 3))
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # To be read, to the second-level cache, as data.
        builder.call(ask, (pointer, number(0), number(2), number(1)))
        return context.get_dummy_value()

    return types.none(array, types.int64), generate


def _constant(number):  # type: ignore[no-untyped-def]
    return ir.Constant(_WORDS, [number] * _WORDS.count)


def everywhere(builder, shape, number):  # type: ignore[no-untyped-def]
    """Return the vector of type `shape` that holds a number everywhere."""
    nowhere = ir.Constant(shape, ir.Undefined)
    one = builder.insert_element(nowhere, number, ir.IntType(32)(0))
    first = ir.Constant(ir.VectorType(ir.IntType(32), shape.count), [0] * shape.count)
    return builder.shuffle_vector(one, nowhere, first)


@intrinsic
def splat(context, number):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return everywhere(builder, shape_of(signature.args[0]), arguments[0])

    return Vector(number)(number), generate


def _factor(builder, kind, x, y):  # type: ignore[no-untyped-def]
    """Return x, of numba's type `kind`, as a vector like y."""
    return x if isinstance(kind, Vector) else everywhere(builder, y.type, x)


@intrinsic
def times(context, x, y):  # type: ignore[no-untyped-def]
    if not isinstance(y, Vector) or x not in (y, y.dtype):
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        one, other = arguments
        return builder.fmul(_factor(builder, x, one, other), other, flags=("contract",))

    return y(x, y), generate


@intrinsic
def plus(context, x, y, z):  # type: ignore[no-untyped-def]
    if not isinstance(y, Vector) or x not in (y, y.dtype) or y != z:
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        one, other, more = arguments
        product = builder.fmul(_factor(builder, x, one, other), other, flags=("contract",))
        return builder.fadd(product, more, flags=("contract",))

    return z(x, y, z), generate


@intrinsic
def larger(context, x, y):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return x(x, y), generate


@intrinsic
def inverse(context, x):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        shape = arguments[0].type
        return builder.fdiv(ir.Constant(shape, [1.0] * shape.count), arguments[0])

    return x(x), generate


@intrinsic
def turn(context, array, place, row, out, to, gap):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind, target = signature.args[0], signature.args[3]
        array, place, row, out, to, gap = arguments
        size, turned = (16, _turned) if WIDE else (8, _turned_in_halves)

        def pointer(kind, array, place, distance, k, column):  # type: ignore[no-untyped-def]
            step = builder.mul(distance, ir.IntType(64)(k))
            at = builder.add(builder.add(place, step), ir.IntType(64)(column))
            shape = ir.VectorType(_ELEMENTS[kind.dtype], size)
            return builder.bitcast(element_at(context, builder, kind, array, at), shape.as_pointer())

        # All is read before anything is written.
        blocks = {}
        for i in range(0, 16, size):
            for j in range(0, 16, size):
                block = [builder.load(pointer(kind, array, place, row, i + k, j)) for k in range(size)]
                for vector in block:
                    vector.align = 4
                blocks[j, i] = turned(builder, block)
        for (i, j), block in blocks.items():
            for k, vector in enumerate(block):
                builder.store(vector, pointer(target, out, to, gap, i + k, j), align=4)
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64, out, types.int64, types.int64), generate


def _merged(builder, one, other, order):  # type: ignore[no-untyped-def]
    """Return a vector of numbers of two; `order` counts on in the other one."""
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))


def _turned(builder, rows):  # type: ignore[no-untyped-def]
    """Return the columns of a block of 16 rows.

    Each of four rounds merges row k with row k + 8: the number of a place has its bits rotated by one.
    """
    merged = [[number for j in range(8) for number in (j + half, 16 + j + half)] for half in (0, 8)]
    for _ in range(4):
        rows = [_merged(builder, rows[k], rows[k + 8], order) for k in range(8) for order in merged]
    return rows


def _turned_in_halves(builder, rows):  # type: ignore[no-untyped-def]
    """Return the columns of a block of 8 rows, where merging within halves of a vector takes less time.

    Blocks of 2 × 2 numbers are turned first, then blocks of 2 × 2 of these, and at last the four quarters.
    """
    rounds = (
        (1, [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]),
        (2, [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]),
        (4, [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]),
    )
    for distance, upper, lower in rounds:
        found = list(rows)
        for k in range(8):
            if k & distance == 0:
                one, other = rows[k], rows[k + distance]
                found[k] = _merged(builder, one, other, upper)
                found[k + distance] = _merged(builder, one, other, lower)
        rows = found
    return rows


@intrinsic
def total(context, x):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        shape = arguments[0].type
        kind = ir.FunctionType(shape.element, (shape.element, shape))
        name = f"llvm.vector.reduce.fadd.v{shape.count}f{x.dtype.bitwidth}"
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        # Regrouped into sums of halves, because adding one by one is the slowest order.
        return builder.call(reduce, (ir.Constant(shape.element, 0.0), arguments[0]), fastmath=("reassoc",))

    return x.dtype(x), generate
