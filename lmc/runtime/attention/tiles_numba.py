"""Attention on the CPU by compiled kernels over tiles; shared prefixes are read once.

Owns: the division of the current step, scratch memory of the threads, memory of parts.
Promises: a row's result depends on its query and its context alone, bit by bit.
Costs: 4 * head_dim operations per query head and position seen, at half the speed of the vector
    units or better where 16 query heads share a tile; a lone row of g heads per key head pays for
    16 / g times its products of queries and keys.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from lmc.runtime.attention.base import Batch
from lmc.runtime.attention.units import Units, divide
from lmc.runtime.kernels import amx
from lmc.runtime.kernels.parallel import Team, bits_of
from lmc.runtime.kernels.products import usable
from lmc.runtime.kernels.tiles import HEADER, TILE, fold_kernel, part_kernel, scratch_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from lmc.runtime.config import ModelConfig

__all__ = ["TileAttention"]

LANES_PER_UNIT = 64  # enough to make up for widening the keys and values of a tile
LONG_RUN = 8  # tiles of a unit, where there are few


def best_kernel(config: ModelConfig, half: bool) -> str:
    """The fastest kernel for a model on this processor."""
    pairs = half and config.head_dim % 32 == 0
    return next(name for name in usable() if pairs or name == "fma")


class TileAttention:
    """The backend "tiles": see the module."""

    name = "tiles"

    def __init__(self, config: ModelConfig, team: Team, *, half: bool) -> None:
        self._config = config
        self._threads = team.threads
        self._group = config.heads // config.kv_heads
        self._rows_per_unit = max(1, LANES_PER_UNIT // self._group)
        lanes = self._rows_per_unit * self._group
        self._blocks = -(-lanes // 16)
        self._scratch_bytes = scratch_bytes(lanes, config.head_dim)
        self._scratch = torch.zeros(team.threads * self._scratch_bytes, dtype=torch.uint8)
        self._parts = torch.zeros(0)
        self._scale = bits_of(math.log2(math.e) / math.sqrt(config.head_dim))
        kernel = best_kernel(config, half)
        self._compute = part_kernel(kernel, half, team)
        self._fold = fold_kernel(kernel, half, team)
        self._registers = amx.configuration()
        self._units: Units | None = None

    @staticmethod
    def supports(config: ModelConfig) -> bool:
        """Whether the kernels can serve this model: heads of a multiple of 16."""
        return config.head_dim % 16 == 0

    def begin(self, batch: Batch) -> None:
        config = self._config
        blocks = sum(-(-len(s.tokens) // self._rows_per_unit) for s in batch.segments)
        few = blocks * config.kv_heads < 2 * self._threads
        self._units = units = divide(
            batch,
            tile=TILE,
            rows_per_unit=self._rows_per_unit,
            longest_run=LONG_RUN if few else 1 << 30,
            window=config.sliding_window,
        )
        wanted = units.parts * config.heads * (config.head_dim + HEADER)
        if wanted > len(self._parts):
            self._parts = torch.zeros(wanted)
        self._work = int(units.limits.sum()) * config.heads * config.head_dim
        self._addresses = [
            array.ctypes.data
            for array in (
                units.units, units.order, units.limits, units.lows, units.slots, units.bases,
                units.leads, units.folded, units.counts,
            )
        ]  # fmt: skip

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        assert self._units is not None, "begin comes before attend"
        config, units = self._config, self._units
        table, order, limits, lows, slots, bases, leads, folded, counts = self._addresses
        small = self._work < 20_000
        parts, target = self._parts.data_ptr(), out.data_ptr()
        self._compute(
            table, len(units.units), order, limits, lows, slots, bases, leads,
            queries.data_ptr(), keys.data_ptr(), values.data_ptr(), target, parts,
            config.heads, config.kv_heads, config.head_dim, self._scale,
            self._scratch.data_ptr(), self._scratch_bytes, self._blocks, self._registers.data_ptr(),
            small=small,
        )  # fmt: skip
        if len(units.folded):
            self._fold(
                folded, len(units.folded), bases, counts, target, parts, config.heads,
                config.head_dim, small=small,
            )  # fmt: skip
