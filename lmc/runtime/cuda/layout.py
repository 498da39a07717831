"""Where the numbers of a step lie in one buffer, so that one copy brings them to the device.

Captured graphs read fixed addresses, so a layout has room for a number of rows and units, and
steps that need less leave the rest alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmc.runtime.cuda.planning import UNIT, Division
from lmc.runtime.request import IntArray

__all__ = ["RowFields", "RowLayout", "UnitFields", "UnitLayout"]


@dataclass(frozen=True, slots=True)
class RowFields:
    """What a forward pass reads of its rows: views of a buffer on the device."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Room for `rows` rows; int32 all."""

    rows: int

    @property
    def size(self) -> int:
        """Numbers in all."""
        return _room([self.rows] * 3)

    def fields(self, buffer: torch.Tensor) -> RowFields:
        """The views of a buffer of `size` int32."""
        return RowFields(*_views(buffer, [self.rows] * 3))

    def fill(
        self,
        buffer: IntArray,
        tokens: IntArray,
        positions: IntArray,
        slots: IntArray,
        spare_slot: int,
    ) -> None:
        """Write a step; rows beyond it go to `spare_slot`."""
        places = _places([self.rows] * 3)
        for at, part, rest in zip(
            places, (tokens, positions, slots), (0, 0, spare_slot), strict=True
        ):
            buffer[at : at + len(part)] = part
            buffer[at + len(part) : at + self.rows] = rest


@dataclass(frozen=True, slots=True)
class UnitFields:
    """Views of a buffer on the device, and how many rows units have; see `planning.Division`."""

    narrow_rows: int
    wide_rows: int
    narrow_count: torch.Tensor
    wide_count: torch.Tensor
    bases: torch.Tensor
    counts: torch.Tensor
    narrow: torch.Tensor
    narrow_lanes: torch.Tensor
    wide: torch.Tensor
    wide_lanes: torch.Tensor


@dataclass(frozen=True, slots=True)
class UnitLayout:
    """Room for the units of `rows` rows; int32 all."""

    rows: int
    narrow_units: int
    wide_units: int
    narrow_rows: int
    wide_rows: int

    def _sizes(self) -> tuple[int, ...]:
        return (
            1, 1, self.rows, self.rows,
            self.narrow_units * UNIT, self.narrow_units * self.narrow_rows,
            self.wide_units * UNIT, self.wide_units * self.wide_rows,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Numbers in all."""
        return _room(self._sizes())

    def fits(self, division: Division) -> bool:
        """Whether there is room for the units of a step."""
        return (
            len(division.counts) <= self.rows
            and len(division.narrow) <= self.narrow_units
            and len(division.wide) <= self.wide_units
        )

    def fields(self, buffer: torch.Tensor) -> UnitFields:
        """The views of a buffer of `size` int32."""
        return UnitFields(self.narrow_rows, self.wide_rows, *_views(buffer, self._sizes()))

    def fill(self, buffer: IntArray, division: Division) -> None:
        """Write the units of a step; rows beyond it attend to nothing."""
        rows = len(division.counts)
        parts = (
            np.array([len(division.narrow)], np.int32), np.array([len(division.wide)], np.int32),
            division.bases, division.counts, division.narrow.ravel(),
            division.narrow_lanes.ravel(), division.wide.ravel(), division.wide_lanes.ravel(),
        )  # fmt: skip
        places = list(_places(self._sizes()))
        for at, part in zip(places, parts, strict=True):
            buffer[at : at + len(part)] = part
        for at in places[2:4]:
            buffer[at + rows : at + self.rows] = 0

    @staticmethod
    def exactly(division: Division) -> UnitLayout:
        """Room for the units of one step."""
        return UnitLayout(
            len(division.counts),
            len(division.narrow),
            len(division.wide),
            division.narrow_lanes.shape[1],
            division.wide_lanes.shape[1],
        )


def _places(sizes: Sequence[int]) -> Iterator[int]:
    """Where fields begin: each at a multiple of four."""
    at = 0
    for size in sizes:
        yield at
        at += -(-size // 4) * 4


def _room(sizes: Sequence[int]) -> int:
    return sum(-(-size // 4) * 4 for size in sizes)


def _views(buffer: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    return [buffer[at : at + size] for at, size in zip(_places(sizes), sizes, strict=True)]
