"""Attention as its formula: the definition that every backend is tested against."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from lmc.runtime.attention.base import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.config import ModelConfig

__all__ = ["ReferenceAttention"]


class ReferenceAttention:
    """softmax(Q K^T / sqrt(d)) V in float32, one segment after another, on any device.

    Source: Vaswani et al., 2017; grouped heads: Ainslie et al., 2023.
    """

    name = "reference"

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._batch: Batch | None = None

    def begin(self, batch: Batch) -> None:
        self._batch = batch

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        assert self._batch is not None, "begin comes before attend"
        config, batch = self._config, self._batch
        group = config.heads // config.kv_heads
        for first, segment in zip(batch.first, batch.segments, strict=True):
            count = len(segment.tokens)
            rows = slice(first, first + count)
            slots = torch.as_tensor(segment.slots, dtype=torch.int64, device=keys.device)
            k = keys[slots].float().repeat_interleave(group, dim=1)  # (context, heads, head_dim)
            v = values[slots].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("rhd,chd->hrc", queries[rows], k) / math.sqrt(config.head_dim)
            row = torch.arange(segment.start, segment.start + count, device=keys.device)[:, None]
            place = torch.arange(len(slots), device=keys.device)[None, :]
            seen = place <= row
            if config.sliding_window is not None:
                seen &= place > row - config.sliding_window
            weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
            out[rows] = torch.einsum("hrc,chd->rhd", weights, v).flatten(1).to(out.dtype)
