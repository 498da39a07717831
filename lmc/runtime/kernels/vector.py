"""Sixteen float32 in one value: the words in which the CPU kernels are written.

Numba alone leaves it to the optimizer whether and how a loop becomes vector code, and so in which
order numbers are added. These kernels promise bit-identical rows, so they say it themselves: each
operation here is one vector operation (or a fixed sequence of them) on every machine; LLVM cuts it
into narrower ones where registers are narrower, which changes no result.

Addresses are plain integers (`tensor.data_ptr()` plus bytes). Nothing is checked: the callers in
this package pass buffers whose sizes they know.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = [
    "LANES",
    "VECTOR",
    "accumulators",
    "add",
    "atomic_add",
    "atomic_enter",
    "atomic_load",
    "atomic_next",
    "atomic_store",
    "between",
    "call",
    "choose",
    "choose_where",
    "div",
    "dot_bfloat16",
    "emits",
    "exp2",
    "exp2_falling",
    "f32_of_bits",
    "f32x16",
    "fma",
    "lanes_at_most",
    "load",
    "load_bfloat16",
    "load_f32",
    "load_f64",
    "load_i32",
    "load_i64",
    "load_pairs",
    "load_u8",
    "load_vector",
    "loop",
    "mul",
    "multiply_add",
    "noise",
    "offset",
    "pair_at",
    "pause",
    "peak",
    "pointer",
    "prefetch",
    "splat",
    "splat_at",
    "spread_at",
    "store",
    "store_bfloat16",
    "store_f32",
    "store_f64",
    "store_i32",
    "store_i64",
    "sub",
    "top",
    "total",
]

LANES = 16  # float32 of one vector

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_I16 = ir.IntType(16)
_I64 = ir.IntType(64)
VECTOR = ir.VectorType(_F32, LANES)
_VI = ir.VectorType(_I32, LANES)
_VH = ir.VectorType(_I16, LANES)

_Builder = Any  # llvmlite ships no types
_Value = Any


class _Vector(types.Type):  # type: ignore[misc]  # numba ships no types
    """Numba's name for the type of a vector."""

    def __init__(self) -> None:
        super().__init__(name="f32x16")


f32x16 = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:  # noqa: ANN401
        super().__init__(dmm, fe_type, VECTOR)


def emits(result: Any, *argument_types: Any) -> Callable[[Callable[..., _Value]], Any]:  # noqa: ANN401
    """Make a numba intrinsic of a function `(builder, *values) -> value` that emits code."""

    def wrap(emit: Callable[..., _Value]) -> Any:  # noqa: ANN401
        signature = result(*argument_types)

        def codegen(context: Any, builder: _Builder, sig: Any, args: Any) -> _Value:  # noqa: ANN401, ARG001
            value = emit(builder, *args)
            return context.get_dummy_value() if value is None else value

        # numba reads the arity from the function's own parameters, hence one shell per arity
        shells: dict[int, Callable[..., Any]] = {
            1: lambda typing, a: (signature, codegen),  # noqa: ARG005
            2: lambda typing, a, b: (signature, codegen),  # noqa: ARG005
            3: lambda typing, a, b, c: (signature, codegen),  # noqa: ARG005
            5: lambda typing, a, b, c, d, e: (signature, codegen),  # noqa: ARG005
            7: lambda typing, a, b, c, d, e, f, g: (signature, codegen),  # noqa: ARG005
        }
        shell = shells[len(argument_types)]
        shell.__name__ = shell.__qualname__ = emit.__name__
        shell.__doc__ = emit.__doc__
        return intrinsic(shell)

    return wrap


def pointer(builder: _Builder, address: _Value, to: Any) -> _Value:  # noqa: ANN401
    """An integer as a pointer."""
    return builder.inttoptr(address, ir.PointerType(to))


def _call(builder: _Builder, name: str, *args: _Value) -> _Value:
    """Call an LLVM intrinsic on vectors of one type."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(args))
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v16f32"), args
    )


def _constant(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _integers(value: int, kind: Any = _VI) -> ir.Constant:  # noqa: ANN401
    return ir.Constant(kind, [value] * LANES)


def _spread(builder: _Builder, scalar: _Value, kind: Any) -> _Value:  # noqa: ANN401
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_I32, 0))
    zeros = ir.Constant(_VI, [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


def accumulators(builder: _Builder, count: int) -> list[_Value]:
    """Vectors of zeros that a loop adds to; the optimizer keeps them in registers."""
    held = [cgutils.alloca_once(builder, VECTOR) for _ in range(count)]
    for slot in held:
        builder.store(_constant(0.0), slot)
    return held


def loop(builder: _Builder, count: Any) -> Any:  # noqa: ANN401
    """A loop over `count` (a value or an int), as a context manager that gives the index."""
    return cgutils.for_range(builder, _I64(count) if isinstance(count, int) else count)


def offset(builder: _Builder, base: _Value, index: _Value, factor: int) -> _Value:
    """`base + index * factor`."""
    return builder.add(base, builder.mul(index, _I64(factor)))


def load_vector(builder: _Builder, address: _Value) -> _Value:
    """16 float32."""
    return builder.load(pointer(builder, address, VECTOR), align=4)


def spread_at(builder: _Builder, address: _Value) -> _Value:
    """The float32 at an address, 16 times."""
    return _spread(builder, builder.load(pointer(builder, address, _F32), align=4), VECTOR)


def multiply_add(builder: _Builder, a: _Value, b: _Value, c: _Value) -> _Value:
    """`a * b + c`, rounded once."""
    return _call(builder, "fma", a, b, c)


llvmlite.binding.initialize_native_asmparser()  # what inline assembly needs to be compiled
_DOT = ir.FunctionType(VECTOR, [VECTOR, _VI, _VI])


def dot_bfloat16(builder: _Builder, sums: _Value, pair: _Value, pairs: _Value) -> _Value:
    """Add the products of one pair of bfloat16 with 16 pairs; needs AVX-512 BF16.

    Written as assembly because llvmlite has no name for the type bfloat16. How the two products of
    a lane are added is specified exactly (Intel SDM, VDPBF16PS).
    """
    assembly = ir.InlineAsm(_DOT, "vdpbf16ps $3, $2, $0", "=v,0,v,v", side_effect=False)
    return builder.call(assembly, [sums, pair, pairs])


def pair_at(builder: _Builder, address: _Value) -> _Value:
    """The pair of bfloat16 at an address, 16 times, as 16 int32."""
    return _spread(builder, builder.load(pointer(builder, address, _I32), align=4), _VI)


def load_pairs(builder: _Builder, address: _Value) -> _Value:
    """16 pairs of bfloat16, as 16 int32."""
    return builder.load(pointer(builder, address, _VI), align=4)


# Memory ------------------------------------------------------------------------------------------


@emits(f32x16, types.int64)
def load(builder: _Builder, address: _Value) -> _Value:
    """16 float32."""
    return builder.load(pointer(builder, address, VECTOR), align=4)


@emits(types.none, types.int64, f32x16)
def store(builder: _Builder, address: _Value, value: _Value) -> None:
    """Write 16 float32."""
    builder.store(value, pointer(builder, address, VECTOR), align=4)


@emits(f32x16, types.int64)
def load_bfloat16(builder: _Builder, address: _Value) -> _Value:
    """16 bfloat16, widened; exact, as a bfloat16 is the upper half of a float32."""
    half = builder.load(pointer(builder, address, _VH), align=2)
    return builder.bitcast(builder.shl(builder.zext(half, _VI), _integers(16)), VECTOR)


def _round_to_bfloat16(builder: _Builder, value: _Value) -> _Value:
    bits = builder.bitcast(value, _VI)
    odd = builder.and_(builder.lshr(bits, _integers(16)), _integers(1))
    rounded = builder.add(bits, builder.add(odd, _integers(0x7FFF)))  # ties go to the even one
    nan = builder.fcmp_unordered("uno", value, value)
    bits = builder.select(nan, _integers(0x7FC00000), rounded)  # a NaN must not wrap to a number
    return builder.trunc(builder.lshr(bits, _integers(16)), _VH)


@emits(types.none, types.int64, f32x16)
def store_bfloat16(builder: _Builder, address: _Value, value: _Value) -> None:
    """Write 16 bfloat16, rounded to nearest, ties to even."""
    builder.store(_round_to_bfloat16(builder, value), pointer(builder, address, _VH), align=2)


@emits(types.float32, types.int64)
def load_f32(builder: _Builder, address: _Value) -> _Value:
    """One float32."""
    return builder.load(pointer(builder, address, _F32), align=4)


@emits(types.none, types.int64, types.float32)
def store_f32(builder: _Builder, address: _Value, value: _Value) -> None:
    """Write one float32."""
    builder.store(value, pointer(builder, address, _F32), align=4)


@emits(types.none, types.int64)
def prefetch(builder: _Builder, address: _Value) -> None:
    """Fetch a cache line that will be read soon."""
    byte = ir.PointerType(ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    place = pointer(builder, address, ir.IntType(8))
    builder.call(function, [place, _I32(0), _I32(3), _I32(1)])  # to read, all caches, data


@emits(types.int64, types.int64)
def load_i32(builder: _Builder, address: _Value) -> _Value:
    """One int32, widened to int64."""
    return builder.sext(builder.load(pointer(builder, address, _I32), align=4), _I64)


@emits(types.int64, types.int64)
def load_i64(builder: _Builder, address: _Value) -> _Value:
    """One int64."""
    return builder.load(pointer(builder, address, _I64), align=8)


@emits(types.none, types.int64, types.int64)
def store_i32(builder: _Builder, address: _Value, value: _Value) -> None:
    """Write an integer as int32."""
    builder.store(builder.trunc(value, _I32), pointer(builder, address, _I32), align=4)


@emits(types.float64, types.int64)
def load_f64(builder: _Builder, address: _Value) -> _Value:
    """One float64."""
    return builder.load(pointer(builder, address, ir.DoubleType()), align=8)


@emits(types.none, types.int64, types.float64)
def store_f64(builder: _Builder, address: _Value, value: _Value) -> None:
    """Write one float64."""
    builder.store(value, pointer(builder, address, ir.DoubleType()), align=8)


@emits(types.none, types.int64, types.int64)
def store_i64(builder: _Builder, address: _Value, value: _Value) -> None:
    """Write an int64."""
    builder.store(value, pointer(builder, address, _I64), align=8)


@emits(types.int64, types.int64)
def load_u8(builder: _Builder, address: _Value) -> _Value:
    """One byte."""
    return builder.zext(builder.load(pointer(builder, address, ir.IntType(8)), align=1), _I64)


# Between threads ---------------------------------------------------------------------------------


@emits(types.int64, types.int64)
def atomic_next(builder: _Builder, address: _Value) -> _Value:
    """The int64 at `address`, which is increased by one for the next to ask."""
    place = pointer(builder, address, _I64)
    return builder.atomic_rmw("add", place, _I64(1), ordering="monotonic")


@emits(types.int64, types.int64, types.int64)
def atomic_add(builder: _Builder, address: _Value, change: _Value) -> _Value:
    """Add to an int64 that threads agree by; gives its value before."""
    return builder.atomic_rmw("add", pointer(builder, address, _I64), change, ordering="seq_cst")


@emits(types.int64, types.int64)
def atomic_load(builder: _Builder, address: _Value) -> _Value:
    """An int64 that threads agree by."""
    return builder.load_atomic(pointer(builder, address, _I64), ordering="seq_cst", align=8)


@emits(types.none, types.int64, types.int64)
def atomic_store(builder: _Builder, address: _Value, value: _Value) -> None:
    """Set an int64 that threads agree by."""
    builder.store_atomic(value, pointer(builder, address, _I64), ordering="seq_cst", align=8)


@emits(types.int64, types.int64)
def atomic_enter(builder: _Builder, address: _Value) -> _Value:
    """Add 2 if the int64 is odd and stays so meanwhile; 1 if that was done, else 0."""
    place = pointer(builder, address, _I64)
    seen = builder.load_atomic(place, ordering="seq_cst", align=8)
    wanted = builder.or_(seen, _I64(1))  # differs from what is there if that is even
    change = builder.add(wanted, _I64(2))
    result = builder.cmpxchg(place, wanted, change, ordering="seq_cst", failordering="seq_cst")
    return builder.zext(builder.extract_value(result, 1), _I64)


@emits(types.none, types.int64)
def pause(builder: _Builder, unused: _Value) -> None:  # noqa: ARG001
    """Tell the processor that this is a loop that waits."""
    kind = ir.FunctionType(ir.VoidType(), [])
    if platform.machine() in ("x86_64", "AMD64"):
        builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), []
        )


@emits(types.none, types.int64, types.int64)
def call(builder: _Builder, function: _Value, argument: _Value) -> None:
    """Call the function at an address, of one pointer and no result."""
    kind = ir.FunctionType(ir.VoidType(), [_I64])
    builder.call(builder.inttoptr(function, ir.PointerType(kind)), [argument])


# Arithmetic --------------------------------------------------------------------------------------


@emits(f32x16, types.float32)
def splat(builder: _Builder, value: _Value) -> _Value:
    """One number, 16 times."""
    return _spread(builder, value, VECTOR)


@emits(f32x16, types.int64)
def splat_at(builder: _Builder, address: _Value) -> _Value:
    """The float32 at an address, 16 times; an operand of the multiplication on AVX-512."""
    return _spread(builder, builder.load(pointer(builder, address, _F32), align=4), VECTOR)


@emits(f32x16, f32x16, f32x16, f32x16)
def fma(builder: _Builder, a: _Value, b: _Value, c: _Value) -> _Value:
    """`a * b + c`, rounded once."""
    return _call(builder, "fma", a, b, c)


@emits(f32x16, f32x16, f32x16)
def mul(builder: _Builder, a: _Value, b: _Value) -> _Value:
    """Products."""
    return builder.fmul(a, b)


@emits(f32x16, f32x16, f32x16)
def add(builder: _Builder, a: _Value, b: _Value) -> _Value:
    """Sums."""
    return builder.fadd(a, b)


@emits(f32x16, f32x16, f32x16)
def sub(builder: _Builder, a: _Value, b: _Value) -> _Value:
    """Differences."""
    return builder.fsub(a, b)


@emits(f32x16, f32x16, f32x16)
def div(builder: _Builder, a: _Value, b: _Value) -> _Value:
    """Quotients."""
    return builder.fdiv(a, b)


@emits(f32x16, f32x16, f32x16)
def peak(builder: _Builder, a: _Value, b: _Value) -> _Value:
    """The greater of each pair; of `b` if `a` is NaN, so that a NaN in `b` stays."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@emits(f32x16, types.int64, types.int64)
def between(builder: _Builder, low: _Value, high: _Value) -> _Value:
    """1.0 in the lanes from `low` on and below `high`, else 0.0."""
    lanes = ir.Constant(_VI, [*range(LANES)])
    first, end = (_spread(builder, builder.trunc(x, _I32), _VI) for x in (low, high))
    inside = builder.and_(
        builder.icmp_signed(">=", lanes, first), builder.icmp_signed("<", lanes, end)
    )
    return builder.select(inside, _constant(1.0), _constant(0.0))


@emits(f32x16, f32x16, f32x16, f32x16)
def choose(builder: _Builder, chosen: _Value, value: _Value, other: _Value) -> _Value:
    """`value` in the lanes where `chosen` is not 0, else `other`."""
    return builder.select(builder.fcmp_unordered("!=", chosen, _constant(0.0)), value, other)


@emits(f32x16, types.int64, f32x16, f32x16)
def choose_where(builder: _Builder, flags: _Value, value: _Value, other: _Value) -> _Value:
    """`value` in the lanes whose flag, one of 16 bytes in memory, is not 0, else `other`."""
    kind = ir.VectorType(ir.IntType(8), LANES)
    held = builder.load(pointer(builder, flags, kind), align=1)
    return builder.select(builder.icmp_unsigned("!=", held, _integers(0, kind)), value, other)


@emits(types.int64, f32x16, f32x16)
def lanes_at_most(builder: _Builder, a: _Value, b: _Value) -> _Value:
    """Bit i of the result says whether lane i of `a` is at most that of `b`."""
    bits = builder.bitcast(builder.fcmp_ordered("<=", a, b), _I16)
    return builder.zext(bits, _I64)


def _scramble(builder: _Builder, x: _Value) -> _Value:
    x = builder.xor(x, builder.lshr(x, _integers(16)))
    x = builder.mul(x, _integers(0x7FEB352D))
    x = builder.xor(x, builder.lshr(x, _integers(15)))
    x = builder.mul(x, _integers(0x846CA68B))
    return builder.xor(x, builder.lshr(x, _integers(16)))


@emits(f32x16, types.int64, types.int64, types.int64)
def noise(builder: _Builder, first: _Value, key1: _Value, key2: _Value) -> _Value:
    """`lmc.runtime.sampler.noise` of 16 ids from `first` on, to the precision of float32."""
    one, two = (_spread(builder, builder.trunc(k, _I32), _VI) for k in (key1, key2))
    counting = ir.Constant(_VI, [*range(LANES)])
    ids = builder.add(_spread(builder, builder.trunc(first, _I32), _VI), counting)
    words = builder.add(builder.mul(ids, _integers(0x9E3779B1)), one)
    words = _scramble(builder, builder.xor(_scramble(builder, words), two))
    return builder.fmul(builder.uitofp(words, VECTOR), _constant(2.0**-32))


def _reduce(builder: _Builder, value: _Value, join: Callable[[_Value, _Value], _Value]) -> _Value:
    """Join the halves of a vector until one number is left."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(value.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(
                value,
                undefined,
                ir.Constant(ir.VectorType(_I32, width), [*range(first, first + width)]),
            )
            for first in (0, width)
        )
        value = join(low, high)
    return builder.extract_element(value, ir.Constant(_I32, 0))


@emits(types.float32, f32x16)
def total(builder: _Builder, value: _Value) -> _Value:
    """The sum of all lanes, in halves."""
    return _reduce(builder, value, builder.fadd)


@emits(types.float32, f32x16)
def top(builder: _Builder, value: _Value) -> _Value:
    """The greatest lane; not for NaN."""
    return _reduce(
        builder, value, lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b)
    )


@emits(f32x16, f32x16)
def exp2(builder: _Builder, x: _Value) -> _Value:
    """Two to the power of each lane, to about 1e-7 relative; 0 under -126.5, infinity over 127.5.

    x = n + r with n whole and |r| <= 1/2; the Taylor series of 2**r of degree 7 (its rest is under
    3e-9), times 2**n put together from bits. 2**0 is 1 exactly. NaN stays NaN.
    """
    whole = _call(builder, "rint", x)
    rest = builder.fsub(x, whole)
    series = _constant(math.log(2) ** 7 / math.factorial(7))
    for power in range(6, -1, -1):
        coefficient = math.log(2) ** power / math.factorial(power)
        series = _call(builder, "fma", series, rest, _constant(coefficient))
    low, high = _constant(-126.0), _constant(127.0)
    small, large = builder.fcmp_ordered("<", whole, low), builder.fcmp_ordered(">", whole, high)
    nan = builder.fcmp_unordered("uno", x, x)
    held = builder.select(builder.or_(small, builder.or_(large, nan)), _constant(0.0), whole)
    exponent = builder.shl(builder.add(builder.fptosi(held, _VI), _integers(127)), _integers(23))
    value = builder.fmul(series, builder.bitcast(exponent, VECTOR))
    value = builder.select(small, _constant(0.0), value)
    value = builder.select(large, _constant(math.inf), value)
    return builder.select(nan, x, value)


def exp2_falling(degree: int) -> Any:  # noqa: ANN401
    """`exp2` for lanes that are not above 0, by a series of `degree`: 5 is good to 3e-6."""

    @emits(f32x16, f32x16)
    def falling(builder: _Builder, x: _Value) -> _Value:
        whole = _call(builder, "rint", x)
        rest = builder.fsub(x, whole)
        series = _constant(math.log(2) ** degree / math.factorial(degree))
        for power in range(degree - 1, -1, -1):
            coefficient = math.log(2) ** power / math.factorial(power)
            series = _call(builder, "fma", series, rest, _constant(coefficient))
        # the bits of 2**whole; what they are for numbers under -126 or NaN does not matter
        small = builder.fcmp_ordered("<", whole, _constant(-126.0))
        held = builder.select(small, _constant(0.0), whole)
        power_of_two = builder.add(builder.fptosi(held, _VI), _integers(127))
        exponent = builder.shl(power_of_two, _integers(23))
        value = builder.fmul(series, builder.bitcast(exponent, VECTOR))
        return builder.select(small, _constant(0.0), value)

    return falling


@emits(types.float32, types.int64)
def f32_of_bits(builder: _Builder, bits: _Value) -> _Value:
    """The float32 whose bits are the low half of an integer: how a kernel is given a number."""
    return builder.bitcast(builder.trunc(bits, _I32), _F32)
