"""The characters as one constraint sees them: classes it cannot tell apart, and their spelling.

Two characters are of one class if no set in the expression holds one without the other. A class is
a number, a set of classes an integer with a bit for each: all work on expressions is done on such
integers. `Spelling` says how the classes are written as UTF-8, as a tree of bytes.

Costs       O(edges of all sets) to partition; the tree for the characters beyond ASCII is a few
            milliseconds, kept for the partitions met last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from lmc.constraints.charset import ANY, CharSet

__all__ = ["INVALID", "LEAF", "Alphabet", "Spelling", "bits"]

INVALID = -1  # no character is written so
LEAF = -2  # `LEAF - c` ends a character of class c

_Ints = npt.NDArray[np.int32]

_ASCII = 0x80
_BLOCK = 64  # code points that share all bytes but the last


@dataclass(frozen=True, slots=True)
class Spelling:
    """How classes of characters are written in UTF-8, as a tree.

    Attributes:
        first: int32, shape (256,): where the first byte of a character leads. A number of 0 or
            more is a node; see `INVALID` and `LEAF`.
        later: int32, shape (nodes, 64): from a node, by the low six bits of the next byte, which
            is in 0x80..0xBF. Row 0 is not used: node 0 is the root.
        below: for each node, the set of classes that can still come of it.
    """

    first: npt.NDArray[np.int32]
    later: npt.NDArray[np.int32]
    below: tuple[int, ...]
    _ways: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict, compare=False)

    def step(self, node: int, byte: int) -> int:
        """Where `byte` leads from `node`."""
        if node == 0:
            return int(self.first[byte])
        return int(self.later[node, byte & 63]) if byte & 0xC0 == 0x80 else INVALID

    def bytes_of(self, node: int, classes: int) -> int:
        """The bytes that lead on from `node` to a character of these classes, a bit for each."""
        ways = self._ways.get(node)
        if ways is None:
            ways = self._ways[node] = self._ways_of(node)
        found = 0
        for below, bytes_there in ways:
            if below & classes:
                found |= bytes_there
        return found

    def _ways_of(self, node: int) -> tuple[tuple[int, int], ...]:
        """The sets of classes to which bytes lead on from `node`, and by which bytes each."""
        targets = self.later[node] if node else self.first
        ways: dict[int, int] = {}
        for byte, target in enumerate(targets.tolist()):
            if target != INVALID:
                below = 1 << (LEAF - target) if target <= LEAF else self.below[target]
                ways[below] = ways.get(below, 0) | 1 << (byte | 0x80 if node else byte)
        return tuple(ways.items())


class Alphabet:
    """The classes of a family of character sets.

    Attributes:
        size: how many classes there are; at least one.
        full: all of them.
        classes: the characters of each class.
        ascii: how many characters below U+0080 are in each class.
    """

    def __init__(self, sets: Iterable[CharSet]) -> None:
        known = list(dict.fromkeys(sets))
        edges = np.unique(np.array([e for s in (*known, ANY) for e in s.edges], dtype=np.int64))
        starts = edges[:-1]
        inside = np.stack([_holds(s, starts) for s in (ANY, *known)])
        packed = np.ascontiguousarray(np.packbits(inside, axis=0).T)
        width = packed.shape[1]
        raw = packed.tobytes()
        order: dict[bytes, int] = {}
        ids = np.array(
            [
                order.setdefault(raw[at : at + width], len(order)) if real else INVALID
                for at, real in zip(range(0, len(raw), width), inside[0].tolist(), strict=True)
            ],
            dtype=np.int32,
        )
        self.size = len(order)
        self.full = (1 << self.size) - 1
        self._edges = edges
        self._ids = ids
        self._edge_list: list[int] = edges.tolist()
        self._id_list: list[int] = ids.tolist()
        self._masks: dict[CharSet, int] = {}
        self._firsts: dict[int, int] = {}
        self._shortest: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._classes: dict[int, int] = {}
        for row_of, chars in enumerate(known, start=1):
            held = set(ids[inside[row_of]].tolist()) - {INVALID}
            self._masks[chars] = sum(1 << c for c in held)
        self.classes = self._members()
        self.spelling = _spelling(edges, ids)
        ascii_classes = LEAF - self.spelling.first[:_ASCII]
        self.ascii: list[int] = np.bincount(ascii_classes, minlength=self.size).tolist()
        self._least = [_utf8_length(c.edges[0]) for c in self.classes]

    def mask(self, chars: CharSet) -> int:
        """The classes of one of the sets the alphabet was made from."""
        return self._masks[chars]

    def class_of(self, code: int) -> int:
        """The class of a character; `INVALID` for a surrogate."""
        return self._id_list[bisect_right(self._edge_list, code) - 1]

    def least_bytes(self, mask: int) -> int:
        """The length in bytes of the shortest character in a set of classes."""
        known = self._shortest.get(mask)
        if known is None:
            known = self._shortest[mask] = min(self._least[c] for c in bits(mask))
        return known

    def firsts(self, mask: int) -> int:
        """The bytes with which only characters of a set of classes begin, a bit for each."""
        known = self._firsts.get(mask)
        if known is None:
            of_class = self._first_bytes
            known = others = 0
            for c in bits(mask):
                known |= of_class[c]
            for c in bits(self.full & ~mask):
                others |= of_class[c]
            known = self._firsts[mask] = known & ~others
        return known

    @cached_property
    def _first_bytes(self) -> list[int]:
        """For each class, the bytes with which its characters begin."""
        found = [0] * self.size
        for byte, target in enumerate(self.spelling.first.tolist()):
            if target != INVALID:
                below = 1 << (LEAF - target) if target <= LEAF else self.spelling.below[target]
                for c in bits(below):
                    found[c] |= 1 << byte
        return found

    def weight(self, mask: int) -> int:
        """How many characters below U+0080 are in a set of classes."""
        known = self._weights.get(mask)
        if known is None:
            known = self._weights[mask] = sum(self.ascii[c] for c in bits(mask))
        return known

    def classes_of(self, firsts: int) -> int:
        """The classes of the characters that begin with these bytes."""
        found = self._classes.get(firsts)
        if found is None:
            found = 0
            for byte in bits(firsts):
                target = int(self.spelling.first[byte])
                found |= 1 << (LEAF - target) if target <= LEAF else self.spelling.below[target]
            self._classes[firsts] = found
        return found

    def single(self, mask: int) -> int | None:
        """The code point of the only character in a set of classes, or None if there are more."""
        if mask & (mask - 1):
            return None
        edges = self.classes[mask.bit_length() - 1].edges
        return edges[0] if len(edges) == 2 and edges[1] == edges[0] + 1 else None

    def _members(self) -> tuple[CharSet, ...]:
        ranges: list[list[int]] = [[] for _ in range(self.size)]
        for i, c in enumerate(self._ids.tolist()):
            if c == INVALID:
                continue
            low, high = int(self._edges[i]), int(self._edges[i + 1])
            if ranges[c] and ranges[c][-1] == low:
                ranges[c][-1] = high
            else:
                ranges[c] += (low, high)
        return tuple(CharSet(tuple(r)) for r in ranges)


def bits(mask: int) -> Iterable[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _holds(chars: CharSet, points: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    edges = np.array(chars.edges, dtype=np.int64)
    return np.asarray(np.searchsorted(edges, points, side="right") % 2 == 1)


def _utf8_length(code: int) -> int:
    return 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)


def _spelling(edges: npt.NDArray[np.int64], ids: npt.NDArray[np.int32]) -> Spelling:
    # The tree beyond ASCII depends on the partition there and not on the numbers of its classes.
    split = int(np.searchsorted(edges, _ASCII, side="right")) - 1
    starts = edges[split:-1].copy()
    starts[0] = _ASCII
    names: list[int] = []
    local = {INVALID: INVALID}
    for c in ids[split:].tolist():
        if c not in local:
            local[c] = len(names)
            names.append(c)
    tail = np.array([local[c] for c in ids[split:].tolist()], dtype=np.int32)
    first, later, below = _tree(starts.tobytes(), tail.tobytes())
    rename = np.array([*names, INVALID], dtype=np.int32)  # the last one is found by index -1

    def renamed(codes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return np.where(
            codes <= LEAF, LEAF - rename[np.where(codes <= LEAF, LEAF - codes, 0)], codes
        )

    whole = renamed(first).astype(np.int32)
    lengths = np.diff(np.minimum(edges, _ASCII))
    whole[:_ASCII] = LEAF - np.repeat(ids, lengths)
    return Spelling(
        whole,
        renamed(later).astype(np.int32),
        tuple(sum(1 << names[c] for c in bits(mask)) for mask in below),
    )


@lru_cache(maxsize=64)
def _tree(
    starts: bytes, ids: bytes
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], tuple[int, ...]]:
    """The tree for the characters from U+0080 on, with nodes of equal content merged.

    Source: the byte patterns of UTF-8, RFC 3629, section 4.
    """
    begin = np.frombuffer(starts, dtype=np.int64)
    own = np.frombuffer(ids, dtype=np.int32)
    ends = np.append(begin[1:], 0x110000)
    codes = np.repeat(np.append(np.int32(INVALID), own), np.append(_ASCII, ends - begin))
    level = np.where(codes == INVALID, INVALID, LEAF - codes).astype(np.int32)
    # A block of characters is of one class unless an edge lies inside.
    mixed = np.unique(begin[begin % _BLOCK != 0] // _BLOCK)

    rows: list[npt.NDArray[np.int32]] = [np.full(_BLOCK, INVALID, dtype=np.int32)]
    below: list[int] = [0]
    known: dict[bytes, int] = {}

    def node(row: npt.NDArray[np.int32]) -> int:
        if (row == INVALID).all():
            return INVALID
        key = row.tobytes()
        if key not in known:
            known[key] = len(rows)
            rows.append(row)
            reached = set(row.tolist()) - {INVALID}
            classes = 0
            for target in reached:
                classes |= 1 << (LEAF - target) if target <= LEAF else below[target]
            below.append(classes)
        return known[key]

    def reduced(blocks: npt.NDArray[np.int32], mixed: npt.NDArray[np.int64]) -> _Ints:
        """Each block of 64 entries as one node; only `mixed` blocks differ inside."""
        values, place = np.unique(blocks[:, 0], return_inverse=True)
        uniform = [node(np.full(_BLOCK, value, dtype=np.int32)) for value in values]
        made = np.array(uniform, dtype=np.int32)[place]
        for i in mixed.tolist():
            made[i] = node(blocks[i])
        return made

    every = np.arange(1024)
    first = np.full(256, INVALID, dtype=np.int32)
    two = reduced(
        level.reshape(-1, _BLOCK), mixed
    )  # one node for all characters with the same beginning
    first[0xC2:0xE0] = two[2:32]
    middle = two[:1024].reshape(16, _BLOCK).copy()
    middle[0, :32] = INVALID  # written in three bytes, these would be overlong
    first[0xE0:0xF0] = reduced(middle, every[:16])
    planes = np.full(5 * 4096, INVALID, dtype=np.int32)
    planes[1024 : len(two)] = two[1024:]
    three = reduced(planes.reshape(-1, _BLOCK), every[: 5 * 64])
    first[0xF0:0xF5] = reduced(three.reshape(5, _BLOCK), every[:5])
    return first, np.stack(rows), tuple(below)
