"""Intel's tile registers, as words for the CPU kernels: products of bfloat16 summed in float32.

The eight registers are used in one fixed way, two by two: 0 to 3 hold a block of 32 x 32 sums (16 x
16 each, row-major), 4 and 5 hold 32 rows of the left factor, 6 and 7 hold 32 columns of the right
one. A `step` adds the products of 32 inner positions to the sums.

    left     rows of 32 bfloat16, any distance apart
    right    two tiles of 16 columns, 1 KiB each: pairs of inner positions, 16 columns, 2 numbers

The arithmetic is exactly specified (Intel SDM, TDPBF16PS), so a sum depends on its row, its column
and the order of steps alone.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils

from lmc.runtime.kernels.vector import emits, pointer

__all__ = [
    "available",
    "configuration",
    "tiles_begin",
    "tiles_clear",
    "tiles_end",
    "tiles_rows",
    "tiles_step",
    "tiles_step_upper",
    "tiles_store",
    "tiles_store_upper",
]

_I8 = ir.IntType(8)
_I64 = ir.IntType(64)
_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
_ARCH_PRCTL = 158


@cache
def available() -> bool:
    """Whether this process may use the tile registers; asks the system for it."""
    features = llvmlite.binding.get_host_cpu_features()
    if not (features.get("amx-bf16") and platform.system() == "Linux"):
        return False
    return int(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)) == 0


@cache
def configuration() -> torch.Tensor:
    """What `tiles_begin` loads: palette 1, every register 16 rows of 64 bytes."""
    available()  # asks for permission, without which the registers are an illegal instruction
    config = torch.zeros(64, dtype=torch.uint8)
    config[0] = 1
    config[16:32:2] = 64
    config[48:56] = 16
    return config


def _emit(builder: Any, name: str, *args: Any) -> None:  # noqa: ANN401 - llvmlite has no types
    kind = ir.FunctionType(ir.VoidType(), [a.type for a in args])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), args)


def _load(builder: Any, register: int, address: Any, distance: Any) -> None:  # noqa: ANN401
    _emit(builder, "tileloadd64", _I8(register), pointer(builder, address, _I8), distance)


def _product(builder: Any, sums: int, left: int, right: int) -> None:  # noqa: ANN401
    _emit(builder, "tdpbf16ps", _I8(sums), _I8(left), _I8(right))


@emits(types.none, types.int64)
def tiles_begin(builder: Any, config: Any) -> None:  # noqa: ANN401
    """Take the registers into use."""
    _emit(builder, "ldtilecfg", pointer(builder, config, _I8))


@emits(types.none, types.int64)
def tiles_end(builder: Any, unused: Any) -> None:  # noqa: ANN401, ARG001
    """Give the registers back."""
    _emit(builder, "tilerelease")


@emits(types.none, types.int64)
def tiles_clear(builder: Any, unused: Any) -> None:  # noqa: ANN401, ARG001
    """Set the sums to zero."""
    for register in range(4):
        _emit(builder, "tilezero", _I8(register))


@emits(types.none, types.int64, types.int64, types.int64)
def tiles_step(builder: Any, left: Any, distance: Any, right: Any) -> None:  # noqa: ANN401
    """Add the products of 32 rows, `distance` bytes apart, and 32 columns."""
    _load(builder, 4, left, distance)
    _load(builder, 6, right, _I64(64))
    _product(builder, 0, 4, 6)
    _load(builder, 7, builder.add(right, _I64(1024)), _I64(64))
    _product(builder, 1, 4, 7)
    _load(builder, 5, builder.add(left, builder.mul(distance, _I64(16))), distance)
    _product(builder, 2, 5, 6)
    _product(builder, 3, 5, 7)


@emits(types.none, types.int64, types.int64, types.int64)
def tiles_step_upper(builder: Any, left: Any, distance: Any, right: Any) -> None:  # noqa: ANN401
    """The same for the upper 16 rows only."""
    _load(builder, 4, left, distance)
    _load(builder, 6, right, _I64(64))
    _product(builder, 0, 4, 6)
    _load(builder, 7, builder.add(right, _I64(1024)), _I64(64))
    _product(builder, 1, 4, 7)


def _store(builder: Any, register: int, address: Any, distance: Any) -> None:  # noqa: ANN401
    _emit(builder, "tilestored64", _I8(register), pointer(builder, address, _I8), distance)


@emits(types.none, types.int64, types.int64)
def tiles_store(builder: Any, out: Any, distance: Any) -> None:  # noqa: ANN401
    """Write 32 rows of 32 sums, float32, `distance` bytes apart."""
    lower = builder.add(out, builder.mul(distance, _I64(16)))
    for register, row in ((0, out), (2, lower)):
        _store(builder, register, row, distance)
        _store(builder, register + 1, builder.add(row, _I64(64)), distance)


@emits(types.none, types.int64, types.int64)
def tiles_store_upper(builder: Any, out: Any, distance: Any) -> None:  # noqa: ANN401
    """Write the upper 16 rows only."""
    _store(builder, 0, out, distance)
    _store(builder, 1, builder.add(out, _I64(64)), distance)


def tiles_rows(blocks: int) -> Any:  # noqa: ANN401
    """A product of 16 rows with up to four blocks of 16 columns; see `blocks.multiply`.

    (left, bytes between its rows, right, bytes between its rows, inner words, out, bytes between
    its rows). Uses the registers freely: 0 to 3 for sums, 4 for the left factor.
    """

    @emits(types.none, *[types.int64] * 7)
    def multiply(
        builder: Any,  # noqa: ANN401
        left: Any,  # noqa: ANN401
        left_distance: Any,  # noqa: ANN401
        right: Any,  # noqa: ANN401
        right_distance: Any,  # noqa: ANN401
        words: Any,  # noqa: ANN401
        out: Any,  # noqa: ANN401
        out_distance: Any,  # noqa: ANN401
    ) -> None:
        for block in range(blocks):
            _emit(builder, "tilezero", _I8(block))
        with cgutils.for_range(builder, builder.udiv(words, _I64(16))) as step:
            _load(builder, 4, builder.add(left, builder.mul(step.index, _I64(64))), left_distance)
            down = builder.mul(builder.mul(step.index, _I64(16)), right_distance)
            for block in range(blocks):
                at = builder.add(builder.add(right, down), _I64(64 * block))
                register = 5 + block % 3
                _load(builder, register, at, right_distance)
                _product(builder, block, 4, register)
        for block in range(blocks):
            _store(builder, block, builder.add(out, _I64(64 * block)), out_distance)

    return multiply
