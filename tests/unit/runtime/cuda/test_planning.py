"""Units cover what rows see, once each; fixed ones begin where they always do."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.runtime.cuda.planning import LANE_BITS, Division, Shape, divide


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[np.ndarray], list[int]]:
    """Slot tables of segments, some of which begin alike, and their rows."""
    tables: list[np.ndarray] = []
    sizes = []
    used = 0
    for _ in range(draw(st.integers(1, 12))):
        table = np.empty(0, np.int32)
        if tables and draw(st.booleans()):
            other = draw(st.sampled_from(tables))
            table = other[: draw(st.integers(0, len(other)))]
        own = draw(st.integers(1, 40))
        table = np.concatenate([table, np.arange(used, used + own, dtype=np.int32)])
        used += own
        tables.append(table)
        sizes.append(draw(st.integers(1, own)))
    return tables, sizes


def units_of(division: Division, starts: np.ndarray) -> dict[int, list[tuple[int, int, int]]]:
    """Of each row, its units: ordinal, first position, end; and checks their tables' beginnings."""
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for units, lanes in (
        (division.narrow, division.narrow_lanes), (division.wide, division.wide_lanes),
    ):  # fmt: skip
        for (rows, offset, begin, end), packed in zip(units.tolist(), lanes.tolist(), strict=True):
            assert offset in starts
            for lane in packed[:rows]:
                found[lane & ((1 << LANE_BITS) - 1)].append((lane >> LANE_BITS, begin, end))
    return {row: sorted(units) for row, units in found.items()}


@settings(max_examples=200, deadline=None)
@given(steps(), st.sampled_from([1, 4]), st.booleans(), st.sampled_from([None, 5, 30]))
def test_rows_see_each_position_once(
    step: tuple[list[np.ndarray], list[int]], narrow: int, fixed: bool, window: int | None
) -> None:
    tables, sizes = step
    lengths = np.array([len(t) for t in tables])
    offsets = np.cumsum(lengths) - lengths
    table = np.concatenate(tables)
    shape = Shape(narrow, 8, tile=8, blocks=6, least=8, most=32, fixed=fixed)
    division = divide(table, offsets, lengths, np.array(sizes), shape, kv_heads=2, window=window)
    found = units_of(division, offsets)
    by_offset = {
        (int(offset), position): int(slot)
        for offset, t in zip(offsets, tables, strict=True)
        for position, slot in enumerate(t)
    }
    row = 0
    places: list[int] = []
    for t, size in zip(tables, sizes, strict=True):
        for inside in range(size):
            limit = len(t) - size + inside + 1
            units = found[row]
            assert [ordinal for ordinal, _, _ in units] == list(range(len(units)))
            assert division.counts[row] == len(units)
            low = 0 if window is None else max(0, limit - window)
            seen = [p for _, begin, end in units for p in range(begin, end) if low <= p < limit]
            assert seen == list(range(low, limit))
            if fixed:
                assert all(begin % 8 == 0 for _, begin, _ in units)
            if len(units) > 1:
                places += range(division.bases[row], division.bases[row] + len(units))
            row += 1
    assert sorted(places) == list(range(division.parts))
    # a unit's slots are those of every row in it
    for units, lanes in (
        (division.narrow, division.narrow_lanes), (division.wide, division.wide_lanes),
    ):  # fmt: skip
        owner = np.repeat(np.arange(len(tables)), sizes)
        for (rows, offset, begin, end), packed in zip(units.tolist(), lanes.tolist(), strict=True):
            for lane in packed[:rows]:
                own = tables[owner[lane & ((1 << LANE_BITS) - 1)]]
                for p in range(begin, min(end, len(own))):
                    assert own[p] == by_offset[offset, p]


def test_prefixes_of_prefixes_are_read_once() -> None:
    """Branches that part inside of a tile share what comes after with their own kind only."""
    slots = iter(range(10_000))

    def some(count: int) -> np.ndarray:
        return np.array([next(slots) for _ in range(count)], np.int32)

    tables = []
    trunk = some(100)
    for _ in range(2):
        branch = np.concatenate([trunk, some(100)])
        tables += [np.concatenate([branch, some(20)]) for _ in range(3)]
    lengths = np.array([len(t) for t in tables])
    division = divide(
        np.concatenate(tables), np.cumsum(lengths) - lengths, lengths, np.ones(6, np.int64),
        Shape(2, 8, tile=64, blocks=2, least=1024), kv_heads=2,
    )  # fmt: skip
    runs = sorted((rows, begin, end) for rows, _, begin, end in division.wide.tolist())
    assert runs == [(3, 64, 192), (3, 64, 192), (6, 0, 64)]
    assert division.narrow[:, 2:].tolist() == [[192, 220]] * 6


def test_a_shared_prefix_is_read_once() -> None:
    prefix = np.arange(256, dtype=np.int32)
    tables = [np.append(prefix, 1000 + i).astype(np.int32) for i in range(8)]
    lengths = np.array([len(t) for t in tables])
    division = divide(
        np.concatenate(tables), np.cumsum(lengths) - lengths, lengths, np.ones(8, np.int64),
        Shape(4, 32, tile=64, blocks=2, least=64), kv_heads=2,
    )  # fmt: skip
    assert division.wide.tolist() == [[8, 0, 0, 256]]
    assert len(division.narrow) == 8
    assert division.counts.tolist() == [2] * 8


def test_segments_that_something_else_attends_for_have_no_units() -> None:
    prefix = np.arange(64, dtype=np.int32)
    tables = [np.append(prefix, 1000 + 10 * i + np.arange(9)).astype(np.int32) for i in range(4)]
    lengths = np.array([len(t) for t in tables])
    offsets = np.cumsum(lengths) - lengths
    division = divide(
        np.concatenate(tables), offsets, lengths, np.array([1, 3, 5, 2]), Shape(4, 32, tile=64),
        kv_heads=2, without=slice(1, 3),
    )  # fmt: skip
    found = units_of(division, offsets[[0, 3]])
    assert sorted(found) == [0, 9, 10]
    assert division.counts.tolist() == [2, *[1] * 8, 2, 2]
    assert division.parts == 6
