"""The row-wise layers between the matrix products, one kernel each, for float32 and bfloat16.

`lmc.runtime.layers.TorchRowOps` defines them. A row's result depends on that row alone, and the
order of its sums is written down here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from numba import cfunc, types

from lmc.runtime.kernels import SOURCES
from lmc.runtime.kernels.parallel import Kernel, Team
from lmc.runtime.kernels.vector import (
    add,
    atomic_next,
    f32_of_bits,
    fma,
    load,
    load_bfloat16,
    load_i32,
    mul,
    splat,
    store,
    store_bfloat16,
    sub,
    total,
)

__all__ = ["row_kernel"]

_KERNEL = types.void(types.CPointer(types.int64))


def _embed(half: bool) -> Any:  # noqa: ANN401 - numba has no types
    """Rows of a table: (tokens int32, table, out float32, rows, columns)."""
    width = 2 if half else 4

    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def embed(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        counter, tokens, table, out, rows, columns = a[0], a[1], a[2], a[3], a[4], a[5]
        row = atomic_next(counter)
        while row < rows:
            source = table + load_i32(tokens + 4 * row) * columns * width
            target = out + row * columns * 4
            for c in range(0, columns, 16):
                if half:
                    store(target + 4 * c, load_bfloat16(source + 2 * c))
                else:
                    store(target + 4 * c, load(source + 4 * c))
            row = atomic_next(counter)

    return embed


def _norm(half: bool) -> Any:  # noqa: ANN401
    """RMS norm: (x float32, weight float32, out, rows, columns, bits of epsilon)."""
    width = 2 if half else 4

    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def norm(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        counter, inputs, weight, outs = a[0], a[1], a[2], a[3]
        rows, columns, epsilon = a[4], a[5], f32_of_bits(a[6])
        row = atomic_next(counter)
        while row < rows:
            source = inputs + row * columns * 4
            scale = splat(_scale(source, columns, epsilon))
            out = outs + row * columns * width
            for c in range(0, columns, 16):
                y = mul(mul(load(source + 4 * c), scale), load(weight + 4 * c))
                if half:
                    store_bfloat16(out + 2 * c, y)
                else:
                    store(out + 4 * c, y)
            row = atomic_next(counter)

    return norm


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _scale(source: int, columns: int, epsilon: float) -> Any:  # noqa: ANN401
    """One over the root of the mean square of some float32."""
    squares = splat(types.float32(0.0))
    for c in range(0, columns, 16):
        x = load(source + 4 * c)
        squares = fma(x, x, squares)
    mean = total(squares) / types.float32(columns)
    return types.float32(1.0) / types.float32((mean + epsilon) ** 0.5)


def _rotate_store(half: bool) -> Any:  # noqa: ANN401
    """Split rows of queries, keys and values; rotate, and store keys and values in their slots.

    (qkv float32, positions int32, slots int32, cosines, sines, queries float32, key pool, value
    pool, rows, heads, kv_heads, head_dim, query norm or 0, key norm or 0, bits of epsilon)
    The tables are float32 (positions, head_dim / 2).
    """
    width = 2 if half else 4

    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def rotate_store(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        counter, qkv, positions, slots, cosines, sines = a[0], a[1], a[2], a[3], a[4], a[5]
        queries, keys, values, rows = a[6], a[7], a[8], a[9]
        heads, kv_heads, size, q_norm, k_norm = a[10], a[11], a[12], a[13], a[14]
        epsilon = f32_of_bits(a[15])
        middle = size // 2
        row = atomic_next(counter)
        while row < rows:
            source = qkv + row * (heads + 2 * kv_heads) * size * 4
            cosine = cosines + load_i32(positions + 4 * row) * middle * 4
            sine = sines + load_i32(positions + 4 * row) * middle * 4
            slot = load_i32(slots + 4 * row)
            for head in range(heads + kv_heads):
                is_query = head < heads
                norm = q_norm if is_query else k_norm
                scale = splat(types.float32(1.0))
                if norm != 0:
                    scale = splat(_scale(source, size, epsilon))
                for c in range(0, middle, 16):
                    x, y = load(source + 4 * c), load(source + 4 * (c + middle))
                    if norm != 0:
                        x = mul(mul(x, scale), load(norm + 4 * c))
                        y = mul(mul(y, scale), load(norm + 4 * (c + middle)))
                    cos, sin = load(cosine + 4 * c), load(sine + 4 * c)
                    first = sub(mul(x, cos), mul(y, sin))
                    second = add(mul(y, cos), mul(x, sin))
                    if is_query:
                        target = queries + ((row * heads + head) * size + c) * 4
                        store(target, first)
                        store(target + 4 * middle, second)
                    else:
                        target = keys + ((slot * kv_heads + head - heads) * size + c) * width
                        if half:
                            store_bfloat16(target, first)
                            store_bfloat16(target + 2 * middle, second)
                        else:
                            store(target, first)
                            store(target + 4 * middle, second)
                source += size * 4
            target = values + slot * kv_heads * size * width
            for c in range(0, kv_heads * size, 16):
                if half:
                    store_bfloat16(target + 2 * c, load(source + 4 * c))
                else:
                    store(target + 4 * c, load(source + 4 * c))
            row = atomic_next(counter)

    return rotate_store


_MAKERS: dict[str, tuple[Callable[[bool], Any], int]] = {
    "embed": (_embed, 5),
    "norm": (_norm, 6),
    "rotate_store": (_rotate_store, 15),
}


@cache
def _compiled(name: str, half: bool) -> Any:  # noqa: ANN401
    return _MAKERS[name][0](half)


def row_kernel(name: str, half: bool, team: Team) -> Kernel:
    """The kernel `name` for bfloat16 (`half`) or float32 activations, compiled when first asked."""
    return Kernel(_compiled(name, half), _MAKERS[name][1], team)
