"""Small random models and steps over them, for the tests of the runner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from lmc.runtime.config import ModelConfig
from lmc.runtime.model_runner import ModelRunner
from lmc.runtime.request import IntArray, Outcome, Sampling, Segment, Step

TINY = ModelConfig(
    family="llama",
    vocab_size=320,
    hidden_size=96,
    intermediate_size=160,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=32,
    context_length=512,
)
VARIANTS = {
    "llama": TINY,
    "qwen2": replace(TINY, family="qwen2", qkv_bias=True, tied=True),
    "qwen3": replace(TINY, family="qwen3", qk_norm=True, heads=4),
    "mistral": replace(TINY, family="mistral", sliding_window=70, heads=2),
}


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Weights of a scale at which attention and logits are neither flat nor certain."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_dim

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * 1.5 / columns**0.5

    def vector(length: int) -> Tensor:
        return 1 + 0.2 * torch.randn(length, generator=generator)

    weights = {
        "model.embed_tokens.weight": matrix(config.vocab_size, hidden) * 8,
        "model.norm.weight": vector(hidden),
    }
    if not config.tied:
        weights["lm_head.weight"] = matrix(config.vocab_size, hidden) * 3
    heads = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    for i in range(config.layers):
        at = f"model.layers.{i}."
        for name, count in heads.items():
            weights[f"{at}self_attn.{name}_proj.weight"] = matrix(count * size, hidden)
            if config.qkv_bias:
                weights[f"{at}self_attn.{name}_proj.bias"] = vector(count * size) - 1
            if config.qk_norm and name != "v":
                weights[f"{at}self_attn.{name}_norm.weight"] = vector(size)
        weights[f"{at}self_attn.o_proj.weight"] = matrix(hidden, config.heads * size)
        for name in ("gate", "up"):
            weights[f"{at}mlp.{name}_proj.weight"] = matrix(inner, hidden)
        weights[f"{at}mlp.down_proj.weight"] = matrix(hidden, inner)
        weights[f"{at}input_layernorm.weight"] = vector(hidden)
        weights[f"{at}post_attention_layernorm.weight"] = vector(hidden)
    return weights


@dataclass
class Sequence:
    """A sequence with its slots, fed to a runner piece by piece."""

    tokens: IntArray
    slots: IntArray
    done: int = 0
    scores: list[tuple[float, ...]] = field(default_factory=list)

    def piece(self, count: int, *, made: bool = False, every: tuple[int, ...] = ()) -> Segment:
        """The next tokens, each with `every` as its targets."""
        start, end = self.done, self.done + count
        assert end <= len(self.tokens)
        self.done = end
        return Segment(
            tokens=self.tokens[start:end],
            start=start,
            slots=self.slots[:end],
            made=made,
            sample=Sampling(),
            targets=(every,) * count if every else (),
        )


def random_tokens(config: ModelConfig, count: int, seed: int) -> IntArray:
    return np.random.default_rng(seed).integers(0, config.vocab_size, count).astype(np.int32)


def some_slots(count: int, seed: int, pool: int = 4096) -> IntArray:
    """Distinct slots in no order."""
    return np.random.default_rng(seed).permutation(pool)[:count].astype(np.int32)


def run(runner: ModelRunner, *segments: Segment) -> Outcome:
    return runner.run(Step(segments))
