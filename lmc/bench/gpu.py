"""`lmc bench gpu`: single steps and whole programs on a CUDA device."""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from lmc.bench.cpu import Figure, Report
from lmc.bench.shapes import SHAPES, Shape, Words, single_words
from lmc.engine import Engine
from lmc.errors import UsageError
from lmc.runtime.long_lived import spared_collections

__all__ = ["GPU_FIGURES", "gpu_markdown", "run_gpu"]

STEPS = ("decode-1", "decode-64", "decode-256", "cached", "prefill")
GPU_FIGURES = (*STEPS, *SHAPES)
CONTEXT = 1024
STEP_TOKENS = 64
PREFILL = 8192


def run_gpu(
    names: Sequence[str] = (),
    *,
    model: str,
    weights: str | None = None,
    dtype: str = "auto",
    device: str = "cuda",
    deterministic: bool = False,
    tensor_parallel: int = 1,
    repeats: int = 3,
    scale: float = 1.0,
    max_batch_tokens: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure.

    Args:
        names: some of `GPU_FIGURES`; all if empty.
        weights: "random", or None for the model's own.
        tensor_parallel: processes that the model is divided among.
        repeats: of the single steps; programs run once at a quarter of their rows to warm up, and
            then once.
        scale: share of each program's rows.
        say: told what is measured, and each figure.

    Raises:
        UsageError: there is no such figure, or no device.
    """
    unknown = [name for name in names if name not in GPU_FIGURES]
    if unknown:
        raise UsageError(
            f"there is no benchmark {unknown[0]!r}",
            hint=f"benchmarks on a GPU are {', '.join(GPU_FIGURES)}",
        )
    figures = []
    start = time.perf_counter()
    made = Engine(
        model, device=device, dtype=dtype, weights=weights, deterministic=deterministic,
        max_batch_tokens=max_batch_tokens, tensor_parallel=tensor_parallel,
    )  # fmt: skip
    with made as engine, spared_collections():
        say(f"the engine is ready after {time.perf_counter() - start:.1f} s")
        words = single_words(engine.executor.target.tokenizer)
        for name in names or GPU_FIGURES:
            if name in SHAPES:
                figure = _program(SHAPES[name], engine, words, scale)
            elif name == "prefill":
                figure = _prefill(engine, words, repeats)
            elif name == "cached":
                figure = _cached(engine, words, repeats)
            else:
                figure = _decode(int(name.rpartition("-")[2]), engine, words, repeats)
            say(f"{figure.name:18} {figure.mine:10.3f} {figure.unit:10} {figure.note}")
            figures.append(figure)
        runner: Any = engine._runner
        circumstances = _circumstances(engine.model, runner.description, runner.kv_tokens)
    return Report(tuple(figures), circumstances)


def gpu_markdown(report: Report) -> str:
    """The report as a table and what it was measured on; with a peer, how many times better."""
    if "peer" in report.circumstances:
        lines = ["| figure | lmc | peer | ratio | what |", "|---|---:|---:|---:|---|"]
    else:
        lines = ["| figure | lmc | what |", "|---|---:|---|"]
    for f in report.figures:
        cells = [f.name, f"{f.mine:,.4g} {f.unit}"]
        if "peer" in report.circumstances:
            cells.append("" if f.peer is None else f"{f.peer:,.4g} {f.unit}")
            cells.append("" if f.ratio is None else f"{f.ratio:.2f}")
        lines.append(f"| {' | '.join([*cells, f.note])} |")
    lines += ["", *(f"* {name}: {value}" for name, value in report.circumstances.items())]
    return "\n".join(lines) + "\n"


def _circumstances(model: str, description: str, kv_tokens: int) -> dict[str, str]:
    import torch

    from lmc import __version__

    return {
        "lmc": __version__,
        "model": model,
        "engine": description,
        "KV tokens": f"{kv_tokens:,}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _seconds(call: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _decode(batch: int, engine: Engine, words: Sequence[str], repeats: int) -> Figure:
    source = Words(words, f"decode/{batch}")
    prompts = [source(CONTEXT) for _ in range(batch)]

    def generate(tokens: int) -> None:
        engine.generate(prompts, tokens, ignore_eos=True)

    generate(STEP_TOKENS)
    times = []
    for _ in range(repeats):
        one, many = _seconds(lambda: generate(1)), _seconds(lambda: generate(1 + STEP_TOKENS))
        times.append((many - one) / STEP_TOKENS * 1e3)
    return Figure(
        f"decode-{batch}", "ms", statistics.median(times),
        note=f"a step of {batch}, {CONTEXT} tokens of context each",
    )  # fmt: skip


def _cached(engine: Engine, words: Sequence[str], repeats: int) -> Figure:
    prompt = Words(words, "cached")(CONTEXT)
    engine.generate(prompt, 1, ignore_eos=True)
    times = [
        _seconds(lambda: engine.generate(prompt, 1, ignore_eos=True)) * 1e3
        for _ in range(3 * repeats)
    ]
    return Figure(
        "cached", "ms", statistics.median(times), note="first token of a prompt that is cached"
    )


def _prefill(engine: Engine, words: Sequence[str], repeats: int) -> Figure:
    source = Words(words, "prefill")
    engine.generate(source(PREFILL - 8), 1, ignore_eos=True)
    rates = []
    for _ in range(repeats):
        prompt = source(PREFILL - 8)
        before = engine.stats.computed_tokens
        seconds = _seconds(lambda prompt=prompt: engine.generate(prompt, 1, ignore_eos=True))  # type: ignore[misc]
        rates.append((engine.stats.computed_tokens - before) / seconds)
    return Figure("prefill", "tokens/s", statistics.median(rates), note=f"{PREFILL} tokens")


def _program(shape: Shape, engine: Engine, words: Sequence[str], scale: float) -> Figure:
    counts: dict[str, float] = {}

    def measure(seed: str, count: int) -> float:
        rows = shape.make(Words(words, f"{shape.name}/{seed}"), count)
        engine.forget()
        runner: Any = engine._runner
        before, spent = engine.stats.to_json(), dict(runner.seconds)

        def call() -> None:
            for result in shape.program.run_batch(rows, engine=engine, progress=False):
                if result.error is not None:
                    raise result.error

        seconds = _seconds(call)
        after: Any = engine.stats.to_json()
        names = ("prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens",
                 "forced_tokens", "model_steps")  # fmt: skip
        old: Any = before
        counts.update({name: after[name] - old[name] for name in names})
        counts.update({
            f"{name}_s": round(after["seconds"][name] - old["seconds"][name], 3)
            for name in after["seconds"]
        })  # fmt: skip
        counts.update({
            f"runner_{name}_s": round(runner.seconds[name] - spent[name], 3)
            for name in runner.seconds
        })  # fmt: skip
        return seconds

    count = max(1, round(shape.rows * scale))
    measure("warm", max(1, count // 4))
    seconds = measure("measured", count)
    note = ", ".join(f"{name} {value}" for name, value in counts.items())
    return Figure(shape.name, "programs/s", count / seconds, note=f"{seconds:.2f} s: {note}")
