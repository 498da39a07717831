"""Triton kernels of attention over slots of the KV pool; `planning` says what they compute.

`attend_units` computes a unit: some rows, with all query heads of one key head, over a run of
positions. A row with one unit gets its output at once; others leave a normalized partial result
and the logarithm of its weight, which `combine_parts` puts together.

Promises    a row's result depends on its query, its context and where its units begin and end, and
            on nothing else: not on the other rows of a unit.
Source      Dao, FlashAttention-2, arXiv:2307.08691; heads of a group share a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_units", "combine_parts"]


@triton.jit
def _fold(
    q, keys, values, table, head, position, at, end, scale, top, whole, state,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr, IEEE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold a block of positions into the running softmax of some rows."""
    d = tl.arange(0, BLOCK_D)
    place = at + tl.arange(0, BLOCK_N)
    there = place < end
    if MASKED:
        slot = tl.load(table + place, mask=there, other=0).to(tl.int64)
    else:
        slot = tl.load(table + place).to(tl.int64)
    where = slot[:, None] * (KV_HEADS * DIM) + head * DIM + d[None, :]
    if MASKED or BLOCK_D != DIM:
        inside = there[:, None] & (d < DIM)[None, :]
        k = tl.load(keys + where, mask=inside, other=0.0)
        v = tl.load(values + where, mask=inside, other=0.0)
    else:
        k = tl.load(keys + where)
        v = tl.load(values + where)
    if IEEE:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    else:
        scores = tl.dot(q, tl.trans(k)) * scale
    if MASKED:
        seen = there[None, :] & (place[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (place[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    after = tl.maximum(top, tl.max(scores, axis=1))
    old = tl.exp2(top - after)
    p = tl.exp2(scores - after[:, None])
    whole = whole * old + tl.sum(p, axis=1)
    state = state * old[:, None]
    if IEEE:
        state = tl.dot(p.to(v.dtype), v, state, input_precision="ieee")
    else:
        state = tl.dot(p.to(v.dtype), v, state)
    return after, whole, state


@triton.jit
def attend_units(
    qkv, keys, values, out, parts, weights, count, units, lanes, bases, counts, positions, table,
    scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, LANE_HEADS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """One program for a unit and a key head.

    Args:
        qkv: rotated queries, the first HEADS * DIM of each row of HEADS + 2 * KV_HEADS heads.
        keys, values: (slots, KV_HEADS, DIM).
        out: (rows, HEADS * DIM).
        parts, weights: float32, (places, HEADS, DIM) and (places, HEADS).
        count: how many units there are; programs beyond return at once.
        units, lanes: see `planning.Division`; ROWS lanes a unit, LANE_HEADS heads a lane.
        scale: log2(e) / sqrt(DIM).
    """
    head = tl.program_id(0)
    unit = tl.program_id(1)
    if unit >= tl.load(count):
        return
    rows = tl.load(units + unit * 4)
    start = tl.load(units + unit * 4 + 1)
    begin = tl.load(units + unit * 4 + 2)
    end = tl.load(units + unit * 4 + 3)
    m = tl.arange(0, BLOCK_M)
    lane = m // LANE_HEADS
    inner = m % LANE_HEADS
    valid = (lane < rows) & (inner < GROUP)
    packed = tl.load(lanes + unit * ROWS + lane, mask=lane < rows, other=0)
    row = (packed & 0xFFFF).to(tl.int64)
    ordinal = packed >> 16
    position = tl.load(positions + row, mask=lane < rows, other=-1)
    d = tl.arange(0, BLOCK_D)
    inside = d < DIM
    column = (head * GROUP + inner) * DIM
    source = qkv + row[:, None] * ((HEADS + 2 * KV_HEADS) * DIM) + column[:, None] + d[None, :]
    q = tl.load(source, mask=valid[:, None] & inside[None, :], other=0.0)

    top = tl.full((BLOCK_M,), -1e30, tl.float32)
    whole = tl.zeros((BLOCK_M,), tl.float32)
    state = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    # whole blocks that all rows see need no masks
    clear = begin
    if WINDOW == 0:
        lowest = tl.min(tl.where(lane < rows, position, 0x7FFFFFFF), axis=0)
        clear = begin + tl.maximum(tl.minimum(end, lowest + 1) - begin, 0) // BLOCK_N * BLOCK_N
    for at in range(begin, clear, BLOCK_N):
        top, whole, state = _fold(
            q, keys, values, table + start, head, position, at, end, scale, top, whole, state,
            KV_HEADS, DIM, BLOCK_D, WINDOW, BLOCK_N, IEEE, False,
        )  # fmt: skip
    for at in range(clear, end, BLOCK_N):
        top, whole, state = _fold(
            q, keys, values, table + start, head, position, at, end, scale, top, whole, state,
            KV_HEADS, DIM, BLOCK_D, WINDOW, BLOCK_N, IEEE, True,
        )  # fmt: skip
    seen_any = whole > 0
    whole = tl.where(seen_any, whole, 1.0)
    state = state / whole[:, None]
    weight = tl.where(seen_any, top + tl.log2(whole), -1e30)

    units_of_row = tl.load(counts + row, mask=lane < rows, other=0)
    alone = valid & (units_of_row == 1)
    target = out + row[:, None] * (HEADS * DIM) + column[:, None] + d[None, :]
    tl.store(target, state.to(out.dtype.element_ty), mask=alone[:, None] & inside[None, :])
    parted = valid & (units_of_row > 1)
    base = tl.load(bases + row, mask=lane < rows, other=0)
    place64 = ((base + ordinal).to(tl.int64) * HEADS) + head * GROUP + inner
    tl.store(
        parts + place64[:, None] * DIM + d[None, :], state, mask=parted[:, None] & inside[None, :]
    )
    tl.store(weights + place64, weight, mask=parted)


@triton.jit
def combine_parts(
    out, parts, weights, rows, bases, counts,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Put the partial results of one of `rows` and a head together.

    A row without any unit gets zeros, one with a single unit stays as it is.
    """
    row = tl.load(rows + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1)
    count = tl.load(counts + row)
    if count == 1:
        return
    base = tl.load(bases + row).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    inside = d < DIM
    top = -1e30
    whole = 0.0
    state = tl.zeros((BLOCK_D,), tl.float32)
    for at in range(0, count, CHUNK):
        n = at + tl.arange(0, CHUNK)
        there = n < count
        place = (base + n) * HEADS + head
        weight = tl.load(weights + place, mask=there, other=-1e30)
        part = tl.load(
            parts + place[:, None] * DIM + d[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        after = tl.maximum(top, tl.max(weight, axis=0))
        old = tl.exp2(top - after)
        share = tl.where(there, tl.exp2(weight - after), 0.0)
        whole = whole * old + tl.sum(share, axis=0)
        state = state * old + tl.sum(part * share[:, None], axis=0)
        top = after
    state = state / tl.where(whole > 0, whole, 1.0)
    target = out + row * (HEADS * DIM) + head * DIM + d
    tl.store(target, state.to(out.dtype.element_ty), mask=inside)
