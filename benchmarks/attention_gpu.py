"""Times of the attention kernels on a CUDA device, beside what the memory or the products allow.

    python benchmarks/attention_gpu.py [--tune]

Question: how far from the device's limits are units of each kind? Each case is a step of one layer
of a model of Llama-3.1-8B's shape: which sequences there are, what they share. "floor" is the time
to read each position once a unit of rows at 4.3 TB/s, or to multiply at 670 TFLOP/s, whichever is
longer. With --tune, other blocks are tried as well.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import numpy as np
import torch
import triton

from lmc.runtime.cuda.attention_kernels import attend_units, combine_parts
from lmc.runtime.cuda.planning import Division, Shape, divide

HEADS, KV_HEADS, DIM, SLOTS = 32, 8, 128, 600_000
BANDWIDTH, RATE = 4.3e12, 670e12

Case = tuple[str, list[np.ndarray], list[int]]


def cases() -> Iterator[Case]:
    """Name, slot tables, rows of each."""
    fresh = iter(range(0, SLOTS, 1))

    def own(count: int) -> np.ndarray:
        return np.array([next(fresh) for _ in range(count)], np.int32)

    for batch in (1, 64, 256):
        yield f"decode {batch}, 1k each", [own(1024) for _ in range(batch)], [1] * batch
    prefix = own(1024)
    shared = [np.concatenate([prefix, own(100)]) for _ in range(512)]
    yield "decode 512, 1k shared, 100 own", shared, [1] * 512
    tree = []
    for _ in range(64):
        task = own(600)
        for _ in range(2):
            first = np.concatenate([task, own(140)])
            for _ in range(2):
                second = np.concatenate([first, own(140)])
                tree += [np.concatenate([second, own(76)]) for _ in range(2)]
    yield "decode 512, leaves of 64 trees", tree, [1] * 512
    questions = [np.concatenate([prefix, own(100)]) for _ in range(80)]
    yield "prefill 80 x 100 after 1k", questions, [100] * 80
    yield "prefill 8k", [own(8192)], [8192]


class Step:
    """A case on the device."""

    def __init__(self, tables: list[np.ndarray], rows: list[int], shape: Shape) -> None:
        lengths = np.array([len(t) for t in tables])
        offsets = np.cumsum(lengths) - lengths
        table = np.concatenate(tables)
        sizes = np.array(rows)
        self.shape = shape
        self.division = divide(table, offsets, lengths, sizes, shape, kv_heads=KV_HEADS)
        positions = np.concatenate(
            [np.arange(n - s, n) for n, s in zip(lengths, sizes, strict=True)]
        )
        self.rows = int(sizes.sum())
        half = {"device": "cuda", "dtype": torch.bfloat16}
        self.kv = torch.randn(2, SLOTS, KV_HEADS, DIM, **half)
        self.qkv = torch.randn(self.rows, (HEADS + 2 * KV_HEADS) * DIM, **half)
        self.out = torch.empty(self.rows, HEADS * DIM, **half)
        places = max(1, self.division.parts)
        self.parts = torch.empty(places, HEADS, DIM, device="cuda")
        self.weights = torch.empty(places, HEADS, device="cuda")
        self.numbers = {
            name: torch.from_numpy(np.ascontiguousarray(array, np.int32)).cuda()
            for name, array in self._arrays(self.division, positions, table).items()
        }

    @staticmethod
    def _arrays(
        division: Division, positions: np.ndarray, table: np.ndarray
    ) -> dict[str, np.ndarray]:
        return {
            "narrow": division.narrow.ravel(), "narrow_lanes": division.narrow_lanes.ravel(),
            "wide": division.wide.ravel(), "wide_lanes": division.wide_lanes.ravel(),
            "narrow_count": np.array([len(division.narrow)]),
            "wide_count": np.array([len(division.wide)]), "bases": division.bases,
            "counts": division.counts, "several": np.flatnonzero(division.counts != 1),
            "positions": positions, "table": table,
        }  # fmt: skip

    def floor(self) -> float:
        """Microseconds; see the module."""
        units = np.concatenate([self.division.narrow, self.division.wide]).astype(np.int64)
        length = units[:, 3] - units[:, 2]
        read = int(length.sum()) * 2 * KV_HEADS * DIM * 2 / BANDWIDTH
        multiplied = 4 * HEADS * DIM * int((length * units[:, 0]).sum()) / RATE
        return 1e6 * max(read, multiplied)

    def attend(self, kind: str, block: int, warps: int, stages: int) -> None:
        n, rows = self.numbers, self.shape.narrow if kind == "narrow" else self.shape.wide
        units = len(self.division.narrow if kind == "narrow" else self.division.wide)
        if not units:
            return
        attend_units[(KV_HEADS, units)](
            self.qkv, self.kv[0], self.kv[1], self.out, self.parts, self.weights,
            n[f"{kind}_count"], n[kind], n[f"{kind}_lanes"], n["bases"], n["counts"],
            n["positions"], n["table"], math.log2(math.e) / math.sqrt(DIM), HEADS=HEADS,
            KV_HEADS=KV_HEADS, GROUP=4, LANE_HEADS=4, DIM=DIM, BLOCK_D=DIM, WINDOW=0, ROWS=rows,
            BLOCK_M=4 * rows, BLOCK_N=block, IEEE=False, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def combine(self) -> None:
        if self.division.parts:
            several = self.numbers["several"]
            combine_parts[(len(several), HEADS)](
                self.out, self.parts, self.weights, several, self.numbers["bases"],
                self.numbers["counts"], HEADS=HEADS, DIM=DIM, BLOCK_D=DIM, CHUNK=8, num_warps=2,
            )  # fmt: skip


def microseconds(call: object) -> float:
    return 1e3 * triton.testing.do_bench(call, warmup=10, rep=60, return_mode="median")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="try other blocks")
    tune = parser.parse_args().tune
    print(f"{'case':32} {'narrow':>8} {'wide':>8} {'combine':>8} {'floor':>8}  us; units, parts")
    for name, tables, rows in cases():
        wide = 16 if sum(rows) <= 512 else 32
        step = Step(tables, rows, Shape(4, wide))
        division = step.division
        times = [
            microseconds(lambda step=step: step.attend("narrow", 64, 4, 2)),
            microseconds(lambda step=step: step.attend("wide", 64, 4, 3)),
            microseconds(step.combine),
        ]
        counts = f"{len(division.narrow)} + {len(division.wide)}, {division.parts}"
        shown = " ".join(f"{t:8.1f}" for t in (*times, step.floor()))
        print(f"{name:32} {shown}  {counts}", flush=True)
        for block, warps, stages in ((32, 4, 3), (64, 4, 3), (64, 8, 3), (128, 4, 2), (128, 8, 2)):
            for kind in ("narrow", "wide") if tune else ():
                if len(division.narrow if kind == "narrow" else division.wide):
                    time = microseconds(
                        lambda step=step, how=(kind, block, warps, stages): step.attend(*how)
                    )
                    print(f"    {kind} {block} {warps} {stages}: {time:.1f}", flush=True)


if __name__ == "__main__":
    main()
