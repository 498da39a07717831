"""Matrix products with packed weights, and what is done with each sum before it leaves the cache.

`x W^T` is computed in strips of 32 columns: all inner positions of a strip lie together, so that a
product of few rows reads its weights in one stream. A sum is added up over the inner positions in
order, by one of three kernels: "amx" (bfloat16, tile registers), "dot" (bfloat16, AVX-512 BF16) and
"fma" (float32, any processor). How many rows there are decides only how often a strip is used, so a
row's result depends on its own numbers alone.

    write   out = x W^T + b, float32
    add     out += x W^T, float32: the residual stream
    gate    out = silu(g) * u in the type of x, where strips hold 16 columns g and 16 columns u
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding
import numba
import torch
from llvmlite import ir
from numba import cfunc, types

from lmc.runtime.kernels import SOURCES, amx
from lmc.runtime.kernels.amx import (
    tiles_begin,
    tiles_clear,
    tiles_end,
    tiles_step,
    tiles_step_upper,
    tiles_store,
    tiles_store_upper,
)
from lmc.runtime.kernels.codes import RUN_BYTES, decode_eight, decode_four
from lmc.runtime.kernels.parallel import Kernel, Team
from lmc.runtime.kernels.vector import (
    VECTOR,
    accumulators,
    add,
    atomic_next,
    div,
    dot_bfloat16,
    emits,
    exp2,
    load,
    load_pairs,
    load_vector,
    loop,
    mul,
    multiply_add,
    offset,
    pair_at,
    pointer,
    splat,
    spread_at,
    store,
    store_bfloat16,
)

__all__ = ["ADD", "GATE", "ROWS_READ", "STRIP", "WRITE", "Product", "pack", "usable"]

STRIP = 32  # columns computed together
ROWS_READ = 32  # x is read up to the next multiple of so many rows
WRITE, ADD, GATE = 0, 1, 2

_I64 = ir.IntType(64)
_KERNEL = types.void(types.CPointer(types.int64))
_MINUS_LOG2E = -1.4426950408889634
_FOUR_BYTES, _EIGHT_BYTES = RUN_BYTES[4], RUN_BYTES[8]
_SUMS = STRIP * ROWS_READ * 4  # bytes of a block of sums
RUN = 64  # inner positions added up by themselves in float32: short sums round less
ROWS_PER_ITEM = 128  # what one thread takes at a time, of a strip


@cache
def usable() -> tuple[str, ...]:
    """The kernels that this processor can run, the fastest first."""
    found = []
    if amx.available():
        found.append("amx")
    if llvmlite.binding.get_host_cpu_features().get("avx512bf16"):
        found.append("dot")
    return (*found, "fma")


def pack(weight: torch.Tensor) -> torch.Tensor:
    """A weight (columns, inner) in the order in which the kernels read it.

    Args:
        weight: bfloat16 with inner a multiple of 32, for "amx" and "dot": in tiles of 16 columns
            and 32 inner positions, positions in pairs; or float32, for "fma": inner positions of 32
            columns. Columns are a multiple of 16; a last half strip is filled up with zeros.
    """
    columns, inner = weight.shape
    if columns % STRIP:
        weight = torch.cat([weight, weight.new_zeros(STRIP - columns % STRIP, inner)])
    strips = len(weight) // STRIP
    if weight.dtype == torch.bfloat16:
        tiles = weight.view(strips, 2, 16, inner // 32, 16, 2)
        return tiles.permute(0, 3, 1, 4, 2, 5).contiguous()
    return weight.view(strips, STRIP, inner).transpose(1, 2).contiguous()


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _sums_amx(x: int, weights: int, rows: int, inner: int, sums: int) -> None:
    tiles_clear(0)
    distance = inner * 2
    if rows > 16:
        for k in range(inner // 32):
            tiles_step(x + k * 64, distance, weights + k * 2048)
        tiles_store(sums, STRIP * 4)
    else:
        for k in range(inner // 32):
            tiles_step_upper(x + k * 64, distance, weights + k * 2048)
        tiles_store_upper(sums, STRIP * 4)


def _sum_address(builder: Any, sums: Any, index: int) -> Any:  # noqa: ANN401
    """Where the vector `index` of a block of sums lies: two vectors to a row."""
    return builder.add(sums, _I64(index // 2 * STRIP * 4 + index % 2 * 64))


def _store_block(builder: Any, held: list[Any], sums: Any) -> None:  # noqa: ANN401
    for i, slot in enumerate(held):
        target = pointer(builder, _sum_address(builder, sums, i), VECTOR)
        builder.store(builder.load(slot), target, align=4)


def _dot_block(rows: int) -> Any:  # noqa: ANN401
    """Sums of `rows` rows and a strip: (x, bytes between rows, weights, inner, sums)."""

    @emits(types.none, types.int64, types.int64, types.int64, types.int64, types.int64)
    def block(builder: Any, x: Any, distance: Any, weights: Any, inner: Any, sums: Any) -> None:  # noqa: ANN401
        held = accumulators(builder, 2 * rows)
        starts = [builder.add(x, builder.mul(distance, _I64(r))) for r in range(rows)]
        with loop(builder, builder.udiv(inner, _I64(32))) as tile:
            tiles = offset(builder, weights, tile.index, 2048)
            inside = builder.mul(tile.index, _I64(64))
            with loop(builder, 16) as pair:
                w = offset(builder, tiles, pair.index, 64)
                columns = [load_pairs(builder, w), load_pairs(builder, builder.add(w, _I64(1024)))]
                at = offset(builder, inside, pair.index, 4)
                for r in range(rows):
                    number = pair_at(builder, builder.add(starts[r], at))
                    for c in range(2):
                        slot = held[2 * r + c]
                        builder.store(
                            dot_bfloat16(builder, builder.load(slot), number, columns[c]), slot
                        )
        _store_block(builder, held, sums)

    return block


def _fma_block(rows: int) -> Any:  # noqa: ANN401
    """Sums of `rows` rows and a strip: (x, bytes between rows, weights, inner, sums)."""

    @emits(types.none, types.int64, types.int64, types.int64, types.int64, types.int64)
    def block(builder: Any, x: Any, distance: Any, weights: Any, inner: Any, sums: Any) -> None:  # noqa: ANN401
        starts = [builder.add(x, builder.mul(distance, _I64(r))) for r in range(rows)]
        _store_block(builder, accumulators(builder, 2 * rows), sums)
        runs = builder.udiv(builder.add(inner, _I64(RUN - 1)), _I64(RUN))
        with loop(builder, runs) as run:
            first = builder.mul(run.index, _I64(RUN))
            rest = builder.sub(inner, first)
            short = builder.icmp_signed("<", rest, _I64(RUN))
            held = accumulators(builder, 2 * rows)
            with loop(builder, builder.select(short, rest, _I64(RUN))) as inside:
                place = builder.add(first, inside.index)
                w = offset(builder, weights, place, STRIP * 4)
                columns = [load_vector(builder, w), load_vector(builder, builder.add(w, _I64(64)))]
                for r in range(rows):
                    number = spread_at(builder, offset(builder, starts[r], place, 4))
                    for c in range(2):
                        slot = held[2 * r + c]
                        builder.store(
                            multiply_add(builder, number, columns[c], builder.load(slot)), slot
                        )
            for i, slot in enumerate(held):
                so_far = load_vector(builder, _sum_address(builder, sums, i))
                builder.store(builder.fadd(so_far, builder.load(slot)), slot)
            _store_block(builder, held, sums)

    return block


_DOT_EIGHT, _DOT_FOUR, _DOT_TWO, _DOT_ONE = (_dot_block(rows) for rows in (8, 4, 2, 1))
_FMA_EIGHT, _FMA_FOUR, _FMA_TWO, _FMA_ONE = (_fma_block(rows) for rows in (8, 4, 2, 1))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _sums_dot(x: int, weights: int, rows: int, inner: int, sums: int) -> None:
    distance = inner * 2
    row = 0
    while row < rows:
        source, target, left = x + row * distance, sums + row * STRIP * 4, rows - row
        if left >= 8:
            _DOT_EIGHT(source, distance, weights, inner, target)
            row += 8
        elif left > 2:
            _DOT_FOUR(source, distance, weights, inner, target)
            row += 4
        elif left == 2:
            _DOT_TWO(source, distance, weights, inner, target)
            row += 2
        else:
            _DOT_ONE(source, distance, weights, inner, target)
            row += 1


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _sums_fma(x: int, weights: int, rows: int, inner: int, sums: int) -> None:
    distance = inner * 4
    row = 0
    while row < rows:
        source, target, left = x + row * distance, sums + row * STRIP * 4, rows - row
        if left >= 8:
            _FMA_EIGHT(source, distance, weights, inner, target)
            row += 8
        elif left > 2:
            _FMA_FOUR(source, distance, weights, inner, target)
            row += 4
        elif left == 2:
            _FMA_TWO(source, distance, weights, inner, target)
            row += 2
        else:
            _FMA_ONE(source, distance, weights, inner, target)
            row += 1


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _leave(
    sums: int,
    kind: int,
    bias: int,
    rows: int,
    row: int,
    column: int,
    columns: int,
    out: int,
    half: bool,
) -> None:
    """Do with a block of sums what its kind says."""
    if kind == GATE:
        one, factor = splat(types.float32(1.0)), splat(types.float32(_MINUS_LOG2E))
        for r in range(rows):
            g, u = load(sums + r * STRIP * 4), load(sums + r * STRIP * 4 + 64)
            y = mul(div(g, add(one, exp2(mul(g, factor)))), u)
            at = (row + r) * (columns // 2) + column // 2
            if half:
                store_bfloat16(out + at * 2, y)
            else:
                store(out + at * 4, y)
        return
    for c in range(0, min(STRIP, columns - column), 16):
        for r in range(rows):
            y = load(sums + (r * STRIP + c) * 4)
            target = out + ((row + r) * columns + column + c) * 4
            if kind == ADD:
                y = add(load(target), y)
            elif bias != 0:
                y = add(y, load(bias + (column + c) * 4))
            store(target, y)


def _make(name: str) -> Any:  # noqa: ANN401 - numba has no types
    half, width = (True, 2) if name != "fma" else (False, 4)
    tiled = name == "amx"

    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def product(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        counter, x, weights, bias, out = a[0], a[1], a[2], a[3], a[4]
        rows, columns, inner, kind, bits = a[5], a[6], a[7], a[8], a[9]
        place = atomic_next(counter + 8)
        sums, decoded = a[10] + place * _SUMS, a[11] + place * a[12]
        if tiled:
            tiles_begin(a[13])
        strips = (columns + STRIP - 1) // STRIP
        pieces = (rows + ROWS_PER_ITEM - 1) // ROWS_PER_ITEM
        item = atomic_next(counter)
        while item < strips * pieces:
            strip, first = item // pieces, (item % pieces) * ROWS_PER_ITEM
            if half and bits != 0:
                source = decoded
                _decode(bits, weights, strip, inner, decoded)
            else:
                source = weights + strip * STRIP * inner * width
            for row in range(first, min(rows, first + ROWS_PER_ITEM), ROWS_READ):
                some = min(ROWS_READ, rows - row)
                here = x + row * inner * width
                if tiled:
                    _sums_amx(here, source, some, inner, sums)
                elif half:
                    _sums_dot(here, source, some, inner, sums)
                else:
                    _sums_fma(here, source, some, inner, sums)
                _leave(sums, kind, bias, some, row, strip * STRIP, columns, out, half)
            item = atomic_next(counter)
        if tiled:
            tiles_end(0)

    return product


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _decode(bits: int, codes: int, strip: int, inner: int, out: int) -> None:
    """A strip of coded weights, as `pack` lays it out."""
    runs = inner // 32
    if bits == 4:
        for run in range(runs):
            decode_four(codes + (strip * runs + run) * _FOUR_BYTES, out + run * 2048)
    else:
        for run in range(runs):
            decode_eight(codes + (strip * runs + run) * _EIGHT_BYTES, out + run * 2048)


@cache
def _compiled(name: str) -> Any:  # noqa: ANN401
    return _make(name)


class Product:
    """One of the kernels, with memory for its threads' sums and decoded strips."""

    def __init__(self, name: str, team: Team) -> None:
        self.name = name
        self._kernel = Kernel(_compiled(name), 13, team)
        self._threads = team.threads
        self._sums = torch.zeros(team.threads * _SUMS, dtype=torch.uint8)
        self._decoded = torch.zeros(0, dtype=torch.uint8)
        self._strip_bytes = 0
        self._config = amx.configuration()

    def make_room(self, inner: int) -> None:
        """Make room for decoded strips of up to so many inner positions."""
        if inner * STRIP * 2 > self._strip_bytes:
            self._strip_bytes = inner * STRIP * 2
            self._decoded = torch.zeros(self._threads * self._strip_bytes, dtype=torch.uint8)

    def __call__(
        self,
        x: int,
        weights: int,
        bias: int,
        out: int,
        rows: int,
        columns: int,
        inner: int,
        kind: int,
        bits: int = 0,
    ) -> None:
        """Compute a product.

        Addresses, counts, then WRITE, ADD or GATE; `bits` is 0 for packed weights, 4 or 8 for coded
        ones, which need room.
        """
        self._kernel(
            x, weights, bias, out, rows, columns, inner, kind, bits, self._sums.data_ptr(),
            self._decoded.data_ptr(), self._strip_bytes, self._config.data_ptr(),
        )  # fmt: skip
