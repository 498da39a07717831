"""What a model is: sizes and switches, read from a GGUF header or a config.json. No tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmc.errors import ModelError

if TYPE_CHECKING:
    from lmc.runtime.gguf_file import GGUFFile

__all__ = ["FAMILIES", "ModelConfig", "RopeScaling", "config_from_gguf", "config_from_hf"]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


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


def config_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a Hugging Face config.json describes.

    Raises:
        ModelError: the model is of no supported family, needs something that is not supported, or
            a size is missing or makes no sense.
    """
    fields = _Fields(config, "config.json")
    family = str(config.get("model_type", "unknown"))
    if family not in FAMILIES:
        raise _unknown_family(family)
    _refuse_unsupported(config, family)
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    context = fields.size("max_position_embeddings")
    rope = _hf_rope(config)
    return _checked(
        ModelConfig(
            family=family,
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size"),
            layers=fields.size("num_hidden_layers"),
            heads=heads,
            kv_heads=fields.size("num_key_value_heads", heads),
            head_dim=fields.size("head_dim", 128 if family == "qwen3" else hidden // heads),
            context_length=context,
            rms_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=_Fields(rope, "config.json").number("rope_theta", 10_000.0),
            rope_scaling=_hf_scaling(rope, context),
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            sliding_window=_hf_window(config, family),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    )


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """The configuration that a GGUF file describes, by its metadata and its tensor table.

    Raises:
        ModelError: as for `config_from_hf`.
    """
    metadata, tensors = file.metadata, file.tensors
    arch = str(metadata.get("general.architecture", "unknown"))
    if arch not in ("llama", "qwen2", "qwen3"):  # Mistral files say llama, too
        raise _unknown_family(arch)
    if metadata.get(f"{arch}.expert_count"):
        raise _unsupported("a mixture of experts")
    fields = _Fields(metadata, "the GGUF header", f"{arch}.")
    hidden, heads = fields.size("embedding_length"), fields.size("attention.head_count")
    head_dim = fields.size("attention.key_length", hidden // heads)
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError("the GGUF file has no token embedding", hint="give a complete model file")
    if fields.size("attention.value_length", head_dim) != head_dim:
        raise _unsupported("value heads of another size than key heads")
    if fields.size("rope.dimension_count", head_dim) != head_dim:
        raise _unsupported("rotary positions on a part of each head")
    return _checked(
        ModelConfig(
            family=arch,
            vocab_size=embedding.shape[0],
            hidden_size=hidden,
            intermediate_size=fields.size("feed_forward_length"),
            layers=fields.size("block_count"),
            heads=heads,
            kv_heads=fields.size("attention.head_count_kv", heads),
            head_dim=head_dim,
            context_length=fields.size("context_length"),
            rms_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-5),
            rope_theta=fields.number("rope.freq_base", 10_000.0),
            rope_scaling=_gguf_scaling(file, arch, fields),
            qkv_bias="blk.0.attn_q.bias" in tensors,
            qk_norm=arch == "qwen3",
            sliding_window=metadata.get(f"{arch}.attention.sliding_window") or None,
            tied="output.weight" not in tensors,
        )
    )


class _Fields:
    """Typed access to a mapping of settings, with errors that name the setting."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values, self._where, self._prefix = values, where, prefix

    def size(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if isinstance(value, Sequence) and value and len(set(value)) == 1:
            value = value[0]  # some GGUF files repeat a size for each layer
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{self._where} says {self._prefix}{name} is {value!r}, not a size")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self._where} says {self._prefix}{name} is {value!r}, not a number")
        return float(value)

    def _get(self, name: str, default: object) -> object:
        value = self._values.get(self._prefix + name)
        value = default if value is None else value
        if value is None:
            raise ModelError(f"{self._where} does not say {self._prefix}{name}")
        return value


def _unknown_family(name: str) -> ModelError:
    return ModelError(
        f"models of the architecture {name!r} are not supported",
        hint=f"the supported families are {', '.join(FAMILIES)}",
    )


def _unsupported(what: str) -> ModelError:
    return ModelError(f"the model uses {what}, which is not supported")


def _refuse_unsupported(config: Mapping[str, Any], family: str) -> None:
    """Raise where a switch would change what the model computes and we would not follow it."""
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise _unsupported(f"the activation {config['hidden_act']!r}")
    if family != "qwen2" and config.get("attention_bias"):
        raise _unsupported("biases in its attention")
    if config.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise _unsupported("rotary positions on a part of each head")
    if config.get("mlp_bias"):
        raise _unsupported("biases in its feed-forward layers")
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "unknown")
        raise ModelError(
            f"the weights are quantised by {method!r}, which cannot be read",
            hint="give a folder with plain float weights, or a GGUF file",
        )


def _hf_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings, from `rope_parameters` or from the two fields older files have."""
    rope = {"rope_theta": config.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        found = config.get(key)
        if isinstance(found, Mapping):
            rope.update({k: v for k, v in found.items() if v is not None})
    return rope


def _hf_scaling(rope: Mapping[str, Any], context: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    fields = _Fields(rope, "config.json")
    if kind == "linear":
        return RopeScaling("linear", fields.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            fields.number("factor"),
            fields.number("low_freq_factor"),
            fields.number("high_freq_factor"),
            fields.size("original_max_position_embeddings", context),
        )
    raise _unsupported(f"rotary scaling of the kind {kind!r}")


def _hf_window(config: Mapping[str, Any], family: str) -> int | None:
    window = config.get("sliding_window")
    if family == "llama" or not window:
        return None
    if family == "mistral":
        return int(window)
    # Qwen files name a window and switch it off, or use it from some layer on.
    kinds = config.get("layer_types")
    if kinds is None:
        if not config.get("use_sliding_window", False):
            return None
        first = int(config.get("max_window_layers", 28))
        layers = int(config.get("num_hidden_layers", 0))
        kinds = ["sliding_attention" if n >= first else "full_attention" for n in range(layers)]
    found = set(kinds)
    if found == {"full_attention"}:
        return None
    if found == {"sliding_attention"}:
        return int(window)
    raise _unsupported("a sliding window in some of its layers only")


def _gguf_scaling(file: GGUFFile, arch: str, fields: _Fields) -> RopeScaling | None:
    kind = file.metadata.get(f"{arch}.rope.scaling.type", "none")
    if kind == "linear":
        return RopeScaling("linear", fields.number("rope.scaling.factor"))
    if kind != "none":
        raise _unsupported(f"rotary scaling of the kind {kind!r}")
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file.read("rope_freqs.weight").tolist(), fields)
    return None


def _llama3_scaling(divisors: list[float], fields: _Fields) -> RopeScaling:
    """The settings behind the finished divisor of each frequency that Llama 3.1 files hold.

    All released models differ in the factor alone, which the slowest frequencies have whole; the
    other settings are confirmed by computing the divisors again.
    """
    scaling = RopeScaling("llama3", max(divisors))
    base = fields.number("rope.freq_base", 10_000.0)
    for plane, divisor in enumerate(divisors):
        turns = scaling.original_context / (2 * math.pi * base ** (plane / len(divisors)))
        span = scaling.high_freq_factor - scaling.low_freq_factor
        share = min(1.0, max(0.0, (turns - scaling.low_freq_factor) / span))
        expected = 1 / ((1 - share) / scaling.factor + share)
        if not math.isclose(divisor, expected, rel_tol=1e-3):
            raise _unsupported("rotary factors of an unknown kind")
    return scaling


def _checked(config: ModelConfig) -> ModelConfig:
    if config.heads % config.kv_heads:
        raise ModelError(
            f"{config.heads} attention heads cannot share {config.kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise ModelError(f"heads of {config.head_dim} elements cannot be rotated in pairs")
    return config
