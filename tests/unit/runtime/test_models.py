"""Model families against transformers in float32, on small random configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from lmc.runtime.attention.base import Batch
from lmc.runtime.config import ModelConfig, RopeScaling
from lmc.runtime.kernels.parallel import Team
from lmc.runtime.kernels.products import usable
from lmc.runtime.layers import KernelRowOps, Rotary, RowOps, TorchRowOps
from lmc.runtime.model_runner import ModelRunner
from lmc.runtime.request import Sampling, Segment, Step
from tests.unit.runtime.random_models import (
    TINY,
    VARIANTS,
    random_tokens,
    random_weights,
    some_slots,
)

CONFIGS = {
    **VARIANTS,
    "llama3 rope": replace(
        TINY,
        rope_theta=500.0,
        rope_scaling=RopeScaling(
            "llama3", 8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64
        ),
    ),
    "linear rope": replace(TINY, rope_scaling=RopeScaling("linear", 4.0)),
    "odd sizes": replace(TINY, vocab_size=333, head_dim=24, intermediate_size=100),
}


def theirs(config: ModelConfig) -> Any:
    """The same model in transformers, with the same weights."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
            }
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    family = name[config.family]
    their_config = getattr(transformers, f"{family}Config")(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context_length,
        rms_norm_eps=config.rms_eps,
        rope_parameters=rope,
        tie_word_embeddings=config.tied,
        attn_implementation="eager",
        **({"sliding_window": config.sliding_window} if family == "Mistral" else {}),
    )
    model = getattr(transformers, f"{family}ForCausalLM")(their_config).eval()
    missing, unexpected = model.load_state_dict(random_weights(config), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


def logits_of(runner: ModelRunner, tokens: np.ndarray) -> Tensor:
    """Log-probabilities of all tokens after each row."""
    every = tuple(range(runner.vocab_size))
    step = Step(
        (
            Segment(
                tokens=tokens,
                start=0,
                slots=some_slots(len(tokens), seed=0, pool=runner.kv_tokens),
                targets=(every,) * len(tokens),
            ),
        )
    )
    return torch.tensor(runner.run(step).scores[0])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("attention", ["auto", "torch", "reference"])
def test_a_family_agrees_with_transformers(name: str, attention: str) -> None:
    config = CONFIGS[name]
    tokens = random_tokens(config, 150, seed=0)
    with torch.inference_mode():
        expected = theirs(config)(torch.from_numpy(tokens).long()[None]).logits[0].log_softmax(-1)
    runner = ModelRunner(
        config, random_weights(config), dtype="float32", kv_tokens=256, attention=attention,
        threads=1,
    )  # fmt: skip
    got = logits_of(runner, tokens)
    error = (got - expected).abs()
    assert error.max() < 1e-5 * expected.abs().max()  # they reach down to -50 or -100
    assert error.mean() < 1.5e-6 * expected.abs().mean()
    top = expected.topk(2).values
    clear = top[:, 0] - top[:, 1] > 1e-4
    assert (got.argmax(-1) == expected.argmax(-1))[clear].all()


@pytest.mark.parametrize("name", VARIANTS)
def test_bfloat16_stays_near_float32(name: str) -> None:
    config = VARIANTS[name]
    tokens = random_tokens(config, 100, seed=1)
    exact, rounded = (
        logits_of(
            ModelRunner(config, random_weights(config), dtype=dtype, kv_tokens=128, threads=1),
            tokens,
        ).double()
        for dtype in ("float32", "bfloat16")
    )
    divergence = (exact.exp() * (exact - rounded)).sum(-1)
    assert divergence.mean() < 0.02  # these random models are far from flat: 8 nats are usual
    assert divergence.max() < 0.3


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_row_kernels_agree_with_their_definitions(name: str, half: bool) -> None:
    config, rows, pool = VARIANTS[name], 9, 40
    dtype = torch.bfloat16 if half else torch.float32
    rotary, team = Rotary(config), Team(2)
    both: list[RowOps] = [
        KernelRowOps(config, rotary, team, half=half),
        TorchRowOps(config, rotary),
    ]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    table = random(50, config.hidden_size).to(dtype)
    tokens = torch.tensor([3, 49, 0, 7, 7, 1, 2, 3, 4], dtype=torch.int32)
    weight, x = random(config.hidden_size), random(rows, config.hidden_size)
    wide = (config.heads + 2 * config.kv_heads) * config.head_dim
    qkv = 3 * random(rows, wide)
    norms = [random(config.head_dim) if config.qk_norm else None for _ in range(2)]
    positions = torch.tensor([0, 1, 2, 511, 100, 3, 4, 5, 77], dtype=torch.int32)
    slots = torch.randperm(pool, generator=generator)[:rows].int()
    results = []
    for ops in both:
        embedded = torch.zeros(rows, config.hidden_size)
        ops.embed(tokens, table, embedded)
        normed = torch.zeros(rows, config.hidden_size, dtype=dtype)
        ops.norm(x, weight, normed)
        queries = torch.zeros(rows, config.heads, config.head_dim)
        keys, values = (
            torch.full((pool, config.kv_heads, config.head_dim), 9.0, dtype=dtype) for _ in range(2)
        )
        ops.rotate_store(qkv, positions, slots, queries, keys, values, *norms)
        results.append([embedded, normed.float(), queries, keys.float(), values.float()])
    for compiled, defined in zip(*results, strict=True):
        unit = 2**-8 if half else 2**-22  # the last place may be rounded the other way
        assert ((compiled - defined).abs() <= unit * (defined.abs() + 1)).all()
    assert torch.equal(results[0][0], table[tokens.long()].float())


def test_sums_of_padding_do_not_leak_into_short_steps() -> None:
    """A step after a longer one computes what it would have computed first."""
    config = TINY
    weights = random_weights(config)
    tokens = random_tokens(config, 5, seed=3)
    fresh = ModelRunner(config, weights, kv_tokens=256, threads=1)
    used = ModelRunner(config, weights, kv_tokens=256, threads=1)
    logits_of(used, random_tokens(config, 200, seed=4))
    assert torch.equal(logits_of(fresh, tokens), logits_of(used, tokens))


def test_batches_are_laid_out_row_by_row() -> None:
    slots = np.array([5, 6, 9], np.int32)
    step = Step(
        (
            Segment(tokens=np.array([1, 2], np.int32), start=1, slots=slots),
            Segment(tokens=np.array([3], np.int32), start=0, slots=slots[:1]),
        )
    )
    batch = Batch.of(step)
    assert batch.first == (0, 2)
    assert batch.tokens.tolist() == [1, 2, 3]
    assert batch.positions.tolist() == [1, 2, 0]
    assert batch.slots.tolist() == [6, 9, 5]
    assert {a.dtype for a in (batch.tokens, batch.positions, batch.slots)} == {np.dtype("int32")}


@pytest.mark.model
def test_the_real_model_agrees_with_transformers() -> None:
    from lmc.runtime.runners import read_config
    from lmc.runtime.store import resolve
    from lmc.runtime.weights import load_weights

    files = resolve("smollm2-135m")
    config = read_config(files)
    weights = load_weights(files, config, torch.float32)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
        )
    ).eval()
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    # the model's own words are a better text than random tokens: 120 greedy ones after a prompt
    runner = ModelRunner(config, weights, dtype="float32", kv_tokens=256, threads=1)
    prompt = np.array([1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198], np.int32)
    tokens, slots = [*prompt.tolist()], some_slots(256, 0, pool=256)
    for _ in range(120):
        fed = 1 if len(tokens) > len(prompt) else len(prompt)
        segment = Segment(
            tokens=np.array(tokens[-fed:], np.int32),
            start=len(tokens) - fed,
            slots=slots[: len(tokens)],
            made=len(tokens) > len(prompt),
            sample=Sampling(),
        )
        tokens.append(runner.run(Step((segment,))).tokens[0])
    with torch.inference_mode():
        expected = model(torch.tensor(tokens)[None]).logits[0].log_softmax(-1)
    top = expected.topk(2).values
    clear = top[:, 0] - top[:, 1] > 1e-4
    made = torch.tensor(tokens[len(prompt) :])
    rows = slice(len(prompt) - 1, -1)
    assert (expected.argmax(-1)[rows] == made)[clear[rows]].all()

    got = logits_of(runner, np.array(tokens, np.int32))
    assert (got - expected).abs().max() < 1e-3
    if {"amx", "dot"} & {*usable()}:
        half = ModelRunner(config, weights, dtype="bfloat16", kv_tokens=256, threads=1)
        rounded = logits_of(half, np.array(tokens, np.int32))
        divergence = (expected.exp() * (expected - rounded)).sum(-1)
        assert divergence.mean() < 0.003
        assert (rounded.argmax(-1) == expected.argmax(-1)).float().mean() >= 0.97
