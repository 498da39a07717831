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

from lmc.runtime.kernels import SOURCES
from lmc.runtime.kernels.amx import tiles_begin, tiles_end
from lmc.runtime.kernels.blocks import TILE, multiply, pair_rows, transpose, transpose_widening
from lmc.runtime.kernels.parallel import Kernel, Team
from lmc.runtime.kernels.vector import (
    add,
    atomic_next,
    between,
    choose,
    div,
    exp2_falling,
    f32_of_bits,
    fma,
    load,
    load_bfloat16,
    load_f32,
    load_i32,
    load_i64,
    mul,
    peak,
    prefetch,
    splat,
    splat_at,
    store,
    store_bfloat16,
    store_f32,
    store_i64,
    sub,
    top,
    total,
)

__all__ = ["HEADER", "TILE", "UNIT_FIELDS", "fold_kernel", "part_kernel", "scratch_bytes"]

HEADER = 16  # float32 before the vector of a part: m, l, and the rest unused
UNIT_FIELDS = 7  # int64 of a unit: first, rows, table, length, begin, end, kind

_KERNEL = types.void(types.CPointer(types.int64))
_HIDDEN = -3.0e38  # score of a position that a row does not see
_NOTHING = -1.0e30  # greatest score where no position is seen; finite, so that differences exist


_exp2_short, _exp2_long = exp2_falling(5), exp2_falling(7)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _exp2(short: bool, x: Any) -> Any:  # noqa: ANN401
    """Good enough for weights that are rounded to bfloat16, or for float32."""
    if short:
        return _exp2_short(x)
    return _exp2_long(x)


def scratch_bytes(lanes: int, head_dim: int) -> int:
    """Bytes that one thread needs for units of up to `lanes` lanes."""
    blocks = -(-lanes // 16)
    a_lane = 8 * head_dim + 8 + 16  # query and state, greatest and sum, limit and low
    a_tile = TILE * 8 * head_dim + 16 * 8 * TILE + 16 * 4 * head_dim + 8 * TILE + 4 * 64
    return blocks * 16 * a_lane + a_tile + 64


def _parts(name: str, half: bool) -> Any:  # noqa: ANN401 - numba has no types
    """Compute the units of a step for one layer; see `part_kernel` for the arguments."""
    width = 2 if half else 4
    pairs = name != "fma"  # words are pairs of bfloat16
    tiled = name == "amx"
    number = 2 if pairs else 4  # bytes of a number of a query or weight

    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def parts(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        counter, units, unit_count, order, limits, lows = a[0], a[1], a[2], a[3], a[4], a[5]
        slots, bases, leads, queries, keys, values = a[6], a[7], a[8], a[9], a[10], a[11]
        outs, partials, heads, kv_heads, size = a[12], a[13], a[14], a[15], a[16]
        scale = splat(f32_of_bits(a[17]))
        group = heads // kv_heads
        vector = size * 4
        words = size * number // 4
        # this thread's scratch memory
        most = a[20]  # blocks of 16 lanes that there is room for
        k_tile = a[18] + atomic_next(counter + 8) * a[19]  # one row of positions for each word
        v_tile = k_tile + TILE * vector  # one row of columns for each word of positions
        scores = v_tile + TILE * vector  # float32 (16, TILE)
        weights = scores + 16 * 4 * TILE  # (16, TILE), in words
        product = weights + 16 * 4 * TILE  # float32 (16, size)
        places = product + 16 * vector  # int64 (TILE,): where the rows of the tile lie in a pool
        tops = places + 8 * TILE  # float32 (16,), as are the next three
        sums, new, old = tops + 64, tops + 128, tops + 192
        packed = tops + 256  # queries, (blocks, 16, size), in words
        state = packed + most * 16 * vector
        greatest = state + most * 16 * vector
        weight = greatest + most * 64
        bounds = weight + most * 64  # int64 (blocks, 16, 2): low and limit
        if tiled:
            tiles_begin(a[21])
        zero, nothing = splat(types.float32(0.0)), splat(types.float32(_NOTHING))
        hidden = splat(types.float32(_HIDDEN))

        item = atomic_next(counter)
        while item < unit_count * kv_heads:
            unit = units + (item // kv_heads) * (UNIT_FIELDS * 8)
            kv_head = item % kv_heads
            first, rows, table = load_i64(unit), load_i64(unit + 8), load_i64(unit + 16)
            length, begin, end = load_i64(unit + 24), load_i64(unit + 32), load_i64(unit + 40)
            kind = load_i64(unit + 48)  # 0 parts, 1 a lead, 2 a lead that is the whole context
            lanes = rows * group
            blocks = (lanes + 15) // 16
            least_limit, most_low, least_low = 1 << 40, 0, 1 << 40
            for lane in range(blocks * 16):
                target = packed + lane * size * number
                if lane < lanes:
                    row = load_i32(order + 4 * (first + lane // group))
                    query = queries + (row * heads + kv_head * group + lane % group) * vector
                    for c in range(0, size, 16):
                        if pairs:
                            store_bfloat16(target + 2 * c, mul(load(query + 4 * c), scale))
                        else:
                            store(target + 4 * c, mul(load(query + 4 * c), scale))
                    limit, low = load_i32(limits + 4 * row), load_i32(lows + 4 * row)
                    store_i64(bounds + 16 * lane, low)
                    store_i64(bounds + 16 * lane + 8, limit)
                    least_limit, most_low = min(least_limit, limit), max(most_low, low)
                    least_low = min(least_low, low)
                else:
                    for c in range(0, size, 16):
                        if pairs:
                            store_bfloat16(target + 2 * c, zero)
                        else:
                            store(target + 4 * c, zero)
            for block in range(blocks):
                store(greatest + 64 * block, nothing)
                store(weight + 64 * block, zero)
            if kind != 0:
                for c in range(0, blocks * 16 * size, 16):
                    store(state + 4 * c, zero)

            for tile in range(begin, end):
                start = tile * TILE
                count = min(TILE, length - start)
                if least_low >= start + count and kind != 0:
                    continue  # before every row's window
                # as much of the tile as there is; positions after the end stand for the last one:
                # they are hidden, but have to be finite
                columns, inner_words = (count + 15) // 16 * 16, (count + 31) // 32 * 8 * number
                for p in range((count + 31) // 32 * 32):
                    slot = load_i32(slots + 4 * (table + start + min(p, count - 1)))
                    place = (slot * kv_heads + kv_head) * size * width
                    store_i64(places + 8 * p, place)
                    for c in range(0, size * width, 64):
                        prefetch(keys + place + c)
                        prefetch(values + place + c)
                for p in range(0, columns, 16):
                    for w in range(0, words, 16):
                        source = keys + w * (4 if pairs else width)
                        target = k_tile + (w * TILE + p) * 4
                        if half and not pairs:
                            transpose_widening(places + 8 * p, source, target)
                        else:
                            transpose(places + 8 * p, source, target)
                if pairs:
                    for p in range(0, 2 * inner_words, 2):
                        one = values + load_i64(places + 8 * p)
                        two = values + load_i64(places + 8 * p + 8)
                        for c in range(0, size, 16):
                            pair_rows(one + 2 * c, two + 2 * c, v_tile + (p // 2 * size + c) * 4)
                else:
                    for p in range(inner_words):
                        one = values + load_i64(places + 8 * p)
                        for c in range(0, size, 16):
                            if half:
                                store(v_tile + (p * size + c) * 4, load_bfloat16(one + 2 * c))
                            else:
                                store(v_tile + (p * size + c) * 4, load(one + 4 * c))
                if tile + 1 < end and blocks == 1:  # little to compute: memory is what it waits for
                    for p in range(start + TILE, min(start + 2 * TILE, length)):
                        slot = load_i32(slots + 4 * (table + p))
                        place = (slot * kv_heads + kv_head) * size * width
                        for c in range(0, size * width, 64):
                            prefetch(keys + place + c)
                            prefetch(values + place + c)
                masked = least_limit < start + TILE or most_low > start

                for block in range(blocks):
                    here = min(16, lanes - block * 16)
                    query = packed + block * 16 * size * number
                    multiply(
                        tiled,
                        pairs,
                        query,
                        size * number,
                        k_tile,
                        4 * TILE,
                        words,
                        here,
                        columns,
                        scores,
                        4 * TILE,
                    )
                    for inner in range(here):
                        at = scores + inner * 4 * TILE
                        s0, s1, s2, s3 = load(at), load(at + 64), load(at + 128), load(at + 192)
                        if masked:
                            bound = bounds + 16 * (block * 16 + inner)
                            low, limit = load_i64(bound) - start, load_i64(bound + 8) - start
                            s0 = choose(between(low, limit), s0, hidden)
                            s1 = choose(between(low - 16, limit - 16), s1, hidden)
                            s2 = choose(between(low - 32, limit - 32), s2, hidden)
                            s3 = choose(between(low - 48, limit - 48), s3, hidden)
                        best = top(peak(peak(s0, s1), peak(s2, s3)))
                        best = max(best, types.float32(_NOTHING))
                        store_f32(tops + 4 * inner, best)
                        shift = splat(best)
                        s0, s1 = _exp2(pairs, sub(s0, shift)), _exp2(pairs, sub(s1, shift))
                        s2, s3 = _exp2(pairs, sub(s2, shift)), _exp2(pairs, sub(s3, shift))
                        store_f32(sums + 4 * inner, total(add(add(s0, s1), add(s2, s3))))
                        at = weights + inner * TILE * number
                        if pairs:
                            store_bfloat16(at, s0)
                            store_bfloat16(at + 32, s1)
                            store_bfloat16(at + 64, s2)
                            store_bfloat16(at + 96, s3)
                        else:
                            store(at, s0)
                            store(at + 64, s1)
                            store(at + 128, s2)
                            store(at + 192, s3)
                    multiply(
                        tiled,
                        pairs,
                        weights,
                        TILE * number,
                        v_tile,
                        vector,
                        inner_words,
                        here,
                        size,
                        product,
                        vector,
                    )
                    if kind == 0:
                        for inner in range(here):
                            lane = block * 16 + inner
                            if load_i64(bounds + 16 * lane + 8) <= start:
                                continue  # the row ends before this tile and has no part of it
                            row = load_i32(order + 4 * (first + lane // group))
                            head = kv_head * group + lane % group
                            part = load_i32(bases + 4 * row) + 1 + tile - load_i32(leads + 4 * row)
                            target = partials + (part * heads + head) * (size + HEADER) * 4
                            store_f32(target, load_f32(tops + 4 * inner))
                            store_f32(target + 4, load_f32(sums + 4 * inner))
                            for c in range(0, size, 16):
                                value = load(product + inner * vector + 4 * c)
                                store(target + 4 * (HEADER + c), value)
                        continue
                    before, here_top = load(greatest + 64 * block), load(tops)
                    after = peak(before, here_top)
                    store(greatest + 64 * block, after)
                    store(new, _exp2(pairs, sub(here_top, after)))
                    store(old, _exp2(pairs, sub(before, after)))
                    so_far = mul(load(weight + 64 * block), load(old))
                    store(weight + 64 * block, fma(load(sums), load(new), so_far))
                    for inner in range(here):
                        factor, kept = splat_at(new + 4 * inner), splat_at(old + 4 * inner)
                        target = state + (block * 16 + inner) * vector
                        for c in range(0, size, 16):
                            so_far = mul(load(target + 4 * c), kept)
                            value = load(product + inner * vector + 4 * c)
                            store(target + 4 * c, fma(value, factor, so_far))

            if kind != 0:
                for lane in range(lanes):
                    row = load_i32(order + 4 * (first + lane // group))
                    head = kv_head * group + lane % group
                    source = state + lane * vector
                    if kind == 2:
                        _finish(
                            source,
                            splat_at(weight + 4 * lane),
                            outs,
                            row * heads + head,
                            size,
                            half,
                        )
                    else:
                        part = load_i32(bases + 4 * row)
                        target = partials + (part * heads + head) * (size + HEADER) * 4
                        store_f32(target, load_f32(greatest + 4 * lane))
                        store_f32(target + 4, load_f32(weight + 4 * lane))
                        for c in range(0, size, 16):
                            store(target + 4 * (HEADER + c), load(source + 4 * c))
            item = atomic_next(counter)
        if tiled:
            tiles_end(0)

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


def _fold(name: str, half: bool) -> Any:  # noqa: ANN401
    """Fold the parts of rows whose lead was not the whole; see `fold_kernel`."""
    pairs = name != "fma"

    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def fold(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        counter, rows, row_count, bases, counts = a[0], a[1], a[2], a[3], a[4]
        outs, partials, heads, size = a[5], a[6], a[7], a[8]
        stride = (size + HEADER) * 4
        item = atomic_next(counter)
        while item < row_count * heads:
            row = load_i32(rows + 4 * (item // heads))
            head = item % heads
            state = partials + (load_i32(bases + 4 * row) * heads + head) * stride
            highest, weight = splat_at(state), splat_at(state + 4)
            for part in range(1, load_i32(counts + 4 * row)):
                source = state + part * heads * stride
                after = peak(highest, splat_at(source))
                new, old = (
                    _exp2(pairs, sub(splat_at(source), after)),
                    _exp2(pairs, sub(highest, after)),
                )
                weight = fma(splat_at(source + 4), new, mul(weight, old))
                highest = after
                for c in range(0, size, 16):
                    at = 4 * (HEADER + c)
                    store(state + at, fma(load(source + at), new, mul(load(state + at), old)))
            _finish(state + 4 * HEADER, weight, outs, row * heads + head, size, half)
            item = atomic_next(counter)

    return fold


@cache
def _compiled(name: str, half: bool, folding: bool) -> Any:  # noqa: ANN401
    return (_fold if folding else _parts)(name, half)


def part_kernel(name: str, half: bool, team: Team) -> Kernel:
    """The kernel over units, by "amx", "dot" or "fma".

    Keys, values and outputs are bfloat16 (`half`) or float32. "amx" and "dot" want bfloat16 and
    heads of a multiple of 32.

    Arguments: units int64 (count, UNIT_FIELDS), their count, order int32 (rows of the units),
    limits and lows int32 (per row: one past the last position it sees, and the first), slots int32
    (the tables of the units), bases and leads int32 (per row: its first part, tiles of its lead),
    queries float32 (rows, heads, head_dim), keys and values (slots, kv_heads, head_dim), out (rows,
    heads, head_dim), partials float32, heads, kv_heads, head_dim, bits of the factor on scores
    (log2(e) included), scratch, its bytes a thread, blocks of 16 lanes it has room for, the
    registers' configuration.
    """
    return Kernel(_compiled(name, half, False), 21, team)


def fold_kernel(name: str, half: bool, team: Team) -> Kernel:
    """The kernel that folds the parts of rows.

    Arguments: rows int32, their count, bases and counts int32 (per row: first part, parts), out,
    partials, heads, head_dim.
    """
    return Kernel(_compiled(name, half, True), 8, team)
