"""Loops that keep a block of sums in registers, for products of many small matrices.

`tile(rows, columns)` makes the loop of a block of rows × columns vectors, for compiled code:

    loop(out, place, row, column, x, place, term, row, y, place, term, column, count)

It writes

    out[r, c] = sum over k < count of x[k, r] y[k, c]

where x, y and `out` hold vectors of 64 bytes, or of `size`, multiplied number by number, and `out` shares no
memory with x and y.  An array's `place` is where its element r = c = k = 0 begins, counted as in
`raysweep.compiled.simd`; `row`, `column` and `term` are the distances of neighbours in r, c and k.

Where x and y are uint32, each number is a pair of bfloat16 numbers, of terms 2 k and 2 k + 1, and multiplying
two of them adds both products in float32.  `out` is float32 then, or uint16: the sums rounded to bfloat16, to
nearest with ties to even.  Such loops are for processors with these instructions (`PAIRS`).

Cost: rows + columns vectors are read for rows × columns operations.  The sums of 5 × 5, with the vectors that
enter, fill the registers of a processor that has 32 of 64 bytes.  On another one the loop may be several
loops, one behind the other, for a part of the block each (`parts`).  No number depends on that: each is the
sum of the same terms in the same order.  Distances that are constants where the loop is compiled take no
registers, and no operations in each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeVar

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features

from raysweep.compiled.cache import config
from raysweep.compiled.simd import BYTES, HALVES, element_at, everywhere, intrinsic, shape_of

T = TypeVar("T")


def _features() -> set[str]:
    """Return the instructions that numba compiles for, each with + or - before its name."""
    chosen = config.CPU_FEATURES
    if chosen is None:
        chosen = get_host_cpu_features() if config.CPU_NAME is None else ""
    return set(chosen.split(","))


def has(feature: str) -> bool:
    """Return whether numba compiles for a processor with these instructions, named as LLVM names them."""
    return f"+{feature}" in _features()


class Registers(NamedTuple):
    """A processor's registers for vectors: bytes of each, and their number."""

    size: int
    number: int


def _registers() -> Registers:
    """Return the registers that kernels are compiled for."""
    if has("avx512f"):
        return Registers(BYTES, 32)
    return Registers(32, 16) if has("avx2") else Registers(16, 32 if has("neon") else 16)


REGISTERS = _registers()

#: Whether registers hold a whole vector, and there are enough of them for the largest blocks.
WHOLE = Registers(BYTES, 32) == REGISTERS

#: Whether kernels are compiled for a processor that multiplies pairs of bfloat16 numbers in vectors.
PAIRS = WHOLE and has("avx512bf16")

#: Whether blocks are fast: there are registers of 32 bytes at least, and sums and products in one operation.
FAST = REGISTERS.size > 16 and has("fma")

#: Cycles until the result of a sum can be added to, and sums of a cycle.
_LATENCY, _RATE = 4, 2


class Part(NamedTuple):
    """A part of a block: its rows, its columns, and the pieces of their vectors, one register each.

    A column is the number of its vector and that of the piece.
    """

    rows: tuple[int, ...]
    columns: tuple[tuple[int, int], ...]


@cache
def parts(rows: int, columns: int, scalar: bool, registers: Registers, size: int = BYTES) -> tuple[Part, ...]:
    """Return the parts of a block of vectors of `size` bytes, each with its sums in registers.

    A vector takes as many registers as it needs.  Of all sizes that leave room for what enters, this is the
    one whose loops take the fewest cycles, and then the one with the fewest loops.  In a cycle, a processor
    does two operations and reads two vectors, and a sum waits for the last one to it.

    >>> [(part.rows, part.columns) for part in parts(2, 1, True, Registers(32, 16))]
    [((0, 1), ((0, 0), (0, 1)))]
    """
    pieces = size // registers.size
    side = [(c, piece) for c in range(columns) for piece in range(pieces)]
    if not scalar:
        # With a vector in place of a number, a piece meets the same piece.  Sorted by these, few parts have
        # columns of several.
        side.sort(key=lambda column: column[1])
    found = []
    for height, width in product(range(1, rows + 1), range(1, len(side) + 1)):
        if height * width + width + 1 > registers.number and (height, width) != (1, 1):
            continue
        shares = [
            Part(tuple(some), tuple(those))
            for some in _even(range(rows), height)
            for those in _even(side, width)
        ]
        cycles = sum(_cycles(part, scalar) for part in shares)
        found.append((cycles, len(shares), tuple(shares)))
    return min(found)[2]


def _cycles(part: Part, scalar: bool) -> float:
    """Return the cycles of a turn of a part's loop."""
    height, width = len(part.rows), len(part.columns)
    factors = height if scalar else height * len({piece for _, piece in part.columns})
    return max(height * width / _RATE, (factors + width) / _RATE, _LATENCY)


def _even(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Return the items in parts of nearly the same length, at most so many in each."""
    count = -(-len(items) // most)
    bounds = [len(items) * k // count for k in range(count + 1)]
    return [items[first:last] for first, last in pairwise(bounds)]


_FLOATS = shape_of(types.float32)


def call(builder, name, result, *arguments):  # type: ignore[no-untyped-def]
    """Return what LLVM's function `name` returns, a value of type `result`."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@cache
def tile(rows: int, columns: int, *, scalar: bool = False, add: bool = False, size: int = BYTES) -> Any:
    """Return the loop of a block; see the module's text.

    With `scalar`, x[k, r] is a number that multiplies a whole vector.  With `add`, the sums are added to what
    `out` holds.  `size` is at least that of a register.
    """
    split = parts(rows, columns, scalar, REGISTERS, size)
    # Registers that 64 bytes take, whatever the size of the block's vectors.
    pieces = BYTES // REGISTERS.size

    @intrinsic
    def loop(context, out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            out, o, o_row, o_column, x, p, x_term, x_row, y, q, y_term, y_column, count = arguments
            of_out, of_x, of_y = signature.args[0], signature.args[4], signature.args[8]
            pairs, rounded = of_x.dtype == types.uint32, of_out.dtype == types.uint16
            whole = _FLOATS if pairs else shape_of(of_out.dtype)
            shape = ir.VectorType(whole.element, whole.count // pieces)

            def step(place, distance, number):  # type: ignore[no-untyped-def]
                if isinstance(number, int):
                    number = distance.type(number)
                return builder.add(place, builder.mul(distance, number))

            def read(kind, array, place, piece):  # type: ignore[no-untyped-def]
                of = shape_of(kind.dtype)
                of = ir.VectorType(of.element, of.count // pieces)
                place = builder.add(place, place.type(piece * of.count))
                element = element_at(context, builder, kind, array, place)
                found = builder.load(builder.bitcast(element, of.as_pointer()))
                found.align = kind.dtype.bitwidth // 8
                return found

            def factor(place, piece):  # type: ignore[no-untyped-def]
                if not scalar:
                    return read(of_x, x, place, piece)
                number = builder.load(element_at(context, builder, of_x, x, place))
                of = shape_of(of_x.dtype)
                return everywhere(builder, ir.VectorType(of.element, of.count // pieces), number)

            def summed(total, one, other):  # type: ignore[no-untyped-def]
                if pairs:
                    # LLVM also takes the older form of this instruction, whose pairs are of type i32.
                    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", shape, total, one, other)
                term = builder.fmul(one, other, flags=("contract",))
                return builder.fadd(term, total, flags=("contract",))

            def write(found, place, piece):  # type: ignore[no-untyped-def]
                place = builder.add(place, place.type(piece * shape.count))
                target = element_at(context, builder, of_out, out, place)
                if rounded:
                    found = call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", HALVES, found)
                target = builder.bitcast(target, found.type.as_pointer())
                builder.store(found, target, align=of_out.dtype.bitwidth // 8)

            for part in split:
                places = {
                    (r, c, piece): step(step(o, o_row, r), o_column, c)
                    for r in part.rows
                    for c, piece in part.columns
                }
                # LLVM keeps these in registers.
                sums = {at: cgutils.alloca_once(builder, shape) for at in places}
                for at, place in places.items():
                    none = ir.Constant(shape, [0.0] * shape.count)
                    builder.store(read(of_out, out, place, at[2]) if add else none, sums[at])
                with cgutils.for_range(builder, count) as turn:
                    first_x, first_y = step(p, x_term, turn.index), step(q, y_term, turn.index)
                    vectors = {
                        (c, piece): read(of_y, y, step(first_y, y_column, c), piece)
                        for c, piece in part.columns
                    }
                    for r in part.rows:
                        place, ones = step(first_x, x_row, r), {}
                        for (c, piece), vector in vectors.items():
                            # A vector's piece meets the same piece, a number all.
                            met = 0 if scalar else piece
                            if met not in ones:
                                ones[met] = factor(place, met)
                            own = sums[r, c, piece]
                            builder.store(summed(builder.load(own), ones[met], vector), own)
                for at, place in places.items():
                    write(builder.load(sums[at]), place, at[2])
            return context.get_dummy_value()

        three = (types.int64,) * 3
        return types.none(out, *three, x, *three, y, *three, types.int64), generate

    return loop
