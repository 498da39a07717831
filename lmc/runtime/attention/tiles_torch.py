"""Attention by torch alone, in products of fixed shapes: where numba cannot be had.

Rows are taken `ROWS` at a time for prompts and one by one for tokens that a model call made, and
the context in tiles of `TILE` positions, both padded. So a product has one of two shapes whatever
the step holds, and a library adds up a shape always in the same order. Which of the two is a matter
of the token's provenance (`Segment.made`), never of the batch.

Promises: a row's result depends on its query, its context and `made` alone, bit by bit.
Costs: padding; a prompt of few tokens pays for `ROWS`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from lmc.runtime.attention.base import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.config import ModelConfig

__all__ = ["TorchAttention"]

ROWS = 32
TILE = 256  # positions


class TorchAttention:
    """The backend "torch": see the module."""

    name = "torch"

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._batch: Batch | None = None

    def begin(self, batch: Batch) -> None:
        self._batch = batch

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        assert self._batch is not None, "begin comes before attend"
        batch, size = self._batch, self._config.head_dim
        for first, segment in zip(batch.first, batch.segments, strict=True):
            slots = torch.from_numpy(segment.slots).long()
            padded = -(-len(slots) // TILE) * TILE
            # (kv_heads, padded, size); a padded position holds zeros and is never seen
            k, v = (
                torch.nn.functional.pad(pool[slots].float(), (0, 0, 0, 0, 0, padded - len(slots)))
                .transpose(0, 1)
                .contiguous()
                for pool in (keys, values)
            )
            step = 1 if segment.made else ROWS
            for at in range(0, len(segment.tokens), step):
                some = min(step, len(segment.tokens) - at)
                rows = slice(first + at, first + at + some)
                q = torch.zeros(step, *queries.shape[1:])
                q[:some] = queries[rows]
                result = self._tile_by_tile(q, k, v, segment.start + at)
                out[rows] = result[:some].reshape(some, -1).to(out.dtype)
        assert size == queries.shape[-1]

    def _tile_by_tile(self, q: Tensor, k: Tensor, v: Tensor, position: int) -> Tensor:
        """The rows from `position` on over a padded context; shape like `q`."""
        config, count = self._config, len(q)
        group = config.heads // config.kv_heads
        row = position + torch.arange(count)
        end = -(-(position + count) // TILE) * TILE  # tiles after the last row are hidden anyway
        # (kv_heads, count * group, size): the heads of a group see the same keys
        q = q.view(count, config.kv_heads, group, config.head_dim).transpose(0, 1)
        q = q.reshape(config.kv_heads, count * group, config.head_dim) / math.sqrt(config.head_dim)
        top = torch.full((config.kv_heads, count * group, 1), -1e30)
        weight, state = torch.zeros_like(top), torch.zeros_like(q)
        for start in range(0, min(end, k.shape[1]), TILE):
            tile = slice(start, start + TILE)
            place = torch.arange(start, start + TILE)
            seen = place[None] <= row[:, None]
            if config.sliding_window is not None:
                seen &= place[None] > row[:, None] - config.sliding_window
            hidden = ~seen.repeat_interleave(group, dim=0)
            scores = torch.bmm(q, k[:, tile].transpose(1, 2)).masked_fill(hidden, -math.inf)
            after = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            old = (top - after).exp()
            part = (scores - after).exp()
            weight = weight * old + part.sum(dim=-1, keepdim=True)
            state = state * old + torch.bmm(part, v[:, tile])
            top = after
        state = (state / weight).view(config.kv_heads, count, group, config.head_dim)
        return state.transpose(0, 1).reshape(count, config.heads, config.head_dim)
