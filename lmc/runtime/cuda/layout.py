"""Where the numbers of a step lie in one buffer, so that one copy brings them to the device.

Captured graphs read fixed addresses, so a layout has room for a number of rows and units, and
steps that need less leave the rest alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmc.runtime.cuda.planning import UNIT, Division
from lmc.runtime.request import IntArray

__all__ = ["Fields", "Layout"]


@dataclass(frozen=True, slots=True)
class Fields:
    """Views of a buffer on the device, and how many rows units have.

    See `planning.Division` and `row_kernels`.
    """

    narrow_rows: int
    wide_rows: int
    narrow_count: torch.Tensor
    wide_count: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    bases: torch.Tensor
    counts: torch.Tensor
    narrow: torch.Tensor
    narrow_lanes: torch.Tensor
    wide: torch.Tensor
    wide_lanes: torch.Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """Room for `rows` rows and so many units; int32 all."""

    rows: int
    narrow_units: int
    wide_units: int
    narrow_rows: int
    wide_rows: int

    def _sizes(self) -> tuple[int, ...]:
        rows = self.rows
        return (
            1, 1, rows, rows, rows, rows, rows,
            self.narrow_units * UNIT, self.narrow_units * self.narrow_rows,
            self.wide_units * UNIT, self.wide_units * self.wide_rows,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Numbers in all; each field begins at a multiple of four."""
        return sum(-(-size // 4) * 4 for size in self._sizes())

    def fits(self, rows: int, division: Division) -> bool:
        """Whether there is room for a step."""
        return (
            rows <= self.rows
            and len(division.narrow) <= self.narrow_units
            and len(division.wide) <= self.wide_units
        )

    def fields(self, buffer: torch.Tensor) -> Fields:
        """The views of a buffer of `size` int32."""
        views, at = [], 0
        for size in self._sizes():
            views.append(buffer[at : at + size])
            at += -(-size // 4) * 4
        return Fields(self.narrow_rows, self.wide_rows, *views)

    def fill(
        self,
        buffer: IntArray,
        tokens: IntArray,
        positions: IntArray,
        slots: IntArray,
        division: Division,
        spare_slot: int,
    ) -> None:
        """Write a step; rows beyond it go to `spare_slot` and attend to nothing."""
        rows = len(tokens)
        parts: tuple[IntArray | int, ...] = (
            len(division.narrow), len(division.wide), tokens, positions, slots,
            division.bases, division.counts, division.narrow.ravel(),
            division.narrow_lanes.ravel(), division.wide.ravel(), division.wide_lanes.ravel(),
        )  # fmt: skip
        at = 0
        for index, (size, part) in enumerate(zip(self._sizes(), parts, strict=True)):
            if isinstance(part, int):
                buffer[at] = part
            else:
                buffer[at : at + len(part)] = part
                if rows < self.rows and 2 <= index <= 6:
                    buffer[at + rows : at + size] = spare_slot if index == 4 else 0
            at += -(-size // 4) * 4

    @staticmethod
    def exactly(rows: int, division: Division) -> Layout:
        """Room for one step."""
        return Layout(
            rows,
            len(division.narrow),
            len(division.wide),
            division.narrow_lanes.shape[1],
            division.wide_lanes.shape[1],
        )
