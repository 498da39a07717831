"""How near to the memory's limit is each kernel, and how far ahead of torch?

    python benchmarks/kernels_gpu.py [--rows N ...] [--json FILE] [--check]

Every kernel but attention (see `attention_gpu.py`), with the shapes of one layer of Llama-3.1-8B in
bfloat16, beside the same in torch's own operations. "bytes" are those that have to be moved at
least; the limit is what a copy of 1 GiB reaches on the same device. Caches are emptied before each
run; times are medians. With --check, small shapes are compared with torch, also on a CPU in
Triton's interpreter (TRITON_INTERPRET=1), and nothing is timed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import triton
import triton.testing
from torch import Tensor

from lmc.runtime.cuda.one_row_kernel import one_row_product
from lmc.runtime.cuda.product_kernel import fixed_product
from lmc.runtime.cuda.row_kernels import norm_rows, rotate_store, silu_mul
from lmc.runtime.cuda.sampler import DeviceSampler
from lmc.runtime.cuda.staging import Staging
from lmc.runtime.request import Sampling
from lmc.runtime.sampler import Wish

EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer, of the vocabulary, and of the KV pool."""

    hidden: int = 4096
    inner: int = 14_336
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    vocabulary: int = 128_256
    slots: int = 100_000
    context: int = 8192


SMALL = Shape(96, 160, 6, 2, 32, 5000, 300, 64)


@dataclass(frozen=True)
class Case:
    """One thing to do, in two ways; each gives what is to be compared.

    Attributes:
        moved: bytes that have to be read and written.
        flops: operations of a product, or 0.
    """

    name: str
    kernel: Callable[[], tuple[Tensor, ...]]
    reference: Callable[[], tuple[Tensor, ...]]
    moved: int
    flops: int = 0


class Cases:
    """All cases of a number of rows, with inputs of their own."""

    def __init__(self, shape: Shape, rows: int, device: torch.device) -> None:
        self.shape, self.rows, self.device = shape, rows, device
        self.generator = torch.Generator(device).manual_seed(rows)
        on_gpu = device.type == "cuda"
        self.dtype = torch.bfloat16 if on_gpu else torch.float32

    def __iter__(self) -> Iterator[Case]:
        yield self.norm("norm_rows", embed=False)
        yield self.norm("norm_rows, embedding", embed=True)
        yield self.rotate_store()
        yield self.silu_mul()
        if self.rows == 1:
            yield self.one_row("one_row_product, norm", norm=True)
            yield self.one_row("one_row_product, norm and gate", norm=True, gated=True)
            yield self.one_row("one_row_product, added", norm=False)
        yield self.product("fixed_product", add=False)
        yield self.product("fixed_product, added", add=True)
        if self.rows <= 512:  # as many are scored at once
            yield self.gather()
            greedy, drawn = Sampling(), Sampling(temperature=0.8, seed=1)
            mask = np.random.default_rng(0).random(self.shape.vocabulary) < 0.1
            yield self.draw("draw, greedy", Wish(greedy))
            yield self.draw("draw, greedy, masked", Wish(greedy, mask=mask))
            yield self.draw("draw, temperature", Wish(drawn))
            yield self.draw("draw, top_p", Wish(Sampling(temperature=0.8, top_p=0.9, seed=1)))

    def random(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        numbers = torch.randn(*sizes, generator=self.generator, device=self.device)
        return numbers.to(dtype or self.dtype)

    def below(self, high: int, count: int) -> Tensor:
        numbers = torch.randint(high, (count,), generator=self.generator, device=self.device)
        return numbers.int()

    def norm(self, name: str, *, embed: bool) -> Case:
        """The RMS norm of the residual stream, or of a row of the embedding that begins it."""
        rows, columns = self.rows, self.shape.hidden
        residual = self.random(rows, columns)
        table = self.random(self.shape.vocabulary if embed else 1, columns)
        tokens = self.below(self.shape.vocabulary, rows)
        weight = self.random(columns, dtype=torch.float32)
        out = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        mine = residual.clone()

        def kernel() -> tuple[Tensor, ...]:
            norm_rows[(rows,)](
                mine, table, tokens, weight, out, EPSILON, COLUMNS=columns,
                BLOCK=1 << (columns - 1).bit_length(), EMBED=embed,
                num_warps=8 if columns > 1024 else 4,
            )  # fmt: skip
            return mine, out

        def reference() -> tuple[Tensor, ...]:
            x = table[tokens.long()] if embed else residual
            scaled = torch.nn.functional.rms_norm(x.float(), (columns,), weight, EPSILON)
            return x, scaled.to(self.dtype)

        each = (3 if embed else 2) * self.dtype.itemsize  # the entry is written back as well
        return Case(name, kernel, reference, rows * columns * each + 4 * columns)

    def rotate_store(self) -> Case:
        """Rotation of queries and keys; keys and values to their slots."""
        s, rows = self.shape, self.rows
        heads, half = s.heads + 2 * s.kv_heads, s.dim // 2
        plain = self.random(rows, heads, s.dim)
        qkv = plain.clone()
        positions = self.below(s.context, rows)
        order = torch.randperm(s.slots, generator=self.generator, device=self.device)
        slots = order[:rows].int()
        cosines, sines = (self.random(s.context, half, dtype=torch.float32) for _ in range(2))
        mine, others = (
            torch.zeros(2, s.slots, s.kv_heads, s.dim, dtype=self.dtype, device=self.device)
            for _ in range(2)
        )

        def kernel() -> tuple[Tensor, ...]:
            rotate_store[(rows, -(-heads // 16))](
                qkv, positions, slots, cosines, sines, mine[0], mine[1], cosines, cosines, EPSILON,
                HEADS=s.heads, KV_HEADS=s.kv_heads, DIM=s.dim, HALF=half, NORM=False, BLOCK_H=16,
                BLOCK_D=1 << (half - 1).bit_length(), num_warps=4,
            )  # fmt: skip
            return qkv[:, : s.heads], mine

        def reference() -> tuple[Tensor, ...]:
            at = positions.long()
            cos, sin = cosines[at][:, None], sines[at][:, None]
            a, b = plain[:, : s.heads + s.kv_heads].float().split(half, dim=2)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], 2).to(self.dtype)
            others[0][slots.long()] = turned[:, s.heads :]
            others[1][slots.long()] = plain[:, s.heads + s.kv_heads :]
            return turned[:, : s.heads], others

        moved = 2 * rows * heads * s.dim * self.dtype.itemsize + rows * (8 * half + 8)
        return Case("rotate_store", kernel, reference, moved)

    def silu_mul(self) -> Case:
        """The gate of a feed-forward layer."""
        rows, columns = self.rows, self.shape.inner
        gate_up = self.random(rows, 2 * columns)
        out = torch.empty(rows, columns, dtype=self.dtype, device=self.device)

        def kernel() -> tuple[Tensor, ...]:
            silu_mul[(rows, -(-columns // 1024))](gate_up, out, columns, BLOCK=1024, num_warps=4)
            return (out,)

        def reference() -> tuple[Tensor, ...]:
            gate, up = gate_up.split(columns, dim=1)
            return (torch.nn.functional.silu(gate) * up,)

        moved = 3 * rows * columns * self.dtype.itemsize
        return Case("silu_mul", kernel, reference, moved)

    def one_row(self, name: str, *, norm: bool, gated: bool = False) -> Case:
        """A product of one row and what stands around it, beside the same in several calls."""
        s = self.shape
        inner, columns = s.hidden, s.inner if gated else s.hidden
        x, weights = self.random(1, inner), self.random(columns * (1 + gated), inner) / inner**0.5
        scale = self.random(inner, dtype=torch.float32)
        before = self.random(1, columns)
        mine, others = before.clone(), before.clone()
        block = 2 if norm else 4

        def kernel() -> tuple[Tensor, ...]:
            one_row_product[(-(-columns // block),)](
                x, weights, mine, scale, x, EPSILON, COLUMNS=columns, INNER=inner, BLOCK_N=block,
                BLOCK_K=2048, NORM=norm, BIAS=False, GATED=gated, ADD=not norm, num_warps=8,
            )  # fmt: skip
            return (mine,)

        def reference() -> tuple[Tensor, ...]:
            if not norm:
                return (others.addmm_(x, weights.t()),)
            hidden = torch.nn.functional.rms_norm(x.float(), (inner,), scale, EPSILON)
            product = hidden.to(self.dtype) @ weights.t()
            if not gated:
                return (product,)
            gate, up = product.split(columns, dim=1)
            return (torch.nn.functional.silu(gate) * up,)

        moved = self.dtype.itemsize * weights.numel()
        return Case(name, kernel, reference, moved, 2 * weights.numel())

    def product(self, name: str, *, add: bool) -> Case:
        """The product of `deterministic=True`, beside the matrix library's."""
        s, rows = self.shape, self.rows
        columns, inner = (s.heads + 2 * s.kv_heads) * s.dim, s.hidden
        x, weight = self.random(rows, inner), self.random(columns, inner) / inner**0.5
        before = self.random(rows, columns)
        mine, others = before.clone(), before.clone()
        ieee = self.dtype == torch.float32

        def kernel() -> tuple[Tensor, ...]:
            fixed_product[(-(-columns // 128), -(-rows // 64))](
                x, weight, mine, rows, COLUMNS=columns, INNER=inner, BLOCK_M=64, BLOCK_N=128,
                BLOCK_K=32 if ieee else 64, IEEE=ieee, ADD=add, num_warps=4,
                num_stages=2 if ieee else 4,
            )  # fmt: skip
            return (mine,)

        def reference() -> tuple[Tensor, ...]:
            return (others.addmm_(x, weight.t(), beta=float(add)),)

        moved = self.dtype.itemsize * (columns * inner + rows * (columns * (1 + add) + inner))
        flops = 2 * rows * columns * inner
        return Case(name, kernel, reference, moved, flops)

    def gather(self) -> Case:
        """Scores of one token a row out of its logits: torch's own, there is no kernel for it."""
        rows = self.rows
        logits = self.random(rows, self.shape.vocabulary, dtype=torch.float32)
        ids = self.below(self.shape.vocabulary, rows).long()
        places = torch.arange(rows, device=self.device)
        normalizers = logits.logsumexp(1)

        def kernel() -> tuple[Tensor, ...]:
            return (logits[places, ids] - normalizers[places],)

        def reference() -> tuple[Tensor, ...]:
            return (logits.log_softmax(1).gather(1, ids[:, None])[:, 0],)

        return Case("gather of scores", kernel, reference, 24 * rows)

    def draw(self, name: str, wish: Wish) -> Case:
        """A token a row; torch draws other random numbers, so drawn tokens are not compared."""
        rows, vocabulary = self.rows, self.shape.vocabulary
        logits = self.random(rows, vocabulary, dtype=torch.float32)
        sampler = DeviceSampler(vocabulary, rows, 8, self.device)
        wishes: list[Wish | None] = [wish] * rows
        prepared = sampler.prepare(wishes, np.arange(rows), None, Staging(1 << 18, self.device))
        greedy = wish.sampling.temperature == 0
        allowed = None if wish.mask is None else torch.from_numpy(wish.mask).to(self.device)

        def kernel() -> tuple[Tensor, ...]:
            drawn = sampler.draw(logits, prepared)
            return (drawn.normalizers, drawn.tokens.long() if greedy else drawn.normalizers)

        def reference() -> tuple[Tensor, ...]:
            normalizers = logits.logsumexp(1)
            some = logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)
            if greedy:
                return normalizers, some.argmax(1)
            scaled = (some / wish.sampling.temperature).softmax(1)
            if wish.sampling.top_p < 1:
                ranked, order = scaled.sort(1, descending=True)
                ranked[ranked.cumsum(1) - ranked >= wish.sampling.top_p] = 0
                scaled = torch.zeros_like(scaled).scatter_(1, order, ranked)
            torch.multinomial(scaled, 1)
            return normalizers, normalizers

        return Case(name, kernel, reference, rows * vocabulary * 4)


@dataclass(frozen=True)
class Figure:
    """What was measured: microseconds, GB/s, and the share of the memory's limit."""

    case: str
    rows: int
    kernel_us: float
    torch_us: float
    moved_bytes: int
    gb_s: float
    share: float
    tflop_s: float


def microseconds(call: Callable[[], object]) -> float:
    return 1e3 * float(triton.testing.do_bench(call, warmup=10, rep=60, return_mode="median"))


def limit() -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * len(source) / (microseconds(lambda: target.copy_(source)) * 1e-6)


def measure(case: Case, rows: int, most: float) -> Figure:
    mine, theirs = microseconds(case.kernel), microseconds(case.reference)
    speed = case.moved / (mine * 1e-6)
    return Figure(
        case.name, rows, round(mine, 2), round(theirs, 2), case.moved, round(speed / 1e9, 1),
        round(speed / most, 3), round(case.flops / mine / 1e6, 1),
    )  # fmt: skip


def check() -> list[str]:
    """Compare every case with torch, in small; the names of the cases."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = []
    for case in chain(Cases(SMALL, 5, device), Cases(SMALL, 1, device)):
        for mine, theirs in zip(case.kernel(), case.reference(), strict=True):
            near = {"atol": 0.03, "rtol": 0.03} if mine.dtype == torch.bfloat16 else {}
            torch.testing.assert_close(mine, theirs, msg=lambda m, c=case: f"{c.name}: {m}", **near)
        names.append(case.name)
    return list(dict.fromkeys(names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 512, 8192])
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--check", action="store_true", help="only compare with torch, in small")
    arguments = parser.parse_args()
    print("equal:", ", ".join(check()))
    if arguments.check:
        return
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device to measure; --check compares the kernels")
    most = limit()
    print(f"{torch.cuda.get_device_name()}: a copy moves {most / 1e9:.0f} GB/s")
    print(
        f"{'case':24} {'rows':>5} {'us':>9} {'torch us':>9} {'GB/s':>7} {'share':>6} {'TFLOP/s':>8}"
    )
    figures = []
    for rows in arguments.rows:
        for case in Cases(Shape(), rows, torch.device("cuda")):
            f = measure(case, rows, most)
            figures.append(asdict(f))
            print(
                f"{f.case:24} {f.rows:5} {f.kernel_us:9.2f} {f.torch_us:9.2f} {f.gb_s:7.0f} "
                f"{f.share:6.0%} {f.tflop_s:8.1f}",
                flush=True,
            )
    if arguments.json:
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        told = {
            "device": torch.cuda.get_device_name(),
            **versions,
            "limit_gb_s": round(most / 1e9, 1),
            "figures": figures,
        }
        arguments.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
