"""Configurations read from both kinds of files agree with transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tiny_models import write_gguf

from lmc.errors import ModelError
from lmc.runtime.config import ModelConfig, RopeScaling, config_from_gguf, config_from_hf
from lmc.runtime.gguf_file import GGUFFile
from lmc.runtime.store import resolve

TINY = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
SIZES = ModelConfig("llama", 96, 48, 80, 2, 6, 2, 8, 128, rms_eps=1e-6)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def of(family: str, **more: Any) -> ModelConfig:
    """What we read from what transformers writes."""
    cls = getattr(transformers, f"{family.capitalize()}Config")
    return config_from_hf(cls(**{**TINY, **more}).to_dict())


def test_each_family_is_read() -> None:
    expected = {
        "llama": SIZES,
        "mistral": dataclasses.replace(SIZES, family="mistral", sliding_window=4096),
        "qwen2": dataclasses.replace(SIZES, family="qwen2", qkv_bias=True),
        "qwen3": dataclasses.replace(SIZES, family="qwen3", qk_norm=True, head_dim=128),
    }
    for family, config in expected.items():
        assert of(family) == config


def test_switches_are_read() -> None:
    assert of("llama", tie_word_embeddings=True).tied
    assert of("llama", head_dim=16).head_dim == 16
    assert config_from_hf({**TINY, "model_type": "qwen3"}).head_dim == 128
    assert of("llama", rms_norm_eps=1e-5).rms_eps == 1e-5
    assert of("mistral", sliding_window=None).sliding_window is None
    assert of("mistral", sliding_window=64).sliding_window == 64
    assert of("qwen2", sliding_window=64).sliding_window is None
    window = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
    assert of("qwen2", **window).sliding_window == 64


def test_sliding_windows_in_some_layers_are_refused() -> None:
    with pytest.raises(ModelError, match="some of its layers"):
        of("qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=1)
    # Files of older versions have no list of layer types.
    old = {**TINY, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}
    assert config_from_hf({**old, "max_window_layers": 0}).sliding_window == 64
    assert config_from_hf({**old, "max_window_layers": 2}).sliding_window is None
    with pytest.raises(ModelError, match="some of its layers"):
        config_from_hf({**old, "max_window_layers": 1})


@pytest.mark.parametrize("style", ["new", "old"])
def test_rotary_settings_are_read_in_both_styles(style: str) -> None:
    rope = {"rope_theta": 500_000.0, **LLAMA3}
    if style == "new":
        config = of("llama", rope_parameters=rope)
    else:
        old = {**TINY, "model_type": "llama", "rope_theta": 500_000.0, "rope_scaling": LLAMA3}
        config = config_from_hf(old)
    assert config.rope_theta == 500_000.0
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    linear = {**TINY, "model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert config_from_hf(linear).rope_scaling == RopeScaling("linear", 2.0)
    plain = {**TINY, "model_type": "llama", "rope_scaling": {"rope_type": "default"}}
    assert config_from_hf(plain).rope_scaling is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "gemma2"}, "'gemma2' are not supported"),
        ({"model_type": None}, "'None' are not supported"),
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"hidden_size": "48"}, "hidden_size is '48', not a size"),
        ({"vocab_size": 0}, "vocab_size is 0, not a size"),
        ({"rms_norm_eps": "x"}, "not a number"),
        ({"num_key_value_heads": 4}, "cannot share 4"),
        ({"head_dim": 7}, "heads of 7"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"attention_bias": True}, "biases in its attention"),
        ({"mlp_bias": True}, "feed-forward"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "kind 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "does not say factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
    ],
)
def test_what_cannot_be_followed_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        config_from_hf({**TINY, "model_type": "llama", **change})


def test_an_unknown_family_is_told_the_known_ones() -> None:
    with pytest.raises(ModelError) as caught:
        config_from_hf({"model_type": "gpt2"})
    assert "llama, mistral, qwen2, qwen3" in str(caught.value.hint)


# GGUF.

METADATA: dict[str, Any] = {
    ".block_count": 2,
    ".context_length": 128,
    ".embedding_length": 48,
    ".feed_forward_length": 80,
    ".attention.head_count": 6,
    ".attention.head_count_kv": 2,
    ".attention.layer_norm_rms_epsilon": 2.0**-20,
}
TENSORS = {"token_embd.weight": np.zeros((96, 48), dtype=np.float32)}


def from_gguf(
    path: Path, arch: str = "llama", tensors: dict[str, Any] | None = None, **change: Any
) -> ModelConfig:
    metadata = {**METADATA, **{"." + key: value for key, value in change.items()}}
    metadata = {k: v for k, v in metadata.items() if v is not None}
    file = write_gguf(
        path / "m.gguf", arch=arch, metadata=metadata, tensors={**TENSORS, **(tensors or {})}
    )
    with GGUFFile(file) as opened:
        return config_from_gguf(opened)


def test_each_architecture_of_gguf_is_read(tmp_path: Path) -> None:
    base = dataclasses.replace(SIZES, rms_eps=2.0**-20, tied=True)
    assert from_gguf(tmp_path) == base
    bias = {"blk.0.attn_q.bias": np.zeros(48, dtype=np.float32)}
    expected = dataclasses.replace(base, family="qwen2", qkv_bias=True)
    assert from_gguf(tmp_path, "qwen2", bias) == expected
    wide = {"attention.key_length": 32, "attention.value_length": 32}
    expected = dataclasses.replace(base, family="qwen3", qk_norm=True, head_dim=32)
    assert from_gguf(tmp_path, "qwen3", **wide) == expected


def test_switches_of_gguf_are_read(tmp_path: Path) -> None:
    head = {"output.weight": np.zeros((96, 48), dtype=np.float32)}
    assert not from_gguf(tmp_path, tensors=head).tied
    assert from_gguf(tmp_path, **{"rope.freq_base": 500.0}).rope_theta == 500.0
    assert from_gguf(tmp_path, **{"attention.sliding_window": 64}).sliding_window == 64
    assert from_gguf(tmp_path, **{"attention.head_count_kv": [2, 2]}).kv_heads == 2
    assert from_gguf(tmp_path, **{"attention.head_count_kv": None}).kv_heads == 6
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    assert from_gguf(tmp_path, **linear).rope_scaling == RopeScaling("linear", 2.0)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_found_again_from_its_divisors(factor: float, tmp_path: Path) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_theta": 500_000.0, **LLAMA3, "factor": factor}
    config = transformers.LlamaConfig(**{**TINY, "head_dim": 64}, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    plain = 500_000.0 ** -(np.arange(32) / 32)
    divisors = (plain / scaled.double().numpy()).astype(np.float32)
    change = {"rope.freq_base": 500_000.0, "attention.key_length": 64, "attention.value_length": 64}
    read = from_gguf(tmp_path, tensors={"rope_freqs.weight": divisors}, **change)
    assert read.rope_scaling == RopeScaling("llama3", factor)
    divisors[3] *= 2
    with pytest.raises(ModelError, match="rotary factors of an unknown kind"):
        from_gguf(tmp_path, tensors={"rope_freqs.weight": divisors}, **change)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"block_count": None}, "does not say llama.block_count"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"attention.value_length": 16}, "value heads"),
        ({"rope.dimension_count": 4}, "part of each head"),
        ({"rope.scaling.type": "yarn"}, "kind 'yarn'"),
        ({"attention.head_count_kv": [2, 6]}, "not a size"),
    ],
)
def test_what_cannot_be_followed_in_gguf_is_refused(
    change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=problem):
        from_gguf(tmp_path, **change)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'gemma' are not supported"):
        from_gguf(tmp_path, "gemma")
    with pytest.raises(ModelError, match="no token embedding"):
        config_from_gguf(GGUFFile(write_gguf(tmp_path / "m.gguf", metadata=METADATA)))


@pytest.mark.model
def test_the_default_model_is_read() -> None:
    path = resolve("smollm2-135m").path
    assert path
    config = config_from_gguf(GGUFFile(path))
    assert dataclasses.replace(config, rms_eps=1e-5) == ModelConfig(
        "llama", 49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, 100_000.0, tied=True
    )
