"""Triton kernels that treat each row by itself, and their definitions in torch.

Promises    sums in float32; a row's result does not depend on the other rows.
Not here    attention (`attention_kernels`), drawing (`sampling_kernels`).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["norm_rows", "rotate_store", "silu_mul"]


@triton.jit
def norm_rows(
    residual, table, tokens, weight, out, epsilon,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, EMBED: tl.constexpr,
):  # fmt: skip
    """`out = rms_norm(residual) * weight`; with EMBED after `residual = table[token]`.

    One program a row. `residual`, `table` and `out` are of the model's type, `weight` is float32.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < COLUMNS
    if EMBED:
        token = tl.load(tokens + row).to(tl.int64)
        entry = tl.load(table + token * COLUMNS + at, mask=there, other=0.0)
        tl.store(residual + row * COLUMNS + at, entry, mask=there)
    else:
        entry = tl.load(residual + row * COLUMNS + at, mask=there, other=0.0)
    x = entry.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / COLUMNS + epsilon)
    w = tl.load(weight + at, mask=there, other=0.0)
    tl.store(out + row * COLUMNS + at, (x * scale * w).to(out.dtype.element_ty), mask=there)


@triton.jit
def rotate_store(
    qkv, positions, slots, cosines, sines, keys, values, q_norm, k_norm, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rotate the queries of `qkv` in place; rotate keys and store them and values at their slots.

    One program for `BLOCK_H` heads of a row. With NORM, queries and keys get an RMS norm first.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    there = (head < HEADS + 2 * KV_HEADS)[:, None] & (d < HALF)[None, :]
    source = qkv + row * ((HEADS + 2 * KV_HEADS) * DIM) + head[:, None] * DIM + d[None, :]
    a = tl.load(source, mask=there, other=0.0).to(tl.float32)
    b = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
    value = head >= HEADS + KV_HEADS
    if NORM:
        mean = (tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / DIM
        scale = tl.where(value, 1.0, 1.0 / tl.sqrt(mean + epsilon))[:, None]
        query = (head < HEADS)[:, None]
        inside = (d < HALF)[None, :]
        plain = value[:, None]
        qa = tl.load(q_norm + d[None, :], mask=inside, other=0.0)
        qb = tl.load(q_norm + HALF + d[None, :], mask=inside, other=0.0)
        ka = tl.load(k_norm + d[None, :], mask=inside, other=0.0)
        kb = tl.load(k_norm + HALF + d[None, :], mask=inside, other=0.0)
        a = a * scale * tl.where(plain, 1.0, tl.where(query, qa, ka))
        b = b * scale * tl.where(plain, 1.0, tl.where(query, qb, kb))
    position = tl.load(positions + row).to(tl.int64)
    cos = tl.load(cosines + position * HALF + d, mask=d < HALF, other=0.0)[None, :]
    sin = tl.load(sines + position * HALF + d, mask=d < HALF, other=0.0)[None, :]
    cos = tl.where(value[:, None], 1.0, cos)
    sin = tl.where(value[:, None], 0.0, sin)
    first = (a * cos - b * sin).to(qkv.dtype.element_ty)
    second = (b * cos + a * sin).to(qkv.dtype.element_ty)
    query = there & (head < HEADS)[:, None]
    tl.store(source, first, mask=query)
    tl.store(source + HALF, second, mask=query)
    slot = tl.load(slots + row).to(tl.int64)
    key = there & ((head >= HEADS) & (head < HEADS + KV_HEADS))[:, None]
    target = slot * (KV_HEADS * DIM) + (head - HEADS)[:, None] * DIM + d[None, :]
    tl.store(keys + target, first, mask=key)
    tl.store(keys + target + HALF, second, mask=key)
    target -= KV_HEADS * DIM
    held = there & value[:, None]
    tl.store(values + target, first, mask=held)
    tl.store(values + target + HALF, second, mask=held)


@triton.jit
def silu_mul(gate_up, out, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """`out = silu(gate) * up`; rows of `gate_up` hold the gates, then the ups."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < COLUMNS
    gate = tl.load(gate_up + row * 2 * COLUMNS + at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * COLUMNS + COLUMNS + at, mask=there, other=0.0)
    inner = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
    tl.store(out + row * COLUMNS + at, inner.to(out.dtype.element_ty), mask=there)
