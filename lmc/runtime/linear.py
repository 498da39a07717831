"""Matrix products whose rows do not depend on how many there are.

A matrix library picks its kernel by the shape, and two kernels may add in different orders: then a
row's result depends on how many rows stand beside it. But within a range of row counts the kernel
is the same. A `RowRule` states such a range; callers pad fewer rows and cut more. The rule of a
CPU is an observation, not a guarantee of the library: `respects` checks it on the model's own
matrices when they are loaded, and the fallback asks for one fixed number of rows only.

Source: measured; on CPUs with AMX oneDNN takes other kernels up to 32 rows and, at some sizes,
above 256; with AVX-512 or less only for a single row.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch.nn import functional

from lmc.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Linear",
    "LinearKind",
    "RowRule",
    "best_dtype",
    "linear_kinds",
    "respects",
]

MOST_ROWS = 256  # rows of one product: beyond, other kernels may be chosen
FIXED_ROWS = 32


@dataclass(frozen=True, slots=True)
class RowRule:
    """The row counts that give the same rows: `least` to `most`."""

    least: int
    most: int

    def padded(self, rows: int) -> int:
        """How many rows `cuts` needs for `rows`."""
        if self.least == self.most:
            return -(-rows // self.most) * self.most
        return max(rows, self.least)

    def cuts(self, rows: int) -> list[tuple[int, int]]:
        """The stretches in which to compute `rows`; together they cover `padded(rows)`.

        >>> RowRule(33, 256).cuts(300)
        [(0, 150), (150, 300)]
        >>> RowRule(33, 256).cuts(1)
        [(0, 33)]
        """
        padded = self.padded(rows)
        count = -(-padded // self.most)
        edges = [padded * i // count for i in range(count + 1)]
        return [*zip(edges[:-1], edges[1:], strict=True)]


class Linear(Protocol):
    """`x W^T + b` for x of shape (rows, in), rows as the rule allows; gives (rows, out)."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LinearKind:
    """A way to compute products, and the rule that it keeps."""

    name: str
    rule: RowRule
    pack: Callable[[Tensor, Tensor | None], Linear]


class _Packed:
    """oneDNN's product with a weight in its own layout, chosen once for all row counts."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 128)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        return cast("Tensor", self._product(x, self._weight, self._bias, "none", [], ""))


class _Plain:
    """torch's product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


@cache
def _cpu_flags() -> frozenset[str]:
    """Features of the processor, in the words of Linux; empty where they cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((x.split(":")[1] for x in lines if x.startswith("flags")), "").split())


def _can_pack() -> bool:
    ops = torch.ops.mkldnn
    known = hasattr(ops, "_linear_pointwise") and hasattr(ops, "_reorder_linear_weight")
    return known and bool(torch.backends.mkldnn.is_available())


def best_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies it fast (AVX-512 BF16 or AMX), else float32."""
    fast = {"avx512_bf16", "amx_bf16"} & _cpu_flags()
    if fast and _can_pack() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.bfloat16
    return torch.float32


def linear_kinds(dtype: torch.dtype) -> list[LinearKind]:
    """The ways to compute products on this CPU, the fastest first; the last one always works.

    Raises:
        UsageError: the CPU's runner computes in float32 or bfloat16.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        raise UsageError(
            f"the CPU cannot compute in {name}", hint="give dtype='float32' or 'bfloat16'"
        )
    plain = LinearKind("plain", RowRule(FIXED_ROWS, FIXED_ROWS), _Plain)
    if not _can_pack() or platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"):
        return [plain]
    wide = LinearKind("packed", RowRule(33, MOST_ROWS), _Packed)
    narrow = LinearKind("packed", RowRule(2, MOST_ROWS), _Packed)
    with_amx = dtype == torch.bfloat16 and "amx_bf16" in _cpu_flags()
    return [wide, plain] if with_amx else [narrow, wide, plain]


def respects(linear: Linear, rule: RowRule, columns: int, dtype: torch.dtype) -> bool:
    """Whether rows come out alike for several row counts and places, on random input."""
    x = torch.randn(rule.most, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = linear(x)
    counts = {rule.least, rule.least + 1, 48, 64, 100, rule.most - 1}
    for rows in sorted(m for m in counts if rule.least <= m <= rule.most):
        for first in {0, rule.most - rows}:
            part = x[first : first + rows].clone()
            if not torch.equal(linear(part), whole[first : first + rows]):
                return False
    return True
