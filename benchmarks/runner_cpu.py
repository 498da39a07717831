"""How fast does the CPU runner compute, beside transformers on the same weights and machine?

    python benchmarks/runner_cpu.py [--threads N] [--dtype bfloat16|float32] [--runs N] [--tiny]

One JSON line for each case: prompts of several lengths, and decode steps of 1 to 32 rows over short
and long contexts that the rows share or not. Wall time is the fastest of the runs, as other work on
the machine only ever adds; `cpu_s` is that of the whole process. The rival computes the same step
with its own cache, with the better of its two attention implementations. Weights are random: speed
does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from lmc.runtime.config import ModelConfig
from lmc.runtime.model_runner import ModelRunner
from lmc.runtime.request import IntArray, Sampling, Segment, Step

SMOLLM2_135M = ModelConfig(
    family="llama",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1_536,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    context_length=8_192,
    rope_theta=100_000.0,
    tied=True,
)
KV_TOKENS = 24_576
TAIL = 16  # tokens of a row's own after a shared prefix


def measure(call: Callable[[], object], runs: int) -> dict[str, float]:
    """The fastest of `runs` calls, after one to warm up."""
    call()
    wall, cpu = [], []
    for _ in range(runs):
        start, busy = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - busy)
    return {"wall_s": round(min(wall), 5), "cpu_s": round(min(cpu), 5)}


def cases(tiny: bool) -> Iterator[tuple[str, int, int, bool]]:
    """Name, rows, context, whether rows share it; a prompt has no rows."""
    for length in (64,) if tiny else (32, 128, 512):
        yield f"prompt of {length}", 0, length, False
    for rows in (1, 4) if tiny else (1, 8, 16, 32):
        for context in (64,) if tiny else (64, 560):
            yield f"{rows} rows at {context}, private", rows, context, False
            if rows > 1:
                yield f"{rows} rows at {context}, shared", rows, context, True


def step_of(rows: int, context: int, shared: bool, vocabulary: int) -> Step:
    draw = np.random.default_rng(0)
    slots = draw.permutation(KV_TOKENS).astype(np.int32)

    def segment(count: int, start: int, table: IntArray) -> Segment:
        tokens = draw.integers(0, vocabulary, count).astype(np.int32)
        return Segment(tokens=tokens, start=start, slots=table, sample=Sampling())

    if rows == 0:
        return Step((segment(context, 0, slots[:context]),))
    common = context - TAIL if shared else 0
    own = context + 1 - common
    tables = [
        np.concatenate([slots[:common], slots[common + i * own : common + (i + 1) * own]])
        for i in range(rows)
    ]
    return Step(tuple(segment(1, context, table) for table in tables))


def fill(runner: ModelRunner) -> None:
    """Write every slot, so that decode steps find numbers wherever they look."""
    tokens = np.zeros(512, np.int32)
    for first in range(0, KV_TOKENS, len(tokens)):
        slots = np.arange(first, first + len(tokens), dtype=np.int32)
        runner.run(Step((Segment(tokens=tokens, start=0, slots=slots),)))


def rival(config: ModelConfig, dtype: torch.dtype, attention: str) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    theirs = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context_length,
        rms_norm_eps=config.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tied,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(theirs).to(dtype).eval()


@torch.inference_mode()
def rival_time(
    models: list[torch.nn.Module], rows: int, context: int, runs: int
) -> dict[str, float]:
    """The same step by transformers, the faster of its attention implementations."""
    found = []
    for model in models:
        prompt = torch.randint(0, model.config.vocab_size, (max(rows, 1), context))
        if rows == 0:
            found.append(measure(lambda m=model, p=prompt: m(p, logits_to_keep=1), runs))
            continue
        cache = model(prompt, logits_to_keep=1).past_key_values
        last = prompt[:, :1]

        def decode(
            m: torch.nn.Module = model, t: torch.Tensor = last, kept: object = cache
        ) -> None:
            m(t, past_key_values=kept, logits_to_keep=1).logits.argmax(-1)
            kept.crop(-1)

        found.append(measure(decode, runs))
    return min(found, key=lambda result: result["wall_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="few and small cases, no rival")
    options = parser.parse_args()

    model = rival(SMOLLM2_135M, torch.float32, "sdpa")
    runner = ModelRunner(
        SMOLLM2_135M,
        model.state_dict(),
        dtype=options.dtype,
        kv_tokens=KV_TOKENS,
        threads=options.threads,
    )
    fill(runner)
    torch.set_num_threads(runner.threads)
    models = (
        [] if options.tiny else [rival(SMOLLM2_135M, runner.dtype, a) for a in ("sdpa", "eager")]
    )
    about = {
        "runner": runner.description,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }
    print(json.dumps(about))
    for name, rows, context, shared in cases(options.tiny):
        step = step_of(rows, context, shared, SMOLLM2_135M.vocab_size)
        ours = measure(lambda step=step: runner.run(step), options.runs)
        tokens = rows or context
        line = {"case": name, "tok_s": round(tokens / ours["wall_s"], 1), **ours}
        if models:
            theirs = rival_time(models, rows, context, options.runs)
            line["rival_tok_s"] = round(tokens / theirs["wall_s"], 1)
            line["rival_wall_s"], line["rival_cpu_s"] = theirs["wall_s"], theirs["cpu_s"]
            line["times_faster"] = round(theirs["wall_s"] / ours["wall_s"], 2)
        print(json.dumps(line), flush=True)
    runner.close()


if __name__ == "__main__":
    main()
