"""Loops that keep a block of sums in registers, for products of many small matrices.

`tile(rows, columns)` makes the loop of a block of rows × columns vectors of 64 bytes, for compiled code:

    loop(out, place, row, column, x, place, term, row, y, place, term, column, count)

It writes

    out[r, c] = sum over k < count of x[k, r] y[k, c]

where x, y and `out` hold vectors, multiplied number by number.  An array's `place` is where its element
r = c = k = 0 begins, counted as in `raysweep.compiled.simd`; `row`, `column` and `term` are the distances of
neighbours in r, c and k.

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

from raysweep.compiled.simd import element_at, everywhere, intrinsic, shape_of, vector_at


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
            shape, align = shape_of(of_out.dtype), of_out.dtype.bitwidth // 8

            def step(place, distance, number):  # type: ignore[no-untyped-def]
                if isinstance(number, int):
                    number = distance.type(number)
                return builder.add(place, builder.mul(distance, number))

            def read(kind, array, place):  # type: ignore[no-untyped-def]
                found = builder.load(vector_at(context, builder, kind, array, place))
                found.align = align
                return found

            def factor(place):  # type: ignore[no-untyped-def]
                if not scalar:
                    return read(of_x, x, place)
                return everywhere(builder, shape, builder.load(element_at(context, builder, of_x, x, place)))

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
                        term = builder.fmul(one, vectors[c], flags=("contract",))
                        total = builder.fadd(term, builder.load(sums[r, c]), flags=("contract",))
                        builder.store(total, sums[r, c])
            for at in block:
                target = vector_at(context, builder, of_out, out, places[at])
                builder.store(builder.load(sums[at]), target, align=align)
            return context.get_dummy_value()

        three = (types.int64,) * 3
        return types.none(out, *three, x, *three, y, *three, types.int64), generate

    return loop
