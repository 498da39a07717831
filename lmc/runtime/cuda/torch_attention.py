"""Attention on the device as its formula, in torch: slow, for tests and for doubts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda.attention import Attend, StepRows
from lmc.runtime.cuda.staging import Staging

__all__ = ["TorchAttention"]


class TorchAttention:
    """softmax(Q K^T / sqrt(d)) V, segment after segment, in float32; a `DeviceAttention`.

    Memory grows with rows times context of the longest segment, times 4 bytes a head.
    """

    name = "torch"

    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def plan(self, step: StepRows, staging: Staging) -> Attend:  # noqa: ARG002 - of the protocol
        """See `DeviceAttention`."""
        tables, slots = step.tables, step.slots
        rows = tables.sizes.tolist()
        offsets, lengths = tables.offsets.tolist(), tables.lengths.tolist()

        def attend(qkv: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
            first = 0
            for count, offset, length in zip(rows, offsets, lengths, strict=True):
                some = slice(first, first + count)
                table = slots[offset : offset + length].long()
                self._segment(qkv[some], keys[table], values[table], out[some])
                first += count

        return attend

    def _segment(self, qkv: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """The rows of a segment, whose context is `keys` and `values`."""
        config, count, length = self._config, len(qkv), len(keys)
        queries = qkv[:, : config.heads * config.head_dim].float()
        q = queries.view(count, config.kv_heads, -1, config.head_dim)
        scores = torch.einsum("rkgd,ckd->kgrc", q, keys.float()) / math.sqrt(config.head_dim)
        row = torch.arange(length - count, length, device=keys.device)[:, None]
        place = torch.arange(length, device=keys.device)[None, :]
        seen = place <= row
        if config.sliding_window is not None:
            seen &= place > row - config.sliding_window
        shares = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
        out.copy_(torch.einsum("kgrc,ckd->rkgd", shares, values.float()).flatten(1))
