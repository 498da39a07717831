"""Attention by units, in Triton: what every step can be computed with, graphs included.

Owns        how steps are cut, room for partial results, the launches of the kernels.
Promises    a pass over bound fields touches fixed addresses only, so it can be captured. With
            `fixed`, a row's result is a function of its query and its context, bit by bit.
Costs       two launches a layer, and one more where some row has several units.
Not here    the kernels (`attention_kernels`), what units there are (`planning`).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lmc.runtime.config import ModelConfig
from lmc.runtime.cuda.attention import Attend, StepRows
from lmc.runtime.cuda.attention_kernels import attend_units, combine_parts
from lmc.runtime.cuda.flight import Tables
from lmc.runtime.cuda.layout import UnitFields, UnitLayout
from lmc.runtime.cuda.planning import Division, Shape, divide
from lmc.runtime.cuda.staging import Staging

__all__ = ["PLACES", "UnitAttention"]

FIXED_TILE = 512  # positions of a unit in deterministic mode
FIXED_ROWS = 64  # query rows of a block, heads counted, in deterministic mode
FEW_ROWS = 512  # rows of a step up to which units have fewer rows
PLACES = 8192  # partial results that graphs have room for
NUMBERS = 1 << 17  # int32 of the units of a step that no graph computes, in the beginning


class UnitAttention:
    """See the module; a `DeviceAttention`.

    Args:
        config: of the model, or of the part of it that this process has.
        rows: most rows of a step.
        fixed: cut where the step has no say.
    """

    name = "triton"

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        rows: int,
        fixed: bool = False,
    ) -> None:
        self.fixed = fixed
        self._config, self._device = config, device
        self._group = config.heads // config.kv_heads
        self._lane_heads = _power(self._group)
        self._ieee = dtype == torch.float32
        self._parts = self._more_parts = self._make_parts(PLACES)
        if device.type == "cuda":
            self._more_parts = self._make_parts(PLACES + 2 * rows)
        self._numbers = torch.zeros(NUMBERS, dtype=torch.int32, device=device)
        self._rows = torch.arange(rows, dtype=torch.int32, device=device)  # graphs read it

    def _make_parts(self, places: int) -> tuple[Tensor, Tensor]:
        """Room for partial results, and for their weights."""
        config = self._config
        return (
            torch.zeros(places, config.heads, config.head_dim, device=self._device),
            torch.zeros(places, config.heads, device=self._device),
        )

    def shape(self, *, small: bool) -> Shape:
        """How a step is cut into units; small steps have units of fewer rows."""
        if self.fixed:
            rows = max(1, FIXED_ROWS // self._lane_heads)
            return Shape(rows, rows, tile=FIXED_TILE, fixed=True)
        lanes = 64 if small else 128
        if self._ieee and self._config.head_dim > 64:
            lanes = 16  # compiling exact products of larger blocks does not come to an end
        return Shape(narrow=max(1, 16 // self._lane_heads), wide=max(1, lanes // self._lane_heads))

    def _divide(
        self, tables: Tables, *, small: bool, most_units: int = 1 << 30,
        without: slice | None = None,
    ) -> Division:  # fmt: skip
        return divide(
            tables.slots, tables.offsets, tables.lengths, tables.sizes, self.shape(small=small),
            kv_heads=self._config.kv_heads, window=self._config.sliding_window,
            most_units=most_units, without=without,
        )  # fmt: skip

    # Steps from graphs

    def layout(self, rows: int) -> UnitLayout:
        """Room for the units of small steps of so many rows."""
        shape = self.shape(small=True)
        return UnitLayout(rows, 2 * rows + 256, rows + 256, shape.narrow, shape.wide)

    def divide_small(self, tables: Tables, layout: UnitLayout) -> Division | None:
        """The units of a small step, or None if a graph of this layout has no room for them."""
        division = self._divide(tables, small=True, most_units=layout.narrow_units)
        return division if layout.fits(division) and division.parts <= PLACES else None

    def bind(
        self, layout: UnitLayout, fields: UnitFields, positions: Tensor, table: Tensor, *,
        wide: bool,
    ) -> Attend:  # fmt: skip
        """Attend to whatever units the fields hold at the time; for a graph.

        Args:
            positions, table: int32, of all rows, and the slots of all segments.
            wide: whether there may be wide units.
        """
        units = (layout.narrow_units, layout.wide_units if wide else 0)
        if self.fixed:
            units = (0, layout.wide_units)
        combined = self._rows[: layout.rows]
        return self._pass(combined, fields, positions, table, self._parts, units)

    # Other steps

    def plan(self, step: StepRows, staging: Staging, without: slice | None = None) -> Attend:
        """See `DeviceAttention`; `without` as in `divide`."""
        few = len(step.positions) <= FEW_ROWS
        division = self._divide(step.tables, small=few, without=without)
        layout = UnitLayout.exactly(division)
        combined = np.flatnonzero(division.counts != 1)
        size = layout.size + len(combined)
        if size > len(self._numbers):
            self._numbers = torch.empty(2 * size, dtype=torch.int32, device=self._device)
        array, tensor = staging.piece(size)
        layout.fill(array, division)
        array[layout.size :] = combined
        buffer = self._numbers[:size]
        buffer.copy_(tensor, non_blocking=True)
        if division.parts > len(self._more_parts[0]):  # graphs keep the ones that they have
            self._more_parts = self._make_parts(-(-division.parts // PLACES) * PLACES)
        return self._pass(
            buffer[layout.size :], layout.fields(buffer), step.positions, step.slots,
            self._more_parts, (len(division.narrow), len(division.wide)),
        )  # fmt: skip

    def _pass(
        self, combined: Tensor, fields: UnitFields, positions: Tensor, table: Tensor,
        parts: tuple[Tensor, Tensor], units: tuple[int, int],
    ) -> Attend:  # fmt: skip
        """The launches of a layer; `units` are at least as many as there are of either kind.

        Those rows are `combined` that do not have one unit; others may be among them.
        """
        config = self._config

        def attend(qkv: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
            for launched, wide in zip(units, (False, True), strict=True):
                if launched:
                    self._launch(
                        launched, wide, qkv, keys, values, out, parts, fields, positions, table
                    )
            if len(combined):
                combine_parts[(len(combined), config.heads)](
                    out, *parts, combined, fields.bases, fields.counts, HEADS=config.heads,
                    DIM=config.head_dim, BLOCK_D=_power(config.head_dim), CHUNK=8, num_warps=2,
                )  # fmt: skip

        return attend

    def _launch(
        self, units: int, wide: bool, qkv: Tensor, keys: Tensor, values: Tensor, out: Tensor,
        parts: tuple[Tensor, Tensor], fields: UnitFields, positions: Tensor, table: Tensor,
    ) -> None:  # fmt: skip
        config = self._config
        lanes = fields.wide_lanes if wide else fields.narrow_lanes
        of_unit = fields.wide_rows if wide else fields.narrow_rows
        stages = 1 if self._ieee else 3 if wide else 2
        attend_units[(config.kv_heads, units)](
            qkv, keys, values, out, *parts, fields.wide_count if wide else fields.narrow_count,
            fields.wide if wide else fields.narrow, lanes, fields.bases, fields.counts, positions,
            table, math.log2(math.e) / math.sqrt(config.head_dim), HEADS=config.heads,
            KV_HEADS=config.kv_heads, GROUP=self._group, LANE_HEADS=self._lane_heads,
            DIM=config.head_dim, BLOCK_D=max(16, _power(config.head_dim)),
            WINDOW=config.sliding_window or 0, ROWS=of_unit,
            BLOCK_M=max(16, of_unit * self._lane_heads), BLOCK_N=64, IEEE=self._ieee, num_warps=4,
            num_stages=stages,
        )  # fmt: skip


def _power(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
