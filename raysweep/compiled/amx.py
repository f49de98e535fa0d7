"""Tiles of a processor with AMX, which multiplies whole matrices of bfloat16 numbers, for compiled code.

A tile holds 16 rows of 64 bytes.  A processor has eight, and their numbers, 0 to 7, must be literal.

    begin(), end()                      before the first and behind the last use of tiles in a kernel; between
                                        them nothing may raise or call a library
    clear(tile)                         sets a tile to zero
    read_tile(tile, array, place, row)  fills a tile from the element `place` on, counted over all axes of an
                                        array in C order; its rows are `row` elements apart
    write_tile(tile, array, place, row) writes a tile
    add_product(out, x, y)              out[r, c] += Σ over k < 16 of x[r, k] y[k, c], where numbers of x and
                                        y are pairs of bfloat16 numbers, multiplied pair by pair, and those of
                                        `out` are float32; all three are tiles, and numbers too small for
                                        float32's exponent count as 0
    put_low(array, place, out, to)      writes 32 float32 numbers from `place` on to `out`, uint16: rounded to
                                        bfloat16, to nearest with ties to even

A process must ask the system for the tiles before it uses any (`usable`).
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils

from raysweep.compiled.simd import HALVES, element_at, intrinsic, of_literals, shape_of
from raysweep.compiled.tiles import call, has

log = logging.getLogger("raysweep.compiled")

_VOID, _BYTE, _INT = ir.VoidType(), ir.IntType(8), ir.IntType(64)
_POINTER = _BYTE.as_pointer()

#: The layout of tiles as the processor takes it: its first kind, no row done, the bytes of a row and the rows
#: of each tile.
_LAYOUT = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])


@cache
def usable() -> bool:
    """Ask the system for the tiles, and return whether kernels may use them in this process and its forks."""
    if not (has("amx-bf16") and has("avx512bf16")):
        return False
    granted = bool(torch.cpu._init_amx())
    if not granted:
        log.warning(
            "the system does not let this process use the processor's tiles (AMX); training in bfloat16 "
            "takes longer, and last digits differ from those of processes that use them"
        )
    return granted


def _do(builder, name, *arguments):  # type: ignore[no-untyped-def]
    call(builder, f"llvm.x86.{name}", _VOID, *arguments)


@intrinsic
def begin(context):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        layout = ir.Constant(ir.ArrayType(_BYTE, len(_LAYOUT)), bytearray(_LAYOUT))
        place = cgutils.global_constant(builder, "layout_of_tiles", layout)
        _do(builder, "ldtilecfg", builder.bitcast(place, _POINTER))
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def end(context):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _do(builder, "tilerelease")
        return context.get_dummy_value()

    return types.none(), generate


@of_literals
def clear(context, tile):  # type: ignore[no-untyped-def]
    if not isinstance(tile, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _do(builder, "tilezero", _BYTE(tile.literal_value))
        return context.get_dummy_value()

    return types.none(tile), generate


def _moving(name):  # type: ignore[no-untyped-def]
    """Return the intrinsic that moves a tile by LLVM's operation `name`."""

    @of_literals
    def move(context, tile, array, place, row):  # type: ignore[no-untyped-def]
        if not isinstance(tile, types.IntegerLiteral):
            return None

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            kind, (_, array, place, row) = signature.args[1], arguments
            element = builder.bitcast(element_at(context, builder, kind, array, place), _POINTER)
            distance = builder.mul(row, _INT(kind.dtype.bitwidth // 8))
            _do(builder, name, _BYTE(tile.literal_value), element, distance)
            return context.get_dummy_value()

        return types.none(tile, array, types.int64, types.int64), generate

    return move


read_tile, write_tile = _moving("tileloadd64"), _moving("tilestored64")


@of_literals
def add_product(context, out, x, y):  # type: ignore[no-untyped-def]
    tiles = out, x, y
    if not all(isinstance(tile, types.IntegerLiteral) for tile in tiles):
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _do(builder, "tdpbf16ps", *(_BYTE(tile.literal_value) for tile in tiles))
        return context.get_dummy_value()

    return types.none(*tiles), generate


@intrinsic
def put_low(context, array, place, out, to):  # type: ignore[no-untyped-def]
    if array.dtype != types.float32 or out.dtype != types.uint16:
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array, place, out, to = arguments
        shape, halves = shape_of(types.float32), []
        for k in range(2):
            first = builder.add(place, place.type(k * shape.count))
            element = element_at(context, builder, signature.args[0], array, first)
            found = builder.load(builder.bitcast(element, shape.as_pointer()))
            found.align = 4
            halves.append(call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", HALVES, found))
        order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * HALVES.count), list(range(2 * HALVES.count)))
        # One store for a line of the cache: such a line need not be read first.
        low = builder.shuffle_vector(*halves, order)
        target = element_at(context, builder, signature.args[2], out, to)
        builder.store(low, builder.bitcast(target, low.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.none(array, types.int64, out, types.int64), generate
