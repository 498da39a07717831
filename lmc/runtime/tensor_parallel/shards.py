"""Which part of a model each rank has. No tensors.

Attention is divided by heads and feed-forward layers by their inner columns: what leads into them
is cut by rows, what leads out by columns, and the ranks' results are added up. The vocabulary of
the output matrix is cut into equal runs. Embeddings and norms are on every rank.

Source      Shoeybi et al., Megatron-LM, arXiv:1909.08053.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from lmc.errors import UsageError
from lmc.runtime.config import ModelConfig

__all__ = ["Shard", "check_divisible"]

_WHOLE = slice(None)
_PART = re.compile(r"(?:self_attn|mlp)\.(\w+)_proj\.")


def check_divisible(config: ModelConfig, size: int) -> None:
    """Refuse a number of ranks that cannot have equal parts of a model.

    Raises:
        UsageError: the number does not divide the heads or the inner columns, or neither divides
            the key-value heads nor is a multiple of them.
    """
    if _divides(config, size):
        return
    able = [n for n in range(1, config.heads + 1) if _divides(config, n)]
    raise UsageError(
        f"a model with {config.heads} heads, {config.kv_heads} key-value heads and "
        f"{config.intermediate_size} inner columns cannot be divided among {size} processes",
        hint=f"tensor_parallel may be {' or '.join(map(str, able))}",
    )


def _divides(config: ModelConfig, size: int) -> bool:
    return (
        config.heads % size == 0
        and config.intermediate_size % size == 0
        and (config.kv_heads % size == 0 or size % config.kv_heads == 0)
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank`, one of `size`. With fewer key-value heads than ranks, some share."""

    rank: int
    size: int

    def config(self, config: ModelConfig) -> ModelConfig:
        """The sizes of the part; vocabulary and hidden size are those of the whole."""
        return dataclasses.replace(
            config,
            heads=config.heads // self.size,
            kv_heads=max(1, config.kv_heads // self.size),
            intermediate_size=config.intermediate_size // self.size,
        )

    def vocabulary(self, vocab_size: int) -> tuple[slice, int]:
        """The rows of the output matrix that the rank has, and how many the most have."""
        most = -(-vocab_size // self.size)
        low = min(self.rank * most, vocab_size)
        return slice(low, min(low + most, vocab_size)), most

    def where(self, name: str, config: ModelConfig) -> tuple[slice, ...]:
        """Which part of a weight of the whole model the rank has, by its Hugging Face name."""
        if name == "lm_head.weight":
            return (self.vocabulary(config.vocab_size)[0],)
        match = _PART.search(name)
        if match is None:
            return (_WHOLE,)
        part = match[1]
        if part in ("k", "v"):
            own = max(1, config.kv_heads // self.size)
            first = self.rank * config.kv_heads // self.size
            return (slice(first * config.head_dim, (first + own) * config.head_dim),)
        length = config.intermediate_size
        if part in ("q", "o"):
            length = config.heads * config.head_dim
        own = length // self.size
        run = slice(self.rank * own, (self.rank + 1) * own)
        return (_WHOLE, run) if part in ("o", "down") else (run,)
