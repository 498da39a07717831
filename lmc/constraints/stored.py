"""Expressions as JSON values: the form in which plans store constraints.

Promises    what `decode` gives can be made an automaton of: data that is damaged, or was made up,
            is refused here with the place, and is no crash later. (Rules that begin with themselves
            are found when the automaton is made, as in a grammar.)
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NoReturn

from lmc.constraints.charset import CharSet
from lmc.constraints.expression import (
    Alt,
    Atomic,
    Both,
    Chars,
    Except,
    Expression,
    Look,
    Not,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Words,
    children,
)

__all__ = ["decode", "encode"]

_LAST = 0x110000  # one past the last character
_MOST_BYTES = 1 << 22  # of a set of characters, unpacked; the largest have some thousands
_MOST_COUNT = 10**9


def encode(expression: Expression) -> dict[str, Any]:
    """The expression as JSON values; equal parts are stored once. Read back by `decode`."""
    nodes: list[list[Any]] = []
    known: dict[str, int] = {}
    done: dict[int, int] = {}

    def add(row: list[Any]) -> int:
        key = repr(row)
        if key not in known:
            known[key] = len(nodes)
            nodes.append(row)
        return known[key]

    def visit(node: Expression) -> int:
        if id(node) not in done:
            done[id(node)] = row_of(node)
        return done[id(node)]

    def row_of(node: Expression) -> int:
        inner = [visit(child) for child in children(node)]
        match node:
            case Chars(chars):
                return add(["chars", _pack(chars.edges)])
            case Text(text):
                return add(["text", text])
            case Seq():
                return add(["seq", *inner])
            case Alt():
                return add(["alt", *inner])
            case Both():
                return add(["both", *inner])
            case Repeat(_, low, high, lazy):
                return add(["repeat", inner[0], low, high, lazy])
            case Not():
                return add(["not", inner[0]])
            case Look(_, behind, negative):
                return add(["look", inner[0], behind, negative])
            case Atomic():
                return add(["atomic", inner[0]])
            case Ref(index):
                return add(["ref", index])
            case Rules():
                return add(["rules", *inner])
            case Words(texts):
                return add(["words", *texts])
            case Except(_, _, texts):
                return add(["except", *inner, *texts])

    visit(expression)
    return {"nodes": nodes}


def decode(data: dict[str, Any]) -> Expression:
    """Read what `encode` wrote.

    Raises:
        ValueError: the data is damaged.
    """
    rows = data.get("nodes")
    if not isinstance(rows, list) or not rows:
        raise ValueError("there are no parts")
    made: list[Expression] = []
    free: list[int] = []  # of each part: the rules that it names, which are not yet around it
    for number, row in enumerate(rows):
        if not isinstance(row, list) or not row or not isinstance(row[0], str):
            raise ValueError(f"part {number} is no list that begins with its kind")
        part = _Part(number, row[0], row[1:], made, free)
        made.append(part.expression())
        free.append(part.names)
    if free[-1]:
        raise ValueError(f"a rule is named ({free[-1] - 1}), but there are no rules around")
    return made[-1]


class _Part:
    """One part of stored data, and those before it.

    Attributes:
        names: how many rules must stand around it.
    """

    def __init__(
        self, number: int, kind: str, rest: list[Any], made: list[Expression], free: list[int]
    ) -> None:
        self.number = number
        self.kind = kind
        self.rest = rest
        self.made = made
        self.free = free
        self.names = 0

    def expression(self) -> Expression:
        rest = self.rest
        match self.kind:
            case "chars":
                self._has(1)
                return Chars(CharSet(self._edges(rest[0])))
            case "text":
                self._has(1)
                return Text(self._text(rest[0]))
            case "seq":
                return Seq(self._parts(rest))
            case "alt":
                return Alt(self._parts(rest))
            case "both":
                return Both(self._closed(rest))
            case "repeat":
                self._has(4)
                low, high = self._count(rest[1]), rest[2]
                if high is not None and self._count(high) < low:
                    self._fail(f"it repeats from {low} to {high} times")
                return Repeat(self._parts(rest[:1])[0], low, high, self._flag(rest[3]))
            case "not":
                self._has(1)
                return Not(self._closed(rest)[0])
            case "look":
                self._has(3)
                return Look(self._closed(rest[:1])[0], self._flag(rest[1]), self._flag(rest[2]))
            case "atomic":
                self._has(1)
                return Atomic(self._closed(rest)[0])
            case "ref":
                self._has(1)
                self.names = self._count(rest[0]) + 1
                return Ref(rest[0])
            case "rules":
                items = self._parts(rest)
                if self.names > len(items):
                    self._fail(f"rule {self.names - 1} is named, but there are {len(items)}")
                if not items:
                    self._fail("there are no rules in it")
                self.names = 0
                return Rules(items)
            case "words":
                texts = tuple(self._text(text) for text in rest)
                if not texts or any(a >= b for a, b in pairwise(texts)):
                    self._fail("the words are not in order")
                return Words(texts)
            case "except":
                if len(rest) < 2:
                    self._fail("it lacks something")
                chars, others = self._closed(rest[:2])
                texts = tuple(self._text(text) for text in rest[2:])
                if not isinstance(chars, Chars):
                    self._fail("an exception is not made of characters")
                if not texts or any(ord(c) not in chars.chars for text in texts for c in text):
                    self._fail("an exception is not in its characters")
                return Except(chars, others, texts)
            case _:
                return self._fail("there is no such kind")

    def _fail(self, problem: str) -> NoReturn:
        raise ValueError(f"part {self.number} ({self.kind[:20]!r}): {problem}")

    def _has(self, count: int) -> None:
        if len(self.rest) != count:
            self._fail(f"it has {len(self.rest)} values where there should be {count}")

    def _parts(self, numbers: Iterable[Any]) -> tuple[Expression, ...]:
        found = []
        for number in numbers:
            if type(number) is not int or not 0 <= number < self.number:
                self._fail(f"{number!r} is no part before it")
            found.append(self.made[number])
            self.names = max(self.names, self.free[number])
        return tuple(found)

    def _closed(self, numbers: Iterable[Any]) -> tuple[Expression, ...]:
        """Parts in which no rules around may be named."""
        found = self._parts(numbers)
        if self.names:
            self._fail("a rule is named inside of it")
        return found

    def _count(self, value: Any) -> int:  # noqa: ANN401 - JSON
        if type(value) is not int or not 0 <= value <= _MOST_COUNT:
            self._fail(f"{value!r} is no count")
        return value

    def _flag(self, value: Any) -> bool:  # noqa: ANN401 - JSON
        if not isinstance(value, bool):
            self._fail(f"{value!r} is neither true nor false")
        return value

    def _text(self, value: Any) -> str:  # noqa: ANN401 - JSON
        if not isinstance(value, str) or any(0xD800 <= ord(c) < 0xE000 for c in value):
            self._fail("it is no text of characters")
        return value

    def _edges(self, stored: Any) -> tuple[int, ...]:  # noqa: ANN401 - JSON
        edges = self._unpacked(stored) if isinstance(stored, str) else stored
        if not isinstance(edges, list) or not all(type(e) is int for e in edges):
            self._fail("it is no list of code points")
        ends = [-1, *edges, _LAST + 1]
        if len(edges) % 2 or any(a >= b for a, b in pairwise(ends)):
            self._fail("its code points are not pairs in ascending order")
        found = CharSet(tuple(edges))
        if found & CharSet((0xD800, 0xE000)):
            self._fail("it holds surrogates, which are no characters")
        return found.edges

    def _unpacked(self, stored: str) -> list[int]:
        try:
            packed = base64.b64decode(stored, validate=True)
            text = zlib.decompressobj().decompress(packed, _MOST_BYTES).decode()
            steps = [int(step) for step in text.split(",")]
        except (ValueError, zlib.error):
            self._fail("its code points cannot be unpacked")
        edges, at = [], 0
        for step in steps:
            at += step
            edges.append(at)
        return edges


def _pack(edges: tuple[int, ...]) -> list[int] | str:
    """Edges as they are if few; else their differences, compressed, as base64."""
    if len(edges) <= 16:
        return list(edges)
    steps = ",".join(str(b - a) for a, b in zip((0, *edges), edges, strict=False))
    return base64.b64encode(zlib.compress(steps.encode(), 9)).decode()
