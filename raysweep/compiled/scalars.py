"""Building blocks of the kernels: stored bfloat16, exp, log, the normal distribution, and dropout's levels.

Arrays of low precision are uint16 holding the upper halves of float32 numbers (bfloat16), or plain float32:
`load` and `save` take either, so every kernel is written once.  What is computed of a number does not branch,
so that the compiler can make vector loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from raysweep.compiled import kernel
from raysweep.compiled.simd import Vector, element_at, intrinsic, peek, poke
from raysweep.compiled.tiles import WHOLE

#: Options of most kernels: sums may be regrouped, but infinities and NaN are kept.  A loop that writes to
#: memory adds up no number of its own: where arrays lie close together, such a loop is done entry by entry
#: instead of in vectors, so its sum would depend on where memory happened to be free.
COMPILED: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
}
INLINE: dict[str, Any] = {**COMPILED, "inline": "always"}
#: Those of a part that several kernels call.  Without this, a process that has compiled the part would call
#: that, one that has loaded a kernel from the disk would call the kernel's own copy, and the two may round
#: differently, because sums may be regrouped.  Python must not call them: nothing wraps them for it.
HELPER: dict[str, Any] = {**COMPILED, "forceinline": True, "no_cpython_wrapper": True}

_INT, _FLOAT = ir.IntType(32), ir.FloatType()
_HALF, _ROUND, _ONE = np.uint32(16), np.uint32(0x7FFF), np.uint32(1)


@intrinsic
def bits_of(context, x):  # type: ignore[no-untyped-def]
    """Return the bits of a float32 as a uint32."""
    return types.uint32(types.float32), lambda _, builder, signature, args: builder.bitcast(args[0], _INT)


@intrinsic
def float_of(context, bits):  # type: ignore[no-untyped-def]
    """Return the float32 of a uint32's bits."""
    return types.float32(types.uint32), lambda _, builder, signature, args: builder.bitcast(args[0], _FLOAT)


def load(array: Any, row: int, column: int) -> Any:
    """Return an entry of a low-precision array [rows, columns] as float32."""
    raise NotImplementedError("compiled code only")


def save(array: Any, row: int, column: int, x: Any) -> None:
    """Round `x` to nearest, ties to even, and store it in a low-precision array [rows, columns]."""
    raise NotImplementedError("compiled code only")


@overload(load, inline="always")
def _load(array, row, column):  # type: ignore[no-untyped-def]
    if array.dtype == types.uint16:
        return lambda array, row, column: float_of(
            np.uint32(np.uint32(peek(array, row * array.shape[1] + column)) << _HALF)
        )
    return lambda array, row, column: peek(array, row * array.shape[1] + column)


@overload(save, inline="always")
def _save(array, row, column, x):  # type: ignore[no-untyped-def]
    if array.dtype == types.uint16:

        def rounded(array, row, column, x):  # type: ignore[no-untyped-def]
            bits = bits_of(x)
            bits = (bits + _ROUND + ((bits >> _HALF) & _ONE)) >> _HALF
            poke(array, row * array.shape[1] + column, np.uint16(bits))

        return rounded

    def plain(array, row, column, x):  # type: ignore[no-untyped-def]
        poke(array, row * array.shape[1] + column, x)

    return plain


_LOG2E, _LOWEST = np.float32(1.44269504), np.float32(-50.0)
# ln 2 in two parts, the first short enough that its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = np.float32(355.0 / 512.0), np.float32(np.log(2.0) - 355.0 / 512.0)
_E2, _E3, _E4, _E5, _E6, _E7 = (np.float32(1.0 / f) for f in (2, 6, 24, 120, 720, 5040))
_F0, _F05, _F1 = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_MANTISSA = np.int32(23)


@kernel(**INLINE)
def exponential(x):  # type: ignore[no-untyped-def]
    """Return e^x of a float32 x ≤ 0 within 4e-7 of itself, 0 for any x below -50, and NaN for NaN.

    e^-50 is 2e-22 and adds nothing to a sum of the order of 1.  What is much smaller than that makes
    denormal products, with which matrix products take many times as long.
    """
    none = x < _LOWEST
    x = _LOWEST if none else x
    n = np.int32(x * _LOG2E - _F05)
    f = np.float32(n)
    r = x - f * _LN2_HIGH - f * _LN2_LOW
    p = _E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * _E7))))
    p = _F1 + (r + r * r * p)
    e = float_of(np.uint32(np.int32(bits_of(p)) + (n << _MANTISSA)))
    return _F0 if none else e


_UP, _UPPED = np.float32(2.0**24), np.int32(24 << 23)
_ROOT_HALF = np.float32(np.sqrt(0.5)).view(np.int32)
# (log(1 + r) - r + r² / 2) / r³ interpolated at Chebyshev points of [√½ - 1, √2 - 1].
_C0, _C1, _C2 = np.float32(0.33333331346), np.float32(-0.24999997020), np.float32(0.20000715554)
_C3, _C4, _C5 = np.float32(-0.16667802632), np.float32(0.14249058068), np.float32(-0.12425687164)
_C6, _C7, _C8 = np.float32(0.11685419828), np.float32(-0.11479733884), np.float32(0.06971611828)
_NONE = np.float32(-np.inf)

#: Numbers whose logarithms are computed side by side, because each operation waits for the one before: two
#: vectors of 64 bytes, or three of 32.  Registers do not hold what is computed of more.
_TOGETHER = 32 if WHOLE else 24


def _ln(builder, given, none):  # type: ignore[no-untyped-def]
    """Return ln x of a value, and `none` for 0; None leaves a finite number there."""
    kind, whole, contract = given.type, _INT, ("contract",)
    if isinstance(kind, ir.VectorType):
        whole = ir.VectorType(_INT, kind.count)

    def full(number, kind=kind):  # type: ignore[no-untyped-def]
        one = number.item()
        return ir.Constant(kind, [one] * kind.count if isinstance(kind, ir.VectorType) else one)

    def mul(x, y):  # type: ignore[no-untyped-def]
        return builder.fmul(x, y, flags=contract)

    def add(x, y):  # type: ignore[no-untyped-def]
        return builder.fadd(x, y, flags=contract)

    # The least numbers have no exponent of their own before they are made larger.
    bits = builder.sub(builder.bitcast(mul(given, full(_UP)), whole), full(_UPPED, whole))
    exponent = builder.ashr(builder.sub(bits, full(_ROOT_HALF, whole)), full(_MANTISSA, whole))
    mantissa = builder.sub(bits, builder.shl(exponent, full(_MANTISSA, whole)))
    r = add(builder.bitcast(mantissa, kind), full(-_F1))
    e = builder.sitofp(exponent, kind)
    p = full(_C8)
    for c in (_C7, _C6, _C5, _C4, _C3, _C2, _C1, _C0):
        p = add(mul(p, r), full(c))
    low = add(mul(mul(r, r), add(mul(p, r), full(-_F05))), mul(e, full(_LN2_LOW)))
    out = add(mul(e, full(_LN2_HIGH)), add(r, low))
    if none is None:
        return out
    return builder.select(builder.fcmp_ordered(">", given, full(_F0)), out, full(none))


@intrinsic
def logarithm(context, x):  # type: ignore[no-untyped-def]
    """Return ln x of a float32 x, or of each number of a vector, to 2 units in its last place.

    x is from 0 to 2^100; the logarithm of 0 is a finite number.
    """
    if x not in (types.float32, Vector(types.float32)):
        return None
    return x(x), lambda _, builder, signature, args: _ln(builder, args[0], None)


@intrinsic
def _logarithms_at(context, array, place, out, to):  # type: ignore[no-untyped-def]
    """Write ln x, -inf for 0, of `_TOGETHER` numbers from element `place` of `array` on to `out`."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        shape = ir.VectorType(_FLOAT, _TOGETHER).as_pointer()
        array, place, out, to = arguments
        given = element_at(context, builder, signature.args[0], array, place)
        found = _ln(builder, builder.load(builder.bitcast(given, shape), align=4), _NONE)
        target = element_at(context, builder, signature.args[2], out, to)
        builder.store(found, builder.bitcast(target, shape), align=4)
        return context.get_dummy_value()

    if not array.dtype == out.dtype == types.float32:
        return None
    return types.none(array, types.int64, out, types.int64), generate


# Inlining is not forced: within a longer kernel, the loop has fewer registers for its constants.
@kernel(error_model="numpy", fastmath={"contract"}, no_cpython_wrapper=True)
def logarithms(array, place, count, out, to):  # type: ignore[no-untyped-def]
    """Write ln x, -inf for 0, of `count` numbers from element `place` of `array` on to `out` from `to` on.

    Both are float32 and share no memory.  x and the error are those of `logarithm`.  A number's does not
    depend on its place.
    """
    if count < _TOGETHER:
        for k in range(count):
            x = peek(array, place + k)
            poke(out, to + k, logarithm(x) if x > _F0 else _NONE)
        return
    for k in range(0, count - _TOGETHER, _TOGETHER):
        _logarithms_at(array, place + k, out, to + k)
    # The last ones, some of them once more.
    rest = count - _TOGETHER
    _logarithms_at(array, place + rest, out, to + rest)


# Abramowitz and Stegun, "Handbook of mathematical functions" (1964), 7.1.26, with erf(u / √2) in mind.
_P = np.float32(0.3275911 * np.sqrt(0.5))
_A1, _A2, _A3, _A4, _A5 = (
    np.float32(0.5 * a) for a in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
)
_DENSITY = np.float32(1.0 / np.sqrt(2.0 * np.pi))


@kernel(**INLINE)
def normal(u):  # type: ignore[no-untyped-def]
    """Return Φ(u) and φ(u), distribution and density of the standard normal, within 3e-7."""
    e = exponential(-_F05 * u * u)
    t = _F1 / (_F1 + _P * abs(u))
    tail = t * (_A1 + t * (_A2 + t * (_A3 + t * (_A4 + t * _A5)))) * e
    return (tail if u < _F0 else _F1 - tail), _DENSITY * e


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


@kernel(**INLINE)
def mixed(x):  # type: ignore[no-untyped-def]
    """Return the output of SplitMix64 at state x (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@kernel(**INLINE)
def draw(key, first, words):  # type: ignore[no-untyped-def]
    """Fill uint64 `words` with words `first` .. of the stream `key`; each holds four levels of 16 bits."""
    first = np.uint64(first) + np.uint64(1)
    for w in range(len(words)):
        words[w] = mixed(key + (first + np.uint64(w)) * _GOLDEN)
