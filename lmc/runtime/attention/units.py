"""Divide the attention of a step into units: rows that see the same slots over a run of tiles.

Rows that share a prefix attend to it together, whoever they belong to. Which rows are together
never changes a result (see `lmc.runtime.kernels.tiles`), so this is free to divide as it likes.
Compiled, because it runs before every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from lmc.runtime.attention.base import Batch
from lmc.runtime.request import IntArray

__all__ = ["LEAD", "PARTS", "WHOLE", "Units", "divide"]

PARTS, LEAD, WHOLE = 0, 1, 2  # kinds of units: see the kernel

_Wide = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Units:
    """A step's division.

    Attributes:
        units: int64, shape (units, 7): first place in `order`, rows, offset in `slots`, length of
            that table, first tile, end tile, kind; the costliest first.
        order: int32, the rows of the units, one unit after another.
        slots: int32, the tables of all segments, one after another.
        limits, lows: int32, per row: one past the last position it sees, and the first.
        bases, leads, counts: int32, per row: its first part, the tiles of its lead, its parts; 0
            parts for rows that one unit computes wholly.
        folded: int32, the rows with parts.
        parts: how many parts there are in all.
    """

    units: _Wide
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
    limits = batch.positions + np.int32(1)
    lows = np.zeros_like(limits) if window is None else np.maximum(limits - np.int32(window), 0)
    tables = [s.slots for s in batch.segments]
    slots = np.concatenate(tables).astype(np.int32, copy=False)
    lengths = np.array([len(t) for t in tables], np.int64)
    first = np.array(batch.first, np.int64)
    units, order, leads = _divide(slots, lengths, first, limits, tile, rows_per_unit, longest_run)
    own = -(-limits // tile)
    counts = np.where(own > leads, 1 + own - leads, 0).astype(np.int32)
    cost = (units[:, 5] - units[:, 4]) * units[:, 1]
    return Units(
        units=np.ascontiguousarray(units[np.argsort(-cost, kind="stable")]),
        order=order,
        slots=slots,
        limits=limits,
        lows=lows,
        bases=(np.cumsum(counts) - counts).astype(np.int32),
        leads=leads,
        counts=counts,
        folded=np.flatnonzero(counts).astype(np.int32),
        parts=int(counts.sum()),
    )


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _divide(
    slots: IntArray,
    lengths: _Wide,
    first: _Wide,
    limits: IntArray,
    tile: int,
    rows_per_unit: int,
    longest_run: int,
) -> tuple[_Wide, IntArray, IntArray]:
    """The units, the order of their rows, and the tiles of each row's lead.

    Segments that have the same slots in their next tile are followed together, as far as all of
    them agree; then each set of them that still agrees, and so on. Only whole tiles are shared.
    """
    count = len(lengths)
    offsets = np.cumsum(lengths) - lengths
    tiles = (lengths + tile - 1) // tile
    leads = np.zeros(len(limits), np.int32)
    flat: list[int] = [0 for _ in range(0)]  # numba takes a list's type from its making
    order: list[int] = [0 for _ in range(0)]
    members = np.arange(count)
    work = [(0, count, 0)]  # members[low:high] from a tile on
    while len(work) > 0:
        low, high, begin = work.pop()
        one = members[low]
        near, shared = low + 1, 1 << 40
        for i in range(low + 1, high):
            other = members[i]
            same = begin * tile
            most = min(lengths[one], lengths[other])
            while same < most and slots[offsets[one] + same] == slots[offsets[other] + same]:
                same += 1
            agreed = same // tile - begin
            if agreed > 0:
                members[i], members[near] = members[near], other
                near += 1
                shared = min(shared, agreed)
        if near < high:
            work.append((near, high, begin))
        together = members[low:near]
        end = tiles[one] if near == low + 1 else begin + shared

        cut = begin
        while cut < end:
            stop = min(cut + longest_run, end)
            # rows that end in this run and those that go on are different kinds of a lead
            for goes_on in range(2):
                kind = PARTS
                if cut == 0:
                    kind = LEAD if goes_on else WHOLE
                elif goes_on:
                    break
                held, last = 0, 0
                for m in together:
                    beyond = first[m + 1] if m + 1 < count else len(limits)
                    for row in range(first[m], beyond):
                        own = (limits[row] + tile - 1) // tile
                        if own <= cut or (cut == 0 and (own > stop) != bool(goes_on)):
                            continue
                        if held == rows_per_unit:
                            flat[-2], flat[-6] = last, held
                            held, last = 0, 0
                        if held == 0:
                            flat.extend((len(order), 0, offsets[one], lengths[one], cut, 0, kind))
                        order.append(row)
                        held += 1
                        last = max(last, min(own, stop))
                        if cut == 0:
                            leads[row] = stop
                if held > 0:
                    flat[-2], flat[-6] = last, held
            cut = stop

        if near > low + 1:
            longer = low
            for i in range(low, near):
                m = members[i]
                if tiles[m] > end:
                    members[i], members[longer] = members[longer], m
                    longer += 1
            if longer > low:
                work.append((low, longer, end))
    units = np.array(flat, np.int64).reshape(-1, 7)
    return units, np.array(order, np.int32), leads
