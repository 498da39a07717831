"""Small matrix products and rearrangements in a thread's scratch memory, for attention.

A *word* is 32 bits: one float32, or a pair of bfloat16 that are neighbours along the inner axis.
All three ways to multiply take the left factor as rows of words, the right one as one row of
columns for each inner word, and add up in the order of the inner words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types

from lmc.runtime.kernels.amx import tiles_rows
from lmc.runtime.kernels.vector import (
    VECTOR,
    accumulators,
    dot_bfloat16,
    emits,
    load_pairs,
    load_vector,
    loop,
    multiply_add,
    offset,
    pair_at,
    pointer,
    spread_at,
)

__all__ = ["TILE", "multiply", "pair_rows", "transpose", "transpose_widening"]

TILE = 64  # positions, and columns that are computed together

_I64 = ir.IntType(64)
_WORDS = ir.VectorType(ir.IntType(32), 16)
_HALVES = ir.VectorType(ir.IntType(16), 16)
_Emit = Any  # llvmlite ships no types


def _block(name: str, lanes: int, vectors: int) -> Any:  # noqa: ANN401
    """Emit `lanes` rows times `16 * vectors` columns; the arguments are those of `multiply`."""

    @emits(types.none, *[types.int64] * 7)
    def block(
        builder: _Emit,
        left: _Emit,
        left_distance: _Emit,
        right: _Emit,
        right_distance: _Emit,
        words: _Emit,
        out: _Emit,
        out_distance: _Emit,
    ) -> None:
        held = accumulators(builder, lanes * vectors)
        rows = [builder.add(left, builder.mul(left_distance, _I64(r))) for r in range(lanes)]
        with loop(builder, words) as word:
            at = builder.add(right, builder.mul(word.index, right_distance))
            places = [builder.add(at, _I64(64 * v)) for v in range(vectors)]
            load = load_pairs if name == "dot" else load_vector
            columns = [load(builder, place) for place in places]
            for r, row in enumerate(rows):
                here = offset(builder, row, word.index, 4)
                number = (pair_at if name == "dot" else spread_at)(builder, here)
                for v, column in enumerate(columns):
                    slot = held[r * vectors + v]
                    so_far = builder.load(slot)
                    if name == "dot":
                        value = dot_bfloat16(builder, so_far, number, column)
                    else:
                        value = multiply_add(builder, number, column, so_far)
                    builder.store(value, slot)
        for i, slot in enumerate(held):
            row = builder.add(out, builder.mul(out_distance, _I64(i // vectors)))
            target = pointer(builder, builder.add(row, _I64(64 * (i % vectors))), VECTOR)
            builder.store(builder.load(slot), target, align=4)

    return block


_AMX_FOUR, _AMX_ONE = tiles_rows(4), tiles_rows(1)
_DOT_FOUR, _DOT_ONE = _block("dot", 4, 4), _block("dot", 4, 1)
_FMA_FOUR, _FMA_ONE = _block("fma", 4, 4), _block("fma", 4, 1)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def multiply(
    tiled: bool, pairs: bool, left: int, left_distance: int, right: int, right_distance: int,
    words: int, rows: int, columns: int, out: int, out_distance: int,
) -> None:  # fmt: skip
    """A product of 16 rows or fewer, with tile registers, of pairs of bfloat16, or of float32.

    `words` counts the inner words; the other arguments are addresses, bytes between rows, and
    counts. Rows are computed by fours (`tiled`: sixteen), so that the last ones may be padding;
    columns are a multiple of 16, and so are the words if `tiled`.
    """
    whole = columns // 64 * 64
    for row in range(0, rows, 16 if tiled else 4):
        source, target = left + row * left_distance, out + row * out_distance
        for c in range(0, whole, 64):
            b, t = right + 4 * c, target + 4 * c
            if tiled:
                _AMX_FOUR(source, left_distance, b, right_distance, words, t, out_distance)
            elif pairs:
                _DOT_FOUR(source, left_distance, b, right_distance, words, t, out_distance)
            else:
                _FMA_FOUR(source, left_distance, b, right_distance, words, t, out_distance)
        for c in range(whole, columns, 16):
            b, t = right + 4 * c, target + 4 * c
            if tiled:
                _AMX_ONE(source, left_distance, b, right_distance, words, t, out_distance)
            elif pairs:
                _DOT_ONE(source, left_distance, b, right_distance, words, t, out_distance)
            else:
                _FMA_ONE(source, left_distance, b, right_distance, words, t, out_distance)


def _transposer(widen: bool) -> Callable[..., None]:
    """Transpose 16 rows of 16 words: (addresses, base, out).

    The rows lie at `base` plus the 16 int64 at `addresses`, in bytes; with `widen` they are
    bfloat16, which become float32. The 16 rows of the result lie `4 * TILE` bytes apart.
    """

    @emits(types.none, types.int64, types.int64, types.int64)
    def transposed(builder: _Emit, addresses: _Emit, base: _Emit, out: _Emit) -> None:
        rows = []
        for r in range(16):
            place = pointer(builder, builder.add(addresses, _I64(8 * r)), _I64)
            at = builder.add(base, builder.load(place, align=8))
            if widen:
                half = builder.load(pointer(builder, at, _HALVES), align=2)
                sixteen = ir.Constant(_WORDS, [16] * 16)
                rows.append(builder.shl(builder.zext(half, _WORDS), sixteen))
            else:
                rows.append(builder.load(pointer(builder, at, _WORDS), align=4))
        size = 1
        while size < 16:  # swap the off-diagonal squares of ever greater size
            upper = [j if j & size == 0 else 16 + j - size for j in range(16)]
            lower = [j + size if j & size == 0 else 16 + j for j in range(16)]
            for i in range(16):
                if i & size == 0:
                    a, b = rows[i], rows[i + size]
                    rows[i] = builder.shuffle_vector(a, b, ir.Constant(_WORDS, upper))
                    rows[i + size] = builder.shuffle_vector(a, b, ir.Constant(_WORDS, lower))
            size *= 2
        for r, row in enumerate(rows):
            target = pointer(builder, builder.add(out, _I64(4 * TILE * r)), _WORDS)
            builder.store(row, target, align=4)

    made: Callable[..., None] = transposed
    return made


transpose, transpose_widening = _transposer(widen=False), _transposer(widen=True)


@emits(types.none, types.int64, types.int64, types.int64)
def pair_rows(builder: _Emit, first: _Emit, second: _Emit, out: _Emit) -> None:
    """Put 16 bfloat16 of two rows together as 16 words."""
    low, high = (
        builder.zext(builder.load(pointer(builder, at, _HALVES), align=2), _WORDS)
        for at in (first, second)
    )
    word = builder.or_(low, builder.shl(high, ir.Constant(_WORDS, [16] * 16)))
    builder.store(word, pointer(builder, out, _WORDS), align=4)
