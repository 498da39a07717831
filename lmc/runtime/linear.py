"""Matrix products whose rows do not depend on how many there are.

A matrix library picks its kernel by the shape, and two kernels may add in different orders: then a
row's result depends on how many rows stand beside it. (oneDNN's does, even within the range of rows
for which it reports one kernel.) So the products here are compiled from this package's own kernels,
which add every sum in one order; `PlainLinear` stands in where numba cannot be had, and asks the
library for one fixed number of rows only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from lmc.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.kernels.parallel import Team
    from lmc.runtime.kernels.products import Product

__all__ = [
    "ROWS_READ",
    "KernelLinear",
    "Linear",
    "LinearKind",
    "PlainLinear",
    "best_dtype",
    "linear_kinds",
    "rows_read",
]

ROWS_READ = 32
SETTLING_RUNS = 5
CLEAR_GAIN = 0.85  # of the time: below this, codes are worth their memory
CODED_ROWS = 32  # products of more rows than this take longer to compute than weights to read


def rows_read(rows: int) -> int:
    """How many rows of its input a product of `rows` rows may read: the buffer must be so long."""
    return -(-rows // ROWS_READ) * ROWS_READ


class Linear(Protocol):
    """A product with one weight. The rows of `out` say how many there are.

    x is the beginning of a buffer of `rows_read(rows)` rows or more, contiguous, in the weight's
    type; what its further rows hold does not matter.
    """

    def write(self, x: Tensor, out: Tensor) -> None:
        """`out = x W^T + b`, float32."""

    def add(self, x: Tensor, out: Tensor) -> None:
        """`out += x W^T`, float32."""

    def gate(self, x: Tensor, out: Tensor) -> None:
        """`out = silu(x G^T) * (x U^T)` for the weight [G, U], in the type of x."""


@dataclass(frozen=True, slots=True)
class LinearKind:
    """A way to compute products.

    Attributes:
        name: for reports.
        supports: whether it can multiply with a weight of so many (columns, inner positions).
        pack: makes the product with a float32 weight (columns, inner) and its bias or None; the
            third argument says that it will be used as a gate.
        settle: told the products of a few layers, decides how later ones are best held.
    """

    name: str
    supports: Callable[[int, int], bool]
    pack: Callable[[Tensor, Tensor | None, bool], Linear]
    settle: Callable[[list[Linear]], None]


class PlainLinear:
    """torch's product, 32 rows at a time."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.float()

    def _pieces(self, x: Tensor, rows: int) -> Tensor:
        whole = x.as_strided((rows_read(rows), x.shape[1]), x.stride())
        pieces = [functional.linear(piece, self._weight) for piece in torch.split(whole, ROWS_READ)]
        return torch.cat(pieces)[:rows].float()

    def write(self, x: Tensor, out: Tensor) -> None:
        y = self._pieces(x, len(out))
        out.copy_(y if self._bias is None else y + self._bias)

    def add(self, x: Tensor, out: Tensor) -> None:
        out += self._pieces(x, len(out))

    def gate(self, x: Tensor, out: Tensor) -> None:
        for row, result in zip(self._pieces(x, len(out)), out, strict=True):
            # row by row: torch computes exp by vectors but the end of an array by scalars, which
            # round differently, and where the end lies must not depend on the number of rows
            gate, up = row.chunk(2)
            result.copy_(functional.silu(gate) * up)


class KernelLinear:
    """A product by one of the kernels of `lmc.runtime.kernels.products`.

    In bfloat16, weights that can be coded in fewer bits without loss may be held in both forms:
    products of few rows wait for memory and read the codes, others read the weights themselves.
    The results are the same bits.
    """

    def __init__(
        self, product: Product, weight: Tensor, bias: Tensor | None, gated: bool, coded: bool
    ) -> None:
        from lmc.runtime.kernels.codes import encode
        from lmc.runtime.kernels.products import ADD, GATE, WRITE, pack

        self.columns, self.inner = weight.shape
        if gated:  # 16 columns of G, then 16 of U, and so on
            weight = weight.view(2, -1, 16, self.inner).transpose(0, 1).reshape(weight.shape)
        self._product = product
        half = product.name != "fma"
        self.codes = encode(weight.float().contiguous()) if half and coded else None
        if self.codes is not None:
            product.make_room(self.inner)
        self._weight = pack(weight.to(torch.bfloat16 if half else torch.float32))
        self._bias = None if bias is None else bias.float().contiguous()
        self._write, self._add, self._gate = WRITE, ADD, GATE

    def write(self, x: Tensor, out: Tensor) -> None:
        bias = 0 if self._bias is None else self._bias.data_ptr()
        self._run(x, bias, out, self._write)

    def add(self, x: Tensor, out: Tensor) -> None:
        self._run(x, 0, out, self._add)

    def gate(self, x: Tensor, out: Tensor) -> None:
        self._run(x, 0, out, self._gate)

    def _run(self, x: Tensor, bias: int, out: Tensor, kind: int) -> None:
        rows, weights, bits = len(out), self._weight, 0
        if rows <= CODED_ROWS and self.codes is not None:
            weights, bits = self.codes.data, self.codes.bits
        self._product(
            x.data_ptr(), weights.data_ptr(), bias, out.data_ptr(), rows, self.columns,
            self.inner, kind, bits,
        )  # fmt: skip


class _Kernels:
    """Makes products with one kernel, and finds out whether codes are worth it."""

    def __init__(self, name: str, team: Team) -> None:
        from lmc.runtime.kernels.products import Product

        self._product, self._team = Product(name, team), team
        self._step = 1 if name == "fma" else 32
        self._coded = name != "fma"

    def supports(self, columns: int, inner: int) -> bool:
        return columns % 16 == 0 and inner % self._step == 0

    def pack(self, weight: Tensor, bias: Tensor | None, gated: bool) -> Linear:
        return KernelLinear(self._product, weight, bias, gated, self._coded)

    def settle(self, linears: list[Linear]) -> None:
        held = [x for x in linears if isinstance(x, KernelLinear) and x.codes is not None]
        codes = [x.codes for x in held]
        with_codes, without = [], []
        with self._team.at_work():
            for _ in range(SETTLING_RUNS if held else 0):
                with_codes.append(_one_row_time(held))
                for linear in held:
                    linear.codes = None
                without.append(_one_row_time(held))
                for linear, kept in zip(held, codes, strict=True):
                    linear.codes = kept
        self._coded = bool(held) and min(with_codes) < CLEAR_GAIN * min(without)
        if not self._coded:
            for linear in held:
                linear.codes = None


def _one_row_time(linears: list[KernelLinear]) -> float:
    """Seconds to multiply one row with each of some weights."""
    inputs = {x.inner: torch.zeros(ROWS_READ, x.inner, dtype=torch.bfloat16) for x in linears}
    outputs = {x.columns: torch.zeros(1, x.columns) for x in linears}
    start = time.perf_counter()
    for linear in linears:
        linear.write(inputs[linear.inner][:1], outputs[linear.columns])
    return time.perf_counter() - start


def best_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies it fast (AVX-512 BF16 or AMX), else float32."""
    if find_spec("numba") is None:
        return torch.float32
    from lmc.runtime.kernels.products import usable

    return torch.bfloat16 if {"amx", "dot"} & {*usable()} else torch.float32


def linear_kinds(dtype: torch.dtype, team: Team | None) -> list[LinearKind]:
    """The ways to compute products on this CPU, the fastest first; the last one always works.

    Without a team there is only the library's.

    Raises:
        UsageError: the CPU's runner computes in float32 or bfloat16 only.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        raise UsageError(
            f"the CPU cannot compute in {name}", hint="give dtype='float32' or 'bfloat16'"
        )
    plain = LinearKind(
        "plain",
        lambda columns, inner: True,  # noqa: ARG005
        lambda weight, bias, gated: PlainLinear(weight.to(dtype), bias),  # noqa: ARG005
        lambda linears: None,  # noqa: ARG005
    )
    if team is None:
        return [plain]
    from lmc.runtime.kernels.products import usable

    kinds = []
    for name in usable():
        if (name == "fma") == (dtype == torch.float32):
            made = _Kernels(name, team)
            kinds.append(LinearKind(name, made.supports, made.pack, made.settle))
    return [*kinds, plain]
