"""Divide the attention of a step into units: rows that see the same slots over a run of tiles.

Rows that share a prefix attend to it together, whoever they belong to. Which rows are together
never changes a result (see `lmc.runtime.kernels.tiles`), so this is free to divide as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lmc.runtime.attention.base import Batch
from lmc.runtime.request import IntArray

__all__ = ["LEAD", "PARTS", "WHOLE", "Units", "divide"]

PARTS, LEAD, WHOLE = 0, 1, 2  # kinds of units: see the kernel


@dataclass(frozen=True, slots=True)
class Units:
    """A step's division.

    Attributes:
        units: int64, shape (units, 7): first place in `order`, rows, offset in `slots`, length of
            that table, first tile, end tile, kind.
        order: int32, the rows of the units, one unit after another.
        slots: int32, the tables of all segments, one after another.
        limits, lows: int32, per row: one past the last position it sees, and the first.
        bases, leads, counts: int32, per row: its first part, the tiles of its lead, its parts; 0
            parts for rows that one unit computes wholly.
        folded: int32, the rows with parts.
        parts: how many parts there are in all.
    """

    units: npt.NDArray[np.int64]
    order: IntArray
    slots: IntArray
    limits: IntArray
    lows: IntArray
    bases: IntArray
    leads: IntArray
    counts: IntArray
    folded: IntArray
    parts: int


def divide(
    batch: Batch, *, tile: int, rows_per_unit: int, longest_run: int, window: int | None
) -> Units:
    """Divide a step.

    Args:
        batch: the step.
        tile: positions of a tile.
        rows_per_unit: most rows of a unit.
        longest_run: most tiles of a unit; more are cut, so that more threads find work.
        window: positions that a row sees, or None for all.
    """
    limits = batch.positions + 1
    lows = np.zeros_like(limits) if window is None else np.maximum(limits - window, 0)
    tables = [s.slots for s in batch.segments]
    offsets = np.cumsum([0, *(len(t) for t in tables)])
    own = -(-limits // tile)  # tiles of each row
    leads = np.zeros_like(limits)
    units: list[tuple[int, ...]] = []
    order: list[IntArray] = []
    placed = 0

    def emit(rows: IntArray, segment: int, begin: int, end: int, kind: int) -> None:
        nonlocal placed
        for at in range(0, len(rows), rows_per_unit):
            some = rows[at : at + rows_per_unit]
            last = min(end, int(own[some].max()))
            place = (placed, len(some), int(offsets[segment]), len(tables[segment]))
            units.append((*place, begin, last, kind))
            order.append(some)
            placed += len(some)

    for members, begin, end in _runs(tables, tile):
        rows = np.concatenate([_rows_after(batch, m, begin * tile) for m in members])
        representative = max(members, key=lambda m: len(tables[m]))
        for cut in range(begin, end, longest_run):
            stop = min(cut + longest_run, end)
            rows = rows[own[rows] > cut]
            if cut > 0:
                emit(rows, representative, cut, stop, PARTS)
                continue
            leads[rows] = stop
            emit(rows[own[rows] <= stop], representative, 0, stop, WHOLE)
            emit(rows[own[rows] > stop], representative, 0, stop, LEAD)

    counts = np.where(own > leads, 1 + own - leads, 0).astype(np.int32)
    bases = (np.cumsum(counts) - counts).astype(np.int32)
    table = np.array(units, np.int64)
    costly_first = np.argsort(-(table[:, 5] - table[:, 4]) * table[:, 1], kind="stable")
    return Units(
        units=np.ascontiguousarray(table[costly_first]),
        order=np.concatenate(order),
        slots=np.concatenate(tables).astype(np.int32, copy=False),
        limits=limits,
        lows=lows,
        bases=bases,
        leads=leads,
        counts=counts,
        folded=np.flatnonzero(counts).astype(np.int32),
        parts=int(counts.sum()),
    )


def _rows_after(batch: Batch, segment: int, position: int) -> IntArray:
    """The rows of a segment at `position` or later."""
    held = batch.segments[segment]
    skip = max(0, position - held.start)
    first = batch.first[segment]
    return np.arange(first + skip, first + len(held.tokens), dtype=np.int32)


def _runs(tables: list[IntArray], tile: int) -> Iterator[tuple[list[int], int, int]]:
    """Segments that have the same slots in tiles `begin` to `end`, until every tile is covered.

    Only whole tiles are shared. Yields (segments, begin, end).
    """
    tiles = [-(-len(t) // tile) for t in tables]
    work = [([*range(len(tables))], 0)]
    while work:
        members, begin = work.pop()
        alike: dict[int, list[int]] = {}
        for m in members:
            alike.setdefault(int(tables[m][begin * tile]), []).append(m)
        for first, *others in alike.values():
            shared = {m: _common(tables[first], tables[m], begin, tile) for m in others}
            near = [m for m in others if shared[m] > 0]
            far = [m for m in others if shared[m] == 0]
            if far:
                work.append((far, begin))
            if not near:
                yield [first], begin, tiles[first]
                continue
            end = begin + min(shared[m] for m in near)
            yield [first, *near], begin, end
            longer = [m for m in (first, *near) if tiles[m] > end]
            if longer:
                work.append((longer, end))


def _common(a: IntArray, b: IntArray, begin: int, tile: int) -> int:
    """How many whole tiles from `begin` on are the same in both tables."""
    a, b = a[begin * tile :], b[begin * tile :]
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    same = int(differs.argmax()) if differs.any() else length
    return same // tile
