"""A Triton matrix product whose rows do not depend on how many there are.

A matrix library picks kernels, and with them the order of summation, by the shape. This one adds
every sum in one order, whatever the number of rows: what `deterministic=True` needs.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["fixed_product"]


@triton.jit
def fixed_product(
    x, weight, out, rows, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IEEE: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """`out = x weight^T`, or `out += x weight^T` with ADD.

    One program for BLOCK_M rows and BLOCK_N columns.
    """
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    left = x + m.to(tl.int64)[:, None] * INNER + k[None, :]
    right = weight + n.to(tl.int64)[None, :] * INNER + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for at in range(0, INNER, BLOCK_K):
        inside = at + k < INNER
        a = tl.load(left + at, mask=(m < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(right + at, mask=(n < COLUMNS)[None, :] & inside[:, None], other=0.0)
        if IEEE:  # noqa: SIM108 - constants decide about branches, not about values
            total = tl.dot(a, b, total, input_precision="ieee")
        else:
            total = tl.dot(a, b, total)
    target = out + m.to(tl.int64)[:, None] * COLUMNS + n[None, :]
    there = (m < rows)[:, None] & (n < COLUMNS)[None, :]
    if ADD:
        total += tl.load(target, mask=there, other=0.0).to(tl.float32)
    tl.store(target, total.to(out.dtype.element_ty), mask=there)
