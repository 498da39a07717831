"""Divide the attention of a step into units for the device: rows that read the same slots.

A unit is a run of positions of one slot table and the rows that see it. Rows of different segments
whose tables begin alike share units, so a prefix that many sequences have is read once. Each row's
units are numbered in order of position; where it has more than one, their results are combined.

Owns        nothing: a plan is arrays.
Promises    every row's units cover exactly the positions that it sees. With `fixed`, a row's units
            begin at the same positions whatever else the step holds: results do not depend on it.
Costs       O(segments log slots), compiled; about 0.2 ms for 500 segments.
            A slot holds the entry of one prefix, so tables with a slot in common at some position
            are taken to mean the same up to it.
Not here    the kernels (`attention_kernels`), the copy to the device (`layout`).
Source      Shared prefixes: Juravsky et al., Hydragen, arXiv:2402.05099; splitting a context among
            blocks: Dao et al., Flash-Decoding, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from lmc.runtime.request import IntArray

__all__ = ["UNIT", "Division", "Shape", "divide"]

UNIT = 4  # numbers of a unit: rows, beginning of its table, first position, end
LANE_BITS = 16  # a lane is `ordinal << LANE_BITS | row`

_Wide = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """How units are cut.

    Attributes:
        narrow, wide: most rows of a unit of either kind.
        tile: shared runs are multiples of this many positions.
        blocks: units times key heads that fill the device.
        least: positions below which a unit is not cut.
        most: positions above which a narrow unit is always cut.
        fixed: cut at multiples of `tile` and nowhere else, and make wide units only.
    """

    narrow: int
    wide: int
    tile: int = 64
    blocks: int = 1056
    least: int = 128
    most: int = 1024
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Division:
    """The units of a step.

    Attributes:
        narrow, wide: int32, shape (units, UNIT).
        narrow_lanes, wide_lanes: int32, shape (units, rows of a unit): which row, and which of its
            units this is.
        bases, counts: int32, per row: where its partial results begin, and how many it has; rows
            with one unit have 0 places and count 1.
        parts: places for partial results in all.
    """

    narrow: IntArray
    wide: IntArray
    narrow_lanes: IntArray
    wide_lanes: IntArray
    bases: IntArray
    counts: IntArray
    parts: int


def divide(
    table: IntArray,
    offsets: _Wide,
    lengths: _Wide,
    sizes: _Wide,
    shape: Shape,
    *,
    kv_heads: int,
    window: int | None = None,
    most_units: int = 1 << 30,
    without: slice | None = None,
) -> Division:
    """Divide a step.

    Args:
        table: int32, the slots of all segments.
        offsets, lengths: int64, of each segment, where its slots begin and how many they are.
        sizes: int64, of each segment, its rows; they are the last positions of its context.
        shape: how to cut.
        kv_heads: key heads of the model: blocks of the kernel for each unit.
        window: positions that a row sees, or None for all.
        most_units: units of one kind that there is room for; more are cut less (not if fixed).
        without: segments that something else attends for; their rows get no units and count 1.
    """
    ends = np.cumsum(sizes)
    firsts, total = ends - sizes, int(ends[-1])
    other = slice(0, 0)  # rows
    if without is not None:
        other = slice(int(firsts[without.start]), int(ends[without.stop - 1]))
        offsets, lengths, sizes, firsts = (
            np.delete(of_each, without) for of_each in (offsets, lengths, sizes, firsts)
        )
    narrow, wide, narrow_lanes, wide_lanes, counts = _divide(
        table, offsets, lengths, sizes, firsts, total, shape.narrow, shape.wide, shape.tile,
        shape.least, shape.most, max(1, shape.blocks // kv_heads), most_units, shape.fixed,
        window or 0,
    )  # fmt: skip
    counts[other] = 1
    longest = np.argsort(wide[:, 2] - wide[:, 3], kind="stable")
    places = np.where(counts > 1, counts, 0)
    bases = np.cumsum(places) - places
    return Division(
        narrow=narrow,
        wide=wide[longest],
        narrow_lanes=narrow_lanes,
        wide_lanes=wide_lanes[longest],
        bases=bases.astype(np.int32),
        counts=counts,
        parts=int(places.sum()),
    )


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _divide(
    table: IntArray,
    offsets: _Wide,
    lengths: _Wide,
    sizes: _Wide,
    firsts: _Wide,
    total_rows: int,
    narrow_rows: int,
    wide_rows: int,
    tile: int,
    least: int,
    most: int,
    units_wanted: int,
    most_units: int,
    fixed: bool,
    window: int,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """See `divide`. First the spans of positions and who shares them, then their units."""
    segments = len(lengths)
    starts = lengths - sizes

    # Spans: members[low:high] of one list, from a position to another.
    kept = [0 for _ in range(0)]
    spans = [(0, 0, 0, 0) for _ in range(0)]
    members = np.arange(segments)
    work = [(0, segments, 0)]
    while len(work) > 0:
        low, high, begin = work.pop()
        group = members[low:high]
        if high - low > 1:
            at = np.empty(high - low, np.int64)
            for i in range(high - low):
                m = group[i]
                # segments of many rows read their slots once for many rows as they are
                whole = begin + tile <= lengths[m] and (fixed or 2 * sizes[m] <= wide_rows)
                # the last slot of the next tile: where it is the same, so is the tile
                at[i] = table[offsets[m] + begin + tile - 1] if whole else -1 - i
            order = np.argsort(at, kind="mergesort")
            group[:] = group[order]
            at = at[order]
        else:
            at = np.zeros(1, np.int64)
        i = 0
        while i < high - low:
            j = i + 1
            while j < high - low and at[j] == at[i]:
                j += 1
            one = group[i]
            end = lengths[one]
            if j - i > 1:
                shared = (lengths[one] - begin) // tile
                for n in range(i + 1, j):
                    other = group[n]
                    a, b = offsets[one] + begin - 1, offsets[other] + begin - 1
                    below, above = 0, min(shared, (lengths[other] - begin) // tile)
                    while below < above:  # a slot that is in both is the end of equal prefixes
                        middle = (below + above + 1) // 2
                        if table[a + middle * tile] == table[b + middle * tile]:
                            below = middle
                        else:
                            above = middle - 1
                    shared = below
                end = begin + shared * tile
            first = len(kept)
            kept.extend([group[n] for n in range(i, j)])
            spans.append((first, len(kept), begin, end))
            if j - i > 1:
                # those that end here have no more work
                longer = low + i
                for n in range(low + i, low + j):
                    if lengths[members[n]] > end:
                        members[n], members[longer] = members[longer], members[n]
                        longer += 1
                if longer > low + i:
                    work.append((low + i, longer, end))
            i = j

    # How long pieces are: enough blocks to fill the device, no more units than there is room for.
    pieces_of = np.full(2, tile, np.int64)  # narrow, wide
    if not fixed:
        positions, chunks = np.zeros(2, np.int64), np.zeros(2, np.int64)
        for first, last, begin, end in spans:
            rows = 0
            for n in range(first, last):
                rows += sizes[kept[n]]
            whole, rest = rows // wide_rows, rows % wide_rows
            positions[1] += whole * (end - begin)
            chunks[1] += whole
            if rest > 0:
                kind = 0 if rest <= narrow_rows else 1
                positions[kind] += end - begin
                chunks[kind] += 1
        for kind in range(2):
            piece = (positions[kind] + units_wanted - 1) // units_wanted
            piece = max(piece, least)
            if kind == 0:
                piece = min(piece, most)
            room = max(1, most_units - 2 * chunks[kind])
            piece = max(piece, (positions[kind] + room - 1) // room)
            pieces_of[kind] = (piece + tile - 1) // tile * tile

    counts = np.zeros(total_rows, np.int32)
    narrow = [0 for _ in range(0)]
    wide = [0 for _ in range(0)]
    narrow_lanes = [0 for _ in range(0)]
    wide_lanes = [0 for _ in range(0)]
    chunk = np.empty(wide_rows, np.int64)
    limits = np.empty(wide_rows, np.int64)
    for first, last, begin, end in spans:
        offset = offsets[kept[first]]
        member, inside = first, 0
        while member < last:
            held = 0
            while member < last and held < wide_rows:
                m = kept[member]
                chunk[held] = firsts[m] + inside
                limits[held] = starts[m] + inside + 1
                held += 1
                inside += 1
                if inside == sizes[m]:
                    member += 1
                    inside = 0
            highest, lowest = 0, 1 << 60
            for n in range(held):
                highest = max(highest, limits[n])
                lowest = min(lowest, limits[n])
            stop = min(end, highest)
            cut = begin
            if window > 0:
                cut = max(cut, (lowest - window) // tile * tile)
            length = stop - cut
            piece = pieces_of[0 if held <= narrow_rows and not fixed else 1]
            # pieces of equal length, in whole tiles, unless they are fixed
            pieces = max(1, (length + piece - 1) // piece)
            step = piece
            if not fixed:
                step = (length + pieces - 1) // pieces
                step = (step + tile - 1) // tile * tile
            while cut < stop:
                after = min(cut + step, stop)
                seeing = 0
                for n in range(held):
                    if limits[n] > cut and (window == 0 or limits[n] - window < after):
                        seeing += 1
                if seeing > 0:
                    small = seeing <= narrow_rows and not fixed
                    lanes = narrow_lanes if small else wide_lanes
                    units = narrow if small else wide
                    units.append(seeing)
                    units.append(offset)
                    units.append(cut)
                    units.append(after)
                    for n in range(held):
                        if limits[n] > cut and (window == 0 or limits[n] - window < after):
                            row = chunk[n]
                            lanes.append((np.int64(counts[row]) << LANE_BITS) | row)
                            counts[row] += 1
                    for _ in range(seeing, narrow_rows if small else wide_rows):
                        lanes.append(0)
                cut = after
    return (
        np.array(narrow, np.int32).reshape(-1, 4),
        np.array(wide, np.int32).reshape(-1, 4),
        np.array(narrow_lanes, np.int32).reshape(-1, narrow_rows),
        np.array(wide_lanes, np.int32).reshape(-1, wide_rows),
        counts,
    )
