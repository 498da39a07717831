"""Attention over tiles of the context, many rows at a time.

The context of a row is cut into tiles of `TILE` absolute positions. A tile gives each query head a
*part*: the greatest score m, the sum l of exp2(score - m) and the vector of values weighted so.
Parts are folded in the order of positions. What a part is does not depend on which rows are
computed together, and folding in a part whose positions are all hidden changes nothing: so a row's
result depends on the row and its context alone, however the work was divided.

    unit    some rows that see the same slots over a run of tiles, computed together: keys and
            values are read once for all of them
    lane    one query head of one row of a unit; 16 lanes make a vector
    lead    a run that begins at tile 0: its parts are folded at once. Parts of any other run are
            written to memory, and `fold` adds them to the lead's state afterwards.

Source: the parts are those of flash-decoding (Dao et al., 2023), the sharing that of cascade
attention (Ye et al., 2024); fixed tiles and order are what makes results reproducible.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
from numba import cfunc, types

from lmc.runtime.kernels.parallel import Kernel
from lmc.runtime.kernels.vector import (
    add,
    atomic_next,
    below,
    choose,
    div,
    exp2,
    f32_of_bits,
    fma,
    load,
    load_bfloat16,
    load_f32,
    load_i32,
    load_i64,
    mul,
    peak,
    splat,
    splat_at,
    store,
    store_bfloat16,
    store_f32,
    store_i32,
    sub,
)

__all__ = ["HEADER", "TILE", "UNIT_FIELDS", "fold_kernel", "part_kernel", "scratch_bytes"]

TILE = 64  # positions
HEADER = 16  # float32 before the vector of a part: m, l, and the rest unused
UNIT_FIELDS = 7  # int64 of a unit: first, rows, table, length, begin, end, kind

_KERNEL = types.void(types.CPointer(types.int64))
_HIDDEN = -3.0e38  # score of a position that a row does not see
_NOTHING = -1.0e30  # greatest score where no position is seen; finite, so that differences exist


def scratch_bytes(lanes: int, head_dim: int) -> int:
    """Bytes that one thread needs for units of up to `lanes` lanes."""
    blocks = -(-lanes // 16)
    floats = blocks * 16 * (2 * head_dim + 4) + TILE * (2 * head_dim + 16) + 4 * 16
    return 4 * floats + 64 * blocks + 64


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _scores(keys: int, queries: int, scores: int, count: int, size: int) -> None:
    """Products of `count` keys (a multiple of 8) with 16 lanes of queries, summed in order."""
    for first in range(0, count, 8):
        key = keys + first * size * 4
        row = size * 4
        zero = splat(types.float32(0.0))
        s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
        for c in range(size):
            q = load(queries + 64 * c)
            at = key + 4 * c
            s0 = fma(splat_at(at), q, s0)
            s1 = fma(splat_at(at + row), q, s1)
            s2 = fma(splat_at(at + 2 * row), q, s2)
            s3 = fma(splat_at(at + 3 * row), q, s3)
            s4 = fma(splat_at(at + 4 * row), q, s4)
            s5 = fma(splat_at(at + 5 * row), q, s5)
            s6 = fma(splat_at(at + 6 * row), q, s6)
            s7 = fma(splat_at(at + 7 * row), q, s7)
        out = scores + 64 * first
        store(out, s0)
        store(out + 64, s1)
        store(out + 128, s2)
        store(out + 192, s3)
        store(out + 256, s4)
        store(out + 320, s5)
        store(out + 384, s6)
        store(out + 448, s7)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _blend(out: int, vector: Any, new: int, old: int, fresh: bool) -> None:  # noqa: ANN401
    """`out = vector * new + out * old`, or just the vector where it begins a part of its own."""
    if fresh:
        store(out, vector)
    else:
        store(out, fma(vector, splat_at(new), mul(load(out), splat_at(old))))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _weigh(
    weights: int,
    values: int,
    count: int,
    size: int,
    lanes: int,
    out: int,
    new: int,
    old: int,
    fresh: bool,
) -> None:
    """Sums of values weighted by 16 lanes of weights, in the order of positions.

    Lanes are taken by fours, as far as there are any; four lanes times 64 columns fill half of
    the registers of AVX-512.
    """
    row = size * 4
    for lane in range(0, lanes, 4):
        weight = weights + 4 * lane
        target = out + lane * row
        zero = splat(types.float32(0.0))
        whole = size - size % 64
        for c in range(0, whole, 64):
            a0, a1, a2, a3 = zero, zero, zero, zero
            b0, b1, b2, b3 = zero, zero, zero, zero
            c0, c1, c2, c3 = zero, zero, zero, zero
            d0, d1, d2, d3 = zero, zero, zero, zero
            for p in range(count):
                value = values + p * row + 4 * c
                w = weight + 64 * p
                v0, v1 = load(value), load(value + 64)
                v2, v3 = load(value + 128), load(value + 192)
                wa, wb, wc, wd = splat_at(w), splat_at(w + 4), splat_at(w + 8), splat_at(w + 12)
                a0, a1, a2, a3 = fma(wa, v0, a0), fma(wa, v1, a1), fma(wa, v2, a2), fma(wa, v3, a3)
                b0, b1, b2, b3 = fma(wb, v0, b0), fma(wb, v1, b1), fma(wb, v2, b2), fma(wb, v3, b3)
                c0, c1, c2, c3 = fma(wc, v0, c0), fma(wc, v1, c1), fma(wc, v2, c2), fma(wc, v3, c3)
                d0, d1, d2, d3 = fma(wd, v0, d0), fma(wd, v1, d1), fma(wd, v2, d2), fma(wd, v3, d3)
            n, o, t = new + 4 * lane, old + 4 * lane, target + 4 * c
            _blend(t, a0, n, o, fresh)
            _blend(t + 64, a1, n, o, fresh)
            _blend(t + 128, a2, n, o, fresh)
            _blend(t + 192, a3, n, o, fresh)
            n, o, t = n + 4, o + 4, t + row
            _blend(t, b0, n, o, fresh)
            _blend(t + 64, b1, n, o, fresh)
            _blend(t + 128, b2, n, o, fresh)
            _blend(t + 192, b3, n, o, fresh)
            n, o, t = n + 4, o + 4, t + row
            _blend(t, c0, n, o, fresh)
            _blend(t + 64, c1, n, o, fresh)
            _blend(t + 128, c2, n, o, fresh)
            _blend(t + 192, c3, n, o, fresh)
            n, o, t = n + 4, o + 4, t + row
            _blend(t, d0, n, o, fresh)
            _blend(t + 64, d1, n, o, fresh)
            _blend(t + 128, d2, n, o, fresh)
            _blend(t + 192, d3, n, o, fresh)
        for c in range(whole, size, 16):
            a0, b0, c0, d0 = zero, zero, zero, zero
            for p in range(count):
                v0 = load(values + p * row + 4 * c)
                w = weight + 64 * p
                a0, b0 = fma(splat_at(w), v0, a0), fma(splat_at(w + 4), v0, b0)
                c0, d0 = fma(splat_at(w + 8), v0, c0), fma(splat_at(w + 12), v0, d0)
            n, o, t = new + 4 * lane, old + 4 * lane, target + 4 * c
            _blend(t, a0, n, o, fresh)
            _blend(t + row, b0, n + 4, o + 4, fresh)
            _blend(t + 2 * row, c0, n + 8, o + 8, fresh)
            _blend(t + 3 * row, d0, n + 12, o + 12, fresh)


def _parts(half: bool) -> Any:  # noqa: ANN401 - numba has no types
    """Compute the units of a step for one layer; see `part_kernel` for the arguments."""
    width = 2 if half else 4

    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def parts(a: Any) -> None:  # noqa: ANN401
        counter, units, unit_count, order, limits, lows = a[0], a[1], a[2], a[3], a[4], a[5]
        slots, bases, leads, queries, keys, values = a[6], a[7], a[8], a[9], a[10], a[11]
        outs, partials, heads, kv_heads, size = a[12], a[13], a[14], a[15], a[16]
        scale = f32_of_bits(a[17])
        group = heads // kv_heads
        vector = size * 4
        # this thread's scratch memory
        scratch = a[18] + atomic_next(counter + 8) * a[19]
        most = a[20]  # blocks of 16 lanes that scratch has room for
        k32 = scratch
        v32 = k32 + TILE * vector
        scores = v32 + TILE * vector
        new, old = scores + TILE * 64, scores + TILE * 64 + 64
        packed = old + 64
        state = packed + most * 16 * vector
        greatest = state + most * 16 * vector
        sums = greatest + most * 64
        upper = sums + most * 64
        lower = upper + most * 64

        hidden_score = splat(types.float32(_HIDDEN))
        item = atomic_next(counter)
        while item < unit_count * kv_heads:
            unit = units + (item // kv_heads) * (UNIT_FIELDS * 8)
            kv_head = item % kv_heads
            first, rows, table = load_i64(unit), load_i64(unit + 8), load_i64(unit + 16)
            length, begin, end = load_i64(unit + 24), load_i64(unit + 32), load_i64(unit + 40)
            kind = load_i64(unit + 48)  # 0 parts, 1 a lead, 2 a lead that is the whole context
            lanes = rows * group
            blocks = (lanes + 15) // 16
            least_upper, most_lower, least_lower = 1 << 40, 0, 1 << 40
            for block in range(blocks):
                for inner in range(16):
                    lane = block * 16 + inner
                    target = packed + block * 16 * vector + inner * 4
                    if lane < lanes:
                        row = load_i32(order + 4 * (first + lane // group))
                        head = kv_head * group + lane % group
                        query = queries + (row * heads + head) * vector
                        for c in range(size):
                            store_f32(target + 64 * c, load_f32(query + 4 * c) * scale)
                        limit, low = load_i32(limits + 4 * row), load_i32(lows + 4 * row)
                        least_upper, most_lower = min(least_upper, limit), max(most_lower, low)
                        least_lower = min(least_lower, low)
                    else:
                        for c in range(size):
                            store_f32(target + 64 * c, types.float32(0.0))
                        limit, low = 1 << 30, 0
                    store_i32(upper + 4 * lane, limit)
                    store_i32(lower + 4 * lane, low)
                store(greatest + 64 * block, splat(types.float32(_NOTHING)))
                store(sums + 64 * block, splat(types.float32(0.0)))
            if kind != 0:
                for c in range(0, blocks * 16 * size, 16):
                    store(state + 4 * c, splat(types.float32(0.0)))

            for tile in range(begin, end):
                start = tile * TILE
                count = min(TILE, length - start)
                hidden = least_lower >= start + count  # before every row's window
                if hidden and kind != 0:
                    continue
                for p in range(count):
                    slot = load_i32(slots + 4 * (table + start + p))
                    at = (slot * kv_heads + kv_head) * size * width
                    for c in range(0, size, 16):
                        if half:
                            store(k32 + p * vector + 4 * c, load_bfloat16(keys + at + 2 * c))
                            store(v32 + p * vector + 4 * c, load_bfloat16(values + at + 2 * c))
                        else:
                            store(k32 + p * vector + 4 * c, load(keys + at + 4 * c))
                            store(v32 + p * vector + 4 * c, load(values + at + 4 * c))
                eighths = (count + 7) // 8 * 8
                for c in range(count * size, eighths * size, 16):
                    store(k32 + 4 * c, splat(types.float32(0.0)))
                masked = least_upper < start + count or most_lower > start

                for block in range(blocks):
                    here = min(16, lanes - block * 16)
                    _scores(k32, packed + block * 16 * vector, scores, eighths, size)
                    top = splat(types.float32(_NOTHING))
                    if masked:
                        for p in range(count):
                            s = load(scores + 64 * p)
                            seen = below(start + p, upper + 64 * block)
                            s = choose(seen, s, hidden_score)
                            early = below(start + p, lower + 64 * block)
                            s = choose(early, hidden_score, s)
                            store(scores + 64 * p, s)
                            top = peak(top, s)
                    else:
                        for p in range(count):
                            top = peak(top, load(scores + 64 * p))
                    weight = splat(types.float32(0.0))
                    for p in range(count):
                        w = exp2(sub(load(scores + 64 * p), top))
                        store(scores + 64 * p, w)
                        weight = add(weight, w)
                    if kind == 0:
                        _weigh(
                            scores,
                            v32,
                            count,
                            size,
                            here,
                            state + block * 16 * vector,
                            new,
                            old,
                            True,
                        )
                        store(new, top)
                        store(old, weight)
                        for inner in range(here):
                            lane = block * 16 + inner
                            if load_i32(upper + 4 * lane) <= start:
                                continue  # the row ends before this tile and has no part of it
                            row = load_i32(order + 4 * (first + lane // group))
                            head = kv_head * group + lane % group
                            part = load_i32(bases + 4 * row) + 1 + tile - load_i32(leads + 4 * row)
                            target = partials + (part * heads + head) * (size + HEADER) * 4
                            store_f32(target, load_f32(new + 4 * inner))
                            store_f32(target + 4, load_f32(old + 4 * inner))
                            source = state + lane * vector
                            for c in range(0, size, 16):
                                store(target + 4 * (HEADER + c), load(source + 4 * c))
                    else:
                        before = load(greatest + 64 * block)
                        after = peak(before, top)
                        store(greatest + 64 * block, after)
                        store(new, exp2(sub(top, after)))
                        store(old, exp2(sub(before, after)))
                        so_far = mul(load(sums + 64 * block), load(old))
                        store(sums + 64 * block, fma(weight, load(new), so_far))
                        _weigh(
                            scores,
                            v32,
                            count,
                            size,
                            here,
                            state + block * 16 * vector,
                            new,
                            old,
                            False,
                        )

            if kind != 0:
                for lane in range(lanes):
                    row = load_i32(order + 4 * (first + lane // group))
                    head = kv_head * group + lane % group
                    source = state + lane * vector
                    if kind == 2:
                        _finish(
                            source, splat_at(sums + 4 * lane), outs, row * heads + head, size, half
                        )
                    else:
                        part = load_i32(bases + 4 * row)
                        target = partials + (part * heads + head) * (size + HEADER) * 4
                        store_f32(target, load_f32(greatest + 4 * lane))
                        store_f32(target + 4, load_f32(sums + 4 * lane))
                        for c in range(0, size, 16):
                            store(target + 4 * (HEADER + c), load(source + 4 * c))
            item = atomic_next(counter)

    return parts


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _finish(source: int, weight: Any, outs: int, place: int, size: int, half: bool) -> None:  # noqa: ANN401
    """Divide a weighted sum by the sum of its weights and write it to the output."""
    for c in range(0, size, 16):
        y = div(load(source + 4 * c), weight)
        if half:
            store_bfloat16(outs + (place * size + c) * 2, y)
        else:
            store(outs + (place * size + c) * 4, y)


def _fold(half: bool) -> Any:  # noqa: ANN401
    """Fold the parts of rows whose lead was not the whole; see `fold_kernel`."""

    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def fold(a: Any) -> None:  # noqa: ANN401
        counter, rows, row_count, bases, counts = a[0], a[1], a[2], a[3], a[4]
        outs, partials, heads, size = a[5], a[6], a[7], a[8]
        stride = (size + HEADER) * 4
        item = atomic_next(counter)
        while item < row_count * heads:
            row = load_i32(rows + 4 * (item // heads))
            head = item % heads
            state = partials + (load_i32(bases + 4 * row) * heads + head) * stride
            top, weight = splat_at(state), splat_at(state + 4)
            for part in range(1, load_i32(counts + 4 * row)):
                source = state + part * heads * stride
                after = peak(top, splat_at(source))
                new, old = exp2(sub(splat_at(source), after)), exp2(sub(top, after))
                weight = fma(splat_at(source + 4), new, mul(weight, old))
                top = after
                for c in range(0, size, 16):
                    at = 4 * (HEADER + c)
                    store(state + at, fma(load(source + at), new, mul(load(state + at), old)))
            _finish(state + 4 * HEADER, weight, outs, row * heads + head, size, half)
            item = atomic_next(counter)

    return fold


@cache
def _compiled(name: str, half: bool) -> Any:  # noqa: ANN401
    return {"parts": _parts, "fold": _fold}[name](half)


def part_kernel(half: bool) -> Kernel:
    """The kernel over units, for keys, values and outputs in bfloat16 (`half`) or float32.

    Arguments: units int64 (count, UNIT_FIELDS), their count, order int32 (rows of the units),
    limits and lows int32 (per row: one past the last position it sees, and the first), slots int32
    (the tables of the units), bases and leads int32 (per row: its first part, tiles of its lead),
    queries float32 (rows, heads, head_dim), keys and values (slots, kv_heads, head_dim), out (rows,
    heads, head_dim), partials float32, heads, kv_heads, head_dim, bits of the factor on scores
    (log2(e) included), scratch, its bytes a thread, blocks of 16 lanes it has room for.
    """
    return Kernel(_compiled("parts", half), 20)


def fold_kernel(half: bool) -> Kernel:
    """The kernel that folds the parts of rows.

    Arguments: rows int32, their count, bases and counts int32 (per row: first part, parts), out,
    partials, heads, head_dim.
    """
    return Kernel(_compiled("fold", half), 8)
