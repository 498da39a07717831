"""A Triton matrix product for one row, with what stands around it in a layer.

With one row, a product is the reading of its matrix, and a layer is a dozen launches that wait for
each other. Here the norm before a product, the gate after one and the sum with the residual stream
are part of it, so that a layer has four launches and attention.

Promises    sums in float32, in an order that depends on sizes only.
Costs       the matrix is read once. No tensor cores: with two rows that is already slower than the
            matrix library.
Not here    products of more rows: the matrix library's (`model`), `product_kernel`.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["one_row_product"]


@triton.jit
def _dots(
    x, weight, norm, column, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Products of the row with some columns, and the sum of its squares."""
    n = (column + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    k = tl.arange(0, BLOCK_K)[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((1, BLOCK_K), tl.float32)
    for at in range(0, INNER, BLOCK_K):
        inside = at + k < INNER
        w = tl.load(
            weight + n * INNER + (at + k), mask=inside & (n < COLUMNS), other=0.0,
            eviction_policy="evict_first",
        )  # fmt: skip
        a = tl.load(x + (at + k), mask=inside, other=0.0).to(tl.float32)
        if NORM:
            squares += a * a
            a *= tl.load(norm + (at + k), mask=inside, other=0.0)
        total += a * w.to(tl.float32)
    return tl.sum(total, axis=1), tl.sum(squares, axis=1)


@triton.jit
def one_row_product(
    x, weight, out, norm, bias, epsilon,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """`out = x weight^T`; one program for BLOCK_N columns.

    Args:
        x: (INNER,), of the model's type, as `out`, (COLUMNS,).
        weight: (COLUMNS, INNER), of twice as many rows if GATED.
        norm: float32, (INNER,): with NORM, `x` is replaced by `rms_norm(x) * norm`.
        bias: (COLUMNS,), added with BIAS.

    With GATED, `out = silu(x gate^T) * (x up^T)`, where gates are the first half of `weight`. With
    ADD, the product is added to `out`.
    """
    column = tl.program_id(0) * BLOCK_N
    y, squares = _dots(x, weight, norm, column, COLUMNS, INNER, BLOCK_N, BLOCK_K, NORM)
    scale = 1.0 / tl.sqrt(squares / INNER + epsilon)
    if NORM:
        y *= scale
    if GATED:
        ups = weight + COLUMNS * INNER
        up, _ = _dots(x, ups, norm, column, COLUMNS, INNER, BLOCK_N, BLOCK_K, NORM)
        if NORM:
            up *= scale
        y = y / (1.0 + tl.exp(-y)) * up
    n = column + tl.arange(0, BLOCK_N)
    there = n < COLUMNS
    if BIAS:
        y += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)
    if ADD:
        y += tl.load(out + n, mask=there, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=there)
