"""Weights that need fewer bits, without changing one of them.

A product of few rows waits for memory: it is as fast as its weights can be read. Weights of a
quantized file are few numbers: in each block of 32 inner positions, `scale * q + least` with 16
values of q (4 bits), or `scale * q` with 255 (8 bits). `encode` finds such numbers, checks that
each of them rounds to the very bfloat16 that the weight itself rounds to, and gives up otherwise.
So a kernel may read either form, and results are the same bits.

A strip (32 columns) is coded in runs of 32 inner positions, in the order in which it is decoded:

    4 bits   two tiles of 256 bytes: for each pair of positions, 16 columns, both q in a byte;
             then for each tile 16 scales and 16 least values, float16
    8 bits   two tiles of 512 bytes: for each pair of positions, 16 columns of the first, 16 of the
             second, int8; then for each tile 16 scales, float16
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import types

from lmc.runtime.kernels.vector import VECTOR, emits, loop, multiply_add, offset, pointer

__all__ = ["BLOCK", "RUN_BYTES", "Codes", "decode_eight", "decode_four", "encode"]

BLOCK = 32  # inner positions with a scale of their own
RUN_BYTES = {4: 2 * 256 + 2 * 2 * 32, 8: 2 * 512 + 2 * 32}  # of a strip and 32 inner positions
_STRIP = 32

_I64 = ir.IntType(64)
_WORDS = ir.VectorType(ir.IntType(32), 16)
_BYTES = ir.VectorType(ir.IntType(8), 16)
_HALVES = ir.VectorType(ir.HalfType(), 16)
_ROUNDED = ir.VectorType(ir.IntType(16), 32)
_Emit = Any  # llvmlite ships no types

_Floats = npt.NDArray[np.float32]
_Words = npt.NDArray[np.uint32]
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Codes:
    """A coded weight: 4 or 8 bits, and uint8 (strips, inner / 32, RUN_BYTES)."""

    bits: int
    data: torch.Tensor


def encode(weight: torch.Tensor) -> Codes | None:
    """Code a weight, or give None if that cannot be done without loss.

    Args:
        weight: float32 (columns, inner), inner a multiple of 32, columns a multiple of 16.
    """
    values = weight.numpy()
    if len(values) % _STRIP:
        short = np.zeros((_STRIP - len(values) % _STRIP, values.shape[1]), np.float32)
        values = np.concatenate([values, short])
    least, greatest = _extremes(values)
    ends = np.maximum(greatest, -least)
    with np.errstate(over="ignore"):  # numbers too great for float16 are infinite, and not equal
        trials = ((4, (greatest - least) / 15, least), (8, ends / 127, np.zeros_like(least)))
        for bits, scale, base in trials:
            scales, bases = scale.astype(np.float16), base.astype(np.float16)
            shape = (len(values) // _STRIP, values.shape[1] // BLOCK, RUN_BYTES[bits])
            data = np.zeros(shape, np.uint8)
            exact = _fill(
                values, values.view(np.uint32), scales.astype(np.float32),
                bases.astype(np.float32), bits, data,
            )  # fmt: skip
            if exact:
                _append_scales(data, scales, bases if bits == 4 else None)
                return Codes(bits, torch.from_numpy(data))
    return None


def _append_scales(
    data: _Bytes, scales: npt.NDArray[np.float16], bases: npt.NDArray[np.float16] | None
) -> None:
    """Write the scales of each run after its numbers."""

    def by_tile(x: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
        # (columns, blocks) -> (strips, blocks, tiles, columns of a tile)
        return x.reshape(-1, 2, 16, x.shape[1]).transpose(0, 3, 1, 2)

    parts = [by_tile(scales)] if bases is None else [by_tile(scales), by_tile(bases)]
    held = np.ascontiguousarray(np.stack(parts, axis=3))  # (strips, blocks, tiles, parts, 16)
    raw = held.view(np.uint8).reshape(*data.shape[:2], -1)
    data[:, :, data.shape[2] - raw.shape[2] :] = raw


@numba.njit(cache=True, nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def _extremes(values: _Floats) -> tuple[_Floats, _Floats]:
    """The least and the greatest of each block."""
    columns, inner = values.shape
    least = np.empty((columns, inner // BLOCK), np.float32)
    greatest = np.empty_like(least)
    for c in range(columns):
        for b in range(inner // BLOCK):
            low = high = values[c, b * BLOCK]
            for k in range(b * BLOCK, (b + 1) * BLOCK):
                low, high = min(low, values[c, k]), max(high, values[c, k])
            least[c, b], greatest[c, b] = low, high
    return least, greatest


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fill(
    values: _Floats, words: _Words, scales: _Floats, bases: _Floats, bits: int, data: _Bytes
) -> bool:
    """Write the numbers of all runs; whether all of them stand for the right bfloat16."""
    columns, inner = values.shape
    low, high = (0, 15) if bits == 4 else (-127, 127)
    coded = np.empty(BLOCK, np.int32)
    back = np.empty(BLOCK, np.float32)
    back_words = back.view(np.uint32)
    half, one = np.uint32(0x7FFF), np.uint32(1)
    sixteen, exponent = np.uint32(16), np.uint32(0x7F800000)
    for c in range(columns):
        strip, tile, lane = c // 32, c % 32 // 16, c % 16
        for b in range(inner // BLOCK):
            scale, base = scales[c, b], bases[c, b]
            inverse = np.float32(1.0) / scale if scale != 0 else np.float32(0.0)
            first = b * BLOCK
            for k in range(BLOCK):
                q = np.rint((values[c, first + k] - base) * inverse)
                q = min(max(q, np.float32(low)), np.float32(high))
                coded[k] = np.int32(q)
                back[k] = scale * q + base  # the product is exact: so this is what `fma` gives
            wrong = np.uint32(0)
            for k in range(BLOCK):
                x, y = words[c, first + k], back_words[k]
                if x & exponent == exponent:
                    return False  # infinite or not a number
                x = (x + half + ((x >> sixteen) & one)) >> sixteen
                y = (y + half + ((y >> sixteen) & one)) >> sixteen
                wrong |= x ^ y
            if wrong != 0:
                return False
            for pair in range(BLOCK // 2):
                even, odd = coded[2 * pair], coded[2 * pair + 1]
                if bits == 4:
                    data[strip, b, tile * 256 + pair * 16 + lane] = even | (odd << 4)
                else:
                    at = tile * 512 + pair * 32 + lane
                    data[strip, b, at] = np.uint8(even & 255)
                    data[strip, b, at + 16] = np.uint8(odd & 255)
    return True


_ROUND_TWO = ir.FunctionType(_ROUNDED, [VECTOR, VECTOR])


def _store_pairs(builder: _Emit, even: _Emit, odd: _Emit, out: _Emit) -> None:
    """Round two vectors to bfloat16 and store them as pairs; needs AVX-512 BF16."""
    assembly = ir.InlineAsm(_ROUND_TWO, "vcvtne2ps2bf16 $2, $1, $0", "=v,v,v", side_effect=False)
    both = builder.call(assembly, [odd, even])  # the second operand becomes the lower half
    order = [i // 2 + 16 * (i % 2) for i in range(32)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), 32), order)
    pairs = builder.shuffle_vector(both, ir.Constant(_ROUNDED, ir.Undefined), mask)
    builder.store(pairs, pointer(builder, out, _ROUNDED), align=2)


def _scale_at(builder: _Emit, address: _Emit) -> _Emit:
    return builder.fpext(builder.load(pointer(builder, address, _HALVES), align=2), VECTOR)


@emits(types.none, types.int64, types.int64)
def decode_four(builder: _Emit, codes: _Emit, out: _Emit) -> None:
    """Decode a run of 4 bits into two tiles as `products.pack` lays them out."""
    fifteen, four = (ir.Constant(_WORDS, [n] * 16) for n in (15, 4))
    for tile in range(2):
        scales = builder.add(codes, _I64(512 + 64 * tile))
        scale, base = _scale_at(builder, scales), _scale_at(builder, builder.add(scales, _I64(32)))
        with loop(builder, 16) as pair:
            source = offset(builder, builder.add(codes, _I64(256 * tile)), pair.index, 16)
            both = builder.zext(builder.load(pointer(builder, source, _BYTES), align=1), _WORDS)
            even, odd = (
                multiply_add(builder, builder.sitofp(q, VECTOR), scale, base)
                for q in (builder.and_(both, fifteen), builder.lshr(both, four))
            )
            target = offset(builder, builder.add(out, _I64(1024 * tile)), pair.index, 64)
            _store_pairs(builder, even, odd, target)


@emits(types.none, types.int64, types.int64)
def decode_eight(builder: _Emit, codes: _Emit, out: _Emit) -> None:
    """Decode a run of 8 bits into two tiles as `products.pack` lays them out."""
    for tile in range(2):
        scale = _scale_at(builder, builder.add(codes, _I64(1024 + 32 * tile)))
        with loop(builder, 16) as pair:
            source = offset(builder, builder.add(codes, _I64(512 * tile)), pair.index, 32)
            even, odd = (
                builder.fmul(
                    builder.sitofp(
                        builder.sext(builder.load(pointer(builder, at, _BYTES), align=1), _WORDS),
                        VECTOR,
                    ),
                    scale,
                )
                for at in (source, builder.add(source, _I64(16)))
            )
            target = offset(builder, builder.add(out, _I64(1024 * tile)), pair.index, 64)
            _store_pairs(builder, even, odd, target)
