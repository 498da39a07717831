"""How often the host waits for the device while a compiled batch with constraints is decoded.

    python benchmarks/gpu_waits.py --model DIR --weights random [--shape json] [--rows 256]

The batch runs once, so that its prompts are cached and the constraint's table is made, and a second
time under torch's profiler, which sees every call of the CUDA runtime. Printed are the calls that
make the host wait, in all and for each forward pass:

    whole queue   cudaStreamSynchronize, cudaDeviceSynchronize, cudaMemcpy: nothing more can be put
                  into the queue until the device is done with all of it; should be 0
    results       cudaEventSynchronize: the host takes what a pass gave, while the passes after it
                  are in the queue already; never more than one a pass

and which share of the time the device computed. Without a CUDA device the script says so.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lmc.api import Program
from lmc.bench.shapes import SHAPES, Words, single_words
from lmc.engine import Engine

QUEUE = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
RESULTS = ("cudaEventSynchronize",)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", choices=["random"])
    parser.add_argument("--shape", default="json", choices=sorted(SHAPES))
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--deterministic", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device: nothing to measure")
    shape = SHAPES[args.shape]
    with Engine(
        args.model, device="cuda", weights=args.weights, deterministic=args.deterministic
    ) as engine:
        rows = shape.make(Words(single_words(engine.executor.target.tokenizer), "waits"), args.rows)
        run(engine, shape.program, rows)
        for name in ("as it is", "profiled"):
            before: dict[str, Any] = engine.stats.to_json()
            if name == "profiled":
                with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                    seconds = run(engine, shape.program, rows)
            else:
                seconds = run(engine, shape.program, rows)
            after: dict[str, Any] = engine.stats.to_json()
            told = {
                key: after[key] - before[key]
                for key in ("model_steps", "computed_tokens", "generated_tokens", "forced_tokens")
            }
            rate = args.rows / seconds
            print(f"{name}: {seconds * 1e3:.0f} ms, {rate:.1f} programs/s, {told}")
    report(seen, told["model_steps"], seconds)


def run(engine: Engine, program: Program, rows: list[dict[str, Any]]) -> float:
    """Run the batch; the seconds it took."""
    start = time.perf_counter()
    for result in program.run_batch(rows, engine=engine):
        if result.error is not None:
            raise result.error
    return time.perf_counter() - start


def report(seen: profile, passes: int, seconds: float) -> None:
    """Print the calls of the CUDA runtime that wait, and how long the device computed."""
    calls: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    computed = 0.0
    told: Any = seen
    for event in told.events():
        if event.device_type.name == "CUDA":
            computed += event.device_time_total
            if event.name.startswith("Memcpy"):
                copies[event.name] += 1
        elif event.name.startswith("cuda"):
            calls[event.name] += 1
    for what, names in (("whole queue", QUEUE), ("results", RESULTS)):
        for name in names:
            print(f"{what:12} {name:24} {calls[name]:6} {calls[name] / passes:8.3f} a pass")
    for name, count in copies.most_common():
        print(f"copies       {name:44} {count:6}")
    print(f"the device computed {computed / 1e6 / seconds:.0%} of the time")


if __name__ == "__main__":
    main()
