"""What a model is: sizes and switches, read from a GGUF header or a config.json. No tensors."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ModelConfig", "RopeScaling"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of rotary frequencies (`rope_type` "llama3"), or "linear"."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer of the Llama kind.

    Attributes:
        family: "llama", "mistral", "qwen2" or "qwen3".
        qkv_bias: biases on the query, key and value projections (Qwen2).
        qk_norm: RMS norm on each head's query and key (Qwen3).
        sliding_window: attend to this many positions back, or None for all.
        tied: the output matrix is the embedding.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    rms_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    tied: bool = False
