"""The language of constraints: a small algebra of texts, and the form in which it is stored.

An expression stands for a set of texts. Front ends (regexes, choices, schemas) make expressions,
automata are made from them, and a plan keeps them as JSON. Nothing here runs anything.

    Chars(set)                one character of a set
    Text(text)                just this text
    Seq(items) Alt(items)     one after the other; one or the other
    Repeat(item, low, high)   so often; `high` None is without bound
    Both(items)               texts that are in all
    Not(item)                 all texts that are not in `item`
    Look(item, ...)           nothing, where `item` follows (or does not, or lies behind)
    Atomic(item)              what a backtracking matcher takes first, and no second try
    Rules(items) Ref(index)   the first item; in the items, `Ref(n)` stands for item n, which may
                              contain itself: values in values, brackets in brackets
    Except(chars, .., texts)  any text but these, in characters that are written in some way
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lmc.constraints.charset import ANY, CharSet

__all__ = [
    "ALL",
    "END",
    "EPSILON",
    "NEVER",
    "START",
    "Alt",
    "Atomic",
    "Both",
    "Chars",
    "Except",
    "Expression",
    "Look",
    "Not",
    "Ref",
    "Repeat",
    "Rules",
    "Seq",
    "Text",
    "decode",
    "encode",
    "one_of",
    "walk",
]


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Seq:
    """The items one after the other; nothing at all if there are none."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the items; no text at all if there are none. Order matters inside `Atomic` only."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`item` at least `low` and at most `high` times; `lazy` matters inside `Atomic` only."""

    item: Expression
    low: int
    high: int | None
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class Both:
    """The texts that are in every item; all texts if there are none."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """All texts that are not in `item`."""

    item: Expression


@dataclass(frozen=True, slots=True)
class Look:
    """The empty text, at places where `item` matches what comes next, or what lies before."""

    item: Expression
    behind: bool = False
    negative: bool = False


@dataclass(frozen=True, slots=True)
class Atomic:
    """`item`, taken as a backtracking matcher takes it first, whatever follows."""

    item: Expression


@dataclass(frozen=True, slots=True)
class Ref:
    """The item of that number in the `Rules` around it."""

    index: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The first item. No item may begin with itself, nor look at what stands around it.

    Conjunctions and complements of rules can be walked, but whether anything is left of them may
    take too long to find out: no method answers that for all of them.
    """

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Except:
    """Characters of `chars`, or `others`, one after the other, but none of `texts` as a whole.

    The texts are made of `chars` only, and `others` begin with nothing in `chars`.
    """

    chars: Chars
    others: Expression
    texts: tuple[str, ...]


Expression = Chars | Text | Seq | Alt | Repeat | Both | Not | Look | Atomic | Ref | Rules | Except

EPSILON = Seq(())
NEVER = Alt(())
ALL = Repeat(Chars(ANY), 0, None)
START = Look(Chars(ANY), behind=True, negative=True)
END = Look(Chars(ANY), negative=True)


def one_of(texts: Iterable[str]) -> Expression:
    """Any of `texts`, with common beginnings shared so that many of them cost little."""
    # One level of the tree is (texts from a stack slice that share `depth` characters).
    ordered = sorted(set(texts))

    def build(low: int, high: int, depth: int) -> Expression:
        arms: list[Expression] = []
        while low < high and len(ordered[low]) == depth:
            arms.append(EPSILON)
            low += 1
        while low < high:
            end = low
            while end < high and ordered[end][depth] == ordered[low][depth]:
                end += 1
            first, last = ordered[low], ordered[end - 1]
            shared = depth
            while shared < min(len(first), len(last)) and first[shared] == last[shared]:
                shared += 1
            head = Text(first[depth:shared])
            rest = EPSILON if end == low + 1 else build(low, end, shared)
            arms.append(head if rest == EPSILON else Seq((head, rest)))
            low = end
        return arms[0] if len(arms) == 1 else Alt(tuple(arms))

    return build(0, len(ordered), 0)


def children(expression: Expression) -> tuple[Expression, ...]:
    """The expressions directly inside."""
    match expression:
        case Chars() | Text() | Ref():
            return ()
        case Seq(items) | Alt(items) | Both(items) | Rules(items):
            return items
        case Repeat() | Not() | Look() | Atomic():
            return (expression.item,)
        case Except(chars, others, _):
            return (chars, others)


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and all inside it, each object once."""
    seen: set[int] = set()
    stack = [expression]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(children(node))


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
            case Except(_, _, texts):
                return add(["except", *inner, *texts])

    visit(expression)
    return {"nodes": nodes}


def decode(data: dict[str, Any]) -> Expression:
    """Read what `encode` wrote; raises ValueError, KeyError, IndexError or TypeError if damaged."""
    made: list[Expression] = []
    for row in data["nodes"]:
        kind, rest = row[0], row[1:]
        match kind:
            case "chars":
                made.append(Chars(CharSet(_unpack(rest[0]))))
            case "text":
                made.append(Text(str(rest[0])))
            case "seq":
                made.append(Seq(tuple(made[i] for i in rest)))
            case "alt":
                made.append(Alt(tuple(made[i] for i in rest)))
            case "both":
                made.append(Both(tuple(made[i] for i in rest)))
            case "repeat":
                made.append(Repeat(made[rest[0]], rest[1], rest[2], rest[3]))
            case "not":
                made.append(Not(made[rest[0]]))
            case "look":
                made.append(Look(made[rest[0]], rest[1], rest[2]))
            case "atomic":
                made.append(Atomic(made[rest[0]]))
            case "ref":
                made.append(Ref(int(rest[0])))
            case "rules":
                made.append(Rules(tuple(made[i] for i in rest)))
            case "except":
                chars = made[rest[0]]
                if not isinstance(chars, Chars):
                    raise TypeError("an exception is not made of characters")
                made.append(Except(chars, made[rest[1]], tuple(str(t) for t in rest[2:])))
            case _:
                raise ValueError(f"unknown kind of expression {kind!r}")
    return made[-1]


def _pack(edges: tuple[int, ...]) -> list[int] | str:
    """Edges as they are if few; else their differences, compressed, as base64."""
    if len(edges) <= 16:
        return list(edges)
    steps = ",".join(str(b - a) for a, b in zip((0, *edges), edges, strict=False))
    return base64.b64encode(zlib.compress(steps.encode(), 9)).decode()


def _unpack(stored: list[int] | str) -> tuple[int, ...]:
    if isinstance(stored, list):
        return tuple(int(e) for e in stored)
    edges, at = [], 0
    for step in zlib.decompress(base64.b64decode(stored)).decode().split(","):
        at += int(step)
        edges.append(at)
    return tuple(edges)
