"""The sampler's work on whole rows of logits; defined by `lmc.runtime.sampler`."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
from numba import cfunc, types

from lmc.runtime.kernels import SOURCES
from lmc.runtime.kernels.parallel import Kernel, Team
from lmc.runtime.kernels.vector import (
    add,
    atomic_next,
    choose_where,
    exp2,
    lanes_at_most,
    load,
    load_f32,
    load_f64,
    load_i64,
    load_u8,
    mul,
    noise,
    peak,
    splat,
    store_f64,
    store_i64,
    sub,
    top,
    total,
)

__all__ = ["draw_kernel"]

_KERNEL = types.void(types.CPointer(types.int64))
_LOG2E = math.log2(math.e)
_SLACK = 1.001  # float32 rounds what is compared; a token too many is only looked at more closely


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _scramble(x: int) -> int:
    x ^= x >> 16
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _gumbel(token: int, key1: int, key2: int) -> float:
    word = _scramble(_scramble((token * 0x9E3779B1 + key1) & 0xFFFFFFFF) ^ key2)
    return -math.log(-math.log1p(-(word + 0.5) / 4294967296.0))


@cache
def _compiled() -> Any:  # noqa: ANN401 - numba has no types
    @cfunc(_KERNEL, cache=True)  # type: ignore[untyped-decorator]
    def draw(a: Any) -> None:  # noqa: ANN401
        if SOURCES == 0:
            return
        counter, logits, rows, vocabulary = a[0], a[1], a[2], a[3]
        wishes, temperatures, tokens, normalizers = a[4], a[5], a[6], a[7]
        lowest = splat(types.float32(-math.inf))
        row = atomic_next(counter)
        while row < rows:
            source = logits + row * vocabulary * 4
            wish = wishes + row * 40
            kind, mask = load_i64(wish), load_i64(wish + 8)
            key1, key2 = load_i64(wish + 16), load_i64(wish + 24)

            best = lowest
            for c in range(0, vocabulary, 16):
                best = peak(best, load(source + 4 * c))
            greatest = top(best)
            shift, factor = splat(greatest), splat(types.float32(_LOG2E))
            sums = splat(types.float32(0.0))
            for c in range(0, vocabulary, 16):
                sums = add(sums, exp2(mul(sub(load(source + 4 * c), shift), factor)))
            normalizer = float(greatest) + math.log(float(total(sums)))
            store_f64(normalizers + 8 * row, normalizer)

            if kind != 0 and math.isfinite(normalizer):
                if mask != 0:
                    best = lowest
                    for c in range(0, vocabulary, 16):
                        best = peak(best, choose_where(mask + c, load(source + 4 * c), lowest))
                    greatest = top(best)
                token = -1
                for c in range(0, vocabulary, 16):
                    if lanes_at_most(splat(greatest), load(source + 4 * c)) == 0:
                        continue
                    for t in range(c, c + 16):
                        seen = mask == 0 or load_u8(mask + t) != 0
                        if token < 0 and seen and load_f32(source + 4 * t) == greatest:
                            token = t
                    if token >= 0:
                        break
                if kind == 2 and token >= 0:
                    temperature = load_f64(temperatures + 8 * row)
                    slope = splat(types.float32(_LOG2E / temperature))
                    most = float(load_f32(source + 4 * token)) / temperature
                    most += _gumbel(token, key1, key2)
                    for c in range(0, vocabulary, 16):
                        # z + g > most needs u <= -log(1 - u) < exp(z - most)
                        bound = splat(types.float32(math.log2(_SLACK) - most * _LOG2E))
                        x = load(source + 4 * c)
                        chance = exp2(add(mul(x, slope), bound))
                        lanes = lanes_at_most(noise(c, key1, key2), chance)
                        if lanes == 0:
                            continue
                        for t in range(c, c + 16):
                            if (lanes >> (t - c)) & 1 == 0:
                                continue
                            if mask != 0 and load_u8(mask + t) == 0:
                                continue
                            score = float(load_f32(source + 4 * t)) / temperature
                            score += _gumbel(t, key1, key2)
                            if score > most or (score == most and t < token):
                                most, token = score, t
                store_i64(tokens + 8 * row, token)
            row = atomic_next(counter)

    return draw


def draw_kernel(team: Team) -> Kernel:
    """The kernel behind `Sampler`.

    Arguments: logits float32 (rows, vocabulary), rows, vocabulary (a multiple of 16), wishes int64
    (rows, 5: 0 nothing, 1 greedy, 2 draw; address of a mask or 0; two keys; unused), temperatures
    float64, tokens int64 and normalizers float64, per row; the last two are written.
    """
    return Kernel(_compiled(), 7, team)
