"""Loops that keep a block of sums in registers, for products of many small matrices.

`tile(rows, columns)` makes the loop of a block of rows × columns vectors of 64 bytes, for compiled code:

    loop(out, place, row, column, x, place, term, row, y, place, term, column, count)

It writes

    out[r, c] = sum over k < count of x[k, r] y[k, c]

where x, y and `out` hold vectors, multiplied number by number.  An array's `place` is where its element
r = c = k = 0 begins, counted as in `raysweep.compiled.simd`; `row`, `column` and `term` are the distances of
neighbours in r, c and k.

Where x and y are uint32, each number is a pair of bfloat16 numbers, of terms 2 k and 2 k + 1, and multiplying
two of them adds both products in float32.  `out` is float32 then, or uint16: the sums rounded to bfloat16, to
nearest with ties to even.  Such loops are for processors with these instructions (`PAIRS`).

Cost: rows + columns vectors are read for rows × columns operations.  The sums of 5 × 5, with the vectors that
enter, fill the registers of a processor that has 32.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features

from raysweep.compiled.cache import config
from raysweep.compiled.simd import element_at, everywhere, intrinsic, shape_of, vector_at


def _features() -> set[str]:
    """Return the instructions that numba compiles for, each with + or - before its name."""
    chosen = config.CPU_FEATURES
    if chosen is None:
        chosen = get_host_cpu_features() if config.CPU_NAME is None else ""
    return set(chosen.split(","))


#: Whether kernels are compiled for a processor that multiplies pairs of bfloat16 numbers in vectors, and has
#: no faster instructions for products of bfloat16, which libraries use.
PAIRS = "+avx512bf16" in _features() and "+amx-bf16" not in _features()

_FLOATS = shape_of(types.float32)
_HALVES = ir.VectorType(ir.IntType(16), _FLOATS.count)


def _call(builder, name, result, *arguments):  # type: ignore[no-untyped-def]
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@cache
def tile(rows: int, columns: int, *, scalar: bool = False, add: bool = False) -> Any:
    """Return the loop of a block; see the module's text.

    With `scalar`, x[k, r] is a number that multiplies a whole vector.  With `add`, the sums are added to what
    `out` holds.
    """
    block = list(product(range(rows), range(columns)))

    @intrinsic
    def loop(context, out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count = arguments
            of_out, of_x, of_y = signature.args[0], signature.args[4], signature.args[8]
            pairs, rounded = of_x.dtype == types.uint32, of_out.dtype == types.uint16
            shape = _FLOATS if pairs else shape_of(of_out.dtype)

            def step(place, distance, number):  # type: ignore[no-untyped-def]
                if isinstance(number, int):
                    number = distance.type(number)
                return builder.add(place, builder.mul(distance, number))

            def read(kind, array, place):  # type: ignore[no-untyped-def]
                found = builder.load(vector_at(context, builder, kind, array, place))
                found.align = kind.dtype.bitwidth // 8
                return found

            def factor(place):  # type: ignore[no-untyped-def]
                if not scalar:
                    return read(of_x, x, place)
                number = builder.load(element_at(context, builder, of_x, x, place))
                return everywhere(builder, shape_of(of_x.dtype), number)

            def summed(total, one, other):  # type: ignore[no-untyped-def]
                if pairs:
                    # LLVM also takes the older form of this instruction, whose pairs are of type i32.
                    return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", shape, total, one, other)
                term = builder.fmul(one, other, flags=("contract",))
                return builder.fadd(term, total, flags=("contract",))

            def write(found, place):  # type: ignore[no-untyped-def]
                target = element_at(context, builder, of_out, out, place)
                if rounded:
                    found = _call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", _HALVES, found)
                target = builder.bitcast(target, found.type.as_pointer())
                builder.store(found, target, align=of_out.dtype.bitwidth // 8)

            places = {(r, c): step(step(o, o_row, r), o_column, c) for r, c in block}
            # LLVM keeps these in registers.
            sums = {at: cgutils.alloca_once(builder, shape) for at in block}
            for at in block:
                none = ir.Constant(shape, [0.0] * shape.count)
                builder.store(read(of_out, out, places[at]) if add else none, sums[at])
            with cgutils.for_range(builder, count) as turn:
                first_x, first_y = step(p, x_term, turn.index), step(q, y_term, turn.index)
                vectors = [read(of_y, y, step(first_y, y_column, c)) for c in range(columns)]
                for r in range(rows):
                    one = factor(step(first_x, x_row, r))
                    for c in range(columns):
                        builder.store(summed(builder.load(sums[r, c]), one, vectors[c]), sums[r, c])
            for at in block:
                write(builder.load(sums[at]), places[at])
            return context.get_dummy_value()

        three = (types.int64,) * 3
        return types.none(out, *three, x, *three, y, *three, types.int64), generate

    return loop
