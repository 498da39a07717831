"""Times of attention on a CUDA device, one backend beside the other.

    python benchmarks/attention_backends_gpu.py [--json FILE]

Question: which backend should compute which steps? Each case is the attention of one layer of a
model of Llama-3.1-8B's shape: which sequences there are, what they share. Layers are replayed from
a graph, so that the CPU does not count, over two KV pools in turn, so that little of one call is in
the device's cache for the next.

    triton      units, for all rows
    flashinfer  FlashInfer for prompts, units for the rest: what `attention="flashinfer"` does
    all by fi   FlashInfer's prefill for all rows: says where its share should begin
    decode      FlashInfer's decode kernel, where each sequence has one row
    ragged      FlashInfer on keys and values of the step itself, which are not scattered; only
                where nothing is cached, and without the time to bring them there
    limit       reading each position once for the rows that share it at 4.3 TB/s, or multiplying
                at 670 TFLOP/s, whichever is longer
    plan        milliseconds of the CPU for a step, triton and flashinfer
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import torch

from lmc.errors import UsageError
from lmc.runtime.attention.base import Batch
from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda import flashinfer_attention
from lmc.runtime.cuda.attention import Attend, DeviceAttention, StepRows
from lmc.runtime.cuda.flashinfer_attention import FlashInferAttention
from lmc.runtime.cuda.flight import Tables
from lmc.runtime.cuda.staging import Staging
from lmc.runtime.cuda.unit_attention import UnitAttention
from lmc.runtime.request import Segment, Step

MODEL = ModelConfig(
    family="llama", vocab_size=128_256, hidden_size=4096, intermediate_size=14336, layers=32,
    heads=32, kv_heads=8, head_dim=128, context_length=131_072,
)  # fmt: skip
SLOTS, MOST_ROWS = 400_000, 8192
BANDWIDTH, RATE = 4.3e12, 670e12
HALF = torch.bfloat16

Piece = tuple[np.ndarray, int]  # slots of a context, and how many rows it ends with


def cases() -> Iterator[tuple[str, list[Piece], int]]:
    """Names, pieces, and how many positions have to be read at least."""
    # runs of four: as a pool looks that was used for long; one case never needs all of them
    runs = np.arange(SLOTS, dtype=np.int32).reshape(-1, 4)
    slots = cycle(np.random.default_rng(0).permutation(runs))

    def own(count: int) -> np.ndarray:
        return np.concatenate([next(slots) for _ in range(-(-count // 4))])[:count]

    def after(prefix: np.ndarray, count: int, rows: int) -> list[Piece]:
        return [(np.concatenate([prefix, own(rows)]), rows) for _ in range(count)]

    yield "prompt of 8k", [(own(8192), 8192)], 8192
    yield "2 prompts of 4k", [(own(4096), 4096) for _ in range(2)], 8192
    yield "2k after 6k", [(own(8192), 2048)], 8192
    for count, rows, shared in ((16, 512, 1536), (80, 100, 1024), (64, 64, 1024), (128, 32, 1024)):
        pieces = after(own(shared), count, rows)
        yield f"{count} x {rows} after {shared} shared", pieces, shared + count * rows
    decodes = [(own(1024), 1) for _ in range(200)]
    yield "6k prompt, 200 decodes of 1k", [*decodes, (own(6144), 6144)], 200 * 1024 + 6144
    for count in (64, 256):
        yield f"decode {count} x 1k", [(own(1024), 1) for _ in range(count)], count * 1024
    prefix = own(1024)
    tails = [(np.concatenate([prefix, own(100)]), 1) for _ in range(512)]
    yield "decode 512 x 100 after 1k shared", tails, 1024 + 51_200


class Case:
    """A step on the device."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.step = Step(
            tuple(
                Segment(np.zeros(rows, np.int32), len(table) - rows, table)
                for table, rows in pieces
            )
        )
        batch, self.tables = Batch.of(self.step), Tables.of(self.step)
        self.rows = StepRows(
            self.tables,
            torch.from_numpy(self.tables.slots).cuda(),
            torch.from_numpy(batch.positions).cuda(),
        )
        width = (MODEL.heads + 2 * MODEL.kv_heads) * MODEL.head_dim
        self.qkv = torch.randn(batch.rows, width, device="cuda", dtype=HALF)
        self.out = torch.zeros(batch.rows, MODEL.heads * MODEL.head_dim, device="cuda", dtype=HALF)
        self.fresh = bool((self.tables.sizes == self.tables.lengths).all())

    def limit(self, read: int) -> float:
        """Microseconds; see the module."""
        sizes, lengths = self.tables.sizes, self.tables.lengths
        seen = int((sizes * lengths - sizes * (sizes - 1) // 2).sum())
        reading = read * 2 * MODEL.kv_heads * MODEL.head_dim * 2 / BANDWIDTH
        return 1e6 * max(reading, 4 * MODEL.heads * MODEL.head_dim * seen / RATE)


class Bench:
    """KV pools and backends."""

    def __init__(self) -> None:
        shape = (2, SLOTS, MODEL.kv_heads, MODEL.head_dim)
        self.pools = [torch.randn(*shape, device="cuda", dtype=HALF) for _ in range(2)]
        device = torch.device("cuda")
        self.staging = Staging(1 << 22, device)
        units = UnitAttention(MODEL, dtype=HALF, device=device, rows=MOST_ROWS)
        self.backends: dict[str, DeviceAttention] = {"triton": units}
        try:
            start = time.perf_counter()
            made = FlashInferAttention(MODEL, units, dtype=HALF, device=device)
            print(f"FlashInfer was there after {time.perf_counter() - start:.1f} s", flush=True)
            self.backends |= {"flashinfer": made, "all by fi": made}
        except UsageError as error:
            print(error)

    def plan(self, name: str, case: Case) -> tuple[Attend, float]:
        """What a layer calls, and milliseconds of planning it, without the first time."""
        flashinfer_attention.LEAST_ROWS = 1 if name == "all by fi" else LEAST_ROWS
        times = []
        for _ in range(4):
            torch.cuda.synchronize()
            self.staging.reset()
            start = time.perf_counter()
            attend = self.backends[name].plan(case.rows, self.staging)
            times.append(1e3 * (time.perf_counter() - start))
        return attend, min(times)

    def microseconds(self, case: Case, attend: Attend) -> float:
        def layer(pool: torch.Tensor) -> None:
            attend(case.qkv, pool[0], pool[1], case.out)

        return replayed([lambda pool=pool: layer(pool) for pool in self.pools])

    def decode(self, case: Case) -> float:
        """Microseconds of FlashInfer's decode kernel."""
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        heads, kv_heads, dim = MODEL.heads, MODEL.kv_heads, MODEL.head_dim
        space = torch.empty(flashinfer_attention.WORKSPACE, dtype=torch.uint8, device="cuda")
        wrapper = BatchDecodeWithPagedKVCacheWrapper(space, "NHD")
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(case.tables.lengths)])).int()
        last = torch.ones(len(case.out), dtype=torch.int32)
        wrapper.plan(
            ends, case.rows.slots, last, heads, kv_heads, dim, 1, q_data_type=HALF,
            kv_data_type=HALF,
        )  # fmt: skip
        q, out = case.qkv[:, : heads * dim].view(-1, heads, dim), case.out.view(-1, heads, dim)
        q = q.contiguous()
        return replayed(
            [
                lambda pool=pool: wrapper.run(q, tuple(pool[:, :, None]), out=out)
                for pool in self.pools
            ]
        )

    def ragged(self, case: Case) -> float:
        """Microseconds of FlashInfer's prefill on keys and values that lie one after another."""
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        heads, kv_heads, dim = MODEL.heads, MODEL.kv_heads, MODEL.head_dim
        space = torch.empty(flashinfer_attention.WORKSPACE, dtype=torch.uint8, device="cuda")
        wrapper = BatchPrefillWithRaggedKVCacheWrapper(space, "NHD")
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(case.tables.sizes)])).int()
        wrapper.plan(
            ends, ends, heads, kv_heads, dim, causal=True, q_data_type=HALF, kv_data_type=HALF
        )
        parts = case.qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        q, k, v = (part.unflatten(1, (-1, dim)) for part in parts)
        out = case.out.view(-1, heads, dim)
        return replayed([lambda: wrapper.run(q, k, v, out=out)] * 2)


def replayed(layers: list[Callable[[], object]]) -> float:
    """Microseconds a layer, the median of some replays of a graph of all of them."""
    aside = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(aside):
        for layer in layers:
            layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers * 3:
            layer()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / (3 * len(layers)))
    return statistics.median(times)


def attempted(what: Callable[[Case], float], case: Case) -> float:
    """What a kernel takes that lmc does not use, so that it may not be there: then not a number."""
    try:
        return what(case)
    except Exception as error:  # of a library without types of its own
        print(str(error).splitlines()[0])
        return float("nan")


LEAST_ROWS = flashinfer_attention.LEAST_ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to a file as well")
    written = parser.parse_args().json
    bench = Bench()
    names = ("triton", "flashinfer", "all by fi", "decode", "ragged", "limit")
    head = " ".join(f"{name:>10}" for name in names)
    print(f"{'microseconds a layer':34} {head}    plan ms     greatest difference", flush=True)
    lines = []
    for title, pieces, read in cases():
        case = Case(pieces)
        times: dict[str, float] = {}
        plans: dict[str, float] = {}
        outs = {}
        for name in bench.backends:
            attend, plans[name] = bench.plan(name, case)
            times[name] = bench.microseconds(case, attend)
            attend(case.qkv, *bench.pools[0], case.out)
            outs[name] = case.out.float()
        if "flashinfer" in times and case.fresh:
            times["ragged"] = attempted(bench.ragged, case)
        if "flashinfer" in times and len(case.out) == len(pieces):
            times["decode"] = attempted(bench.decode, case)
        times["limit"] = case.limit(read)
        apart = max(float((out - outs["triton"]).abs().max()) for out in outs.values())
        shown = " ".join(f"{times[name]:10.1f}" if name in times else f"{'':10}" for name in names)
        planned = " ".join(f"{plans[name]:5.2f}" for name in plans if name != "all by fi")
        print(f"{title:34} {shown}   {planned}   {apart:.4f}", flush=True)
        lines.append({"case": title, "us": times, "plan_ms": plans, "apart": apart})
    if written:
        written.write_text(json.dumps(lines, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
