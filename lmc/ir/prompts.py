"""The prompts of a program as a tree: what they begin with alike, and where they part.

    Essay: {essay} ... {related} ─┬─ Judge its clarity ... {judgment}
                                  └─ Judge its evidence ... {judgment}

It is the shape that the radix cache will have after a row. A stretch is prompt text without a fork
in it; model calls that read a fork's prompt read its stretch, and all those above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from lmc.errors import Location
from lmc.ir.analysis import Parts
from lmc.ir.chains import unchained
from lmc.ir.core import Const, Node, Operand, Program, Region, Value
from lmc.ir.ops import MODEL_CALLS, Extend, HostCall, If, Match, Role, Score, Select
from lmc.ir.printer import name_values
from lmc.ir.types import STATE

__all__ = ["Piece", "Stretch", "prompt_tree", "readers"]

PieceKind = Literal["text", "open", "made", "role"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt.

    Attributes:
        kind: "text" is constant, "open" depends on the row, "made" comes from a model call, "role"
            begins or ends a message.
        text: the constant text; else a name for what stands there.
        at: the line of the program.
    """

    kind: PieceKind
    text: str
    at: Location | None = None


@dataclass(eq=False, slots=True)
class Stretch:
    """Prompt text between two forks.

    Attributes:
        parent: what stands before it, or None.
        depth: how many stretches stand before it.
        way: "then" or "else" where it is the first of a way of a `flow.if`, else "".
        states: of the program, in order; the last one is its end.
        pieces: what is appended.
        calls: names of the model calls in it.
        readers: model calls of a row that read its beginning, on the way with most of them.
    """

    parent: Stretch | None
    depth: int
    way: str
    states: list[Value] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    readers: int = 0


def readers(region: Region) -> Counter[Value]:
    """For each state, how many model calls have it in their prompt, on the way with most."""
    return _readers(region.nodes)


def _readers(nodes: tuple[Node, ...]) -> Counter[Value]:
    # the last node may hold regions; from there backward, all that follows a state is known
    found: Counter[Value] = Counter()
    for node in reversed(nodes):
        if isinstance(node.op, If):
            then, orelse = (_readers(region.nodes) for region in node.op.regions())
            found = then | orelse
            continue
        count = int(isinstance(node.op, MODEL_CALLS)) + sum(
            found[v] for v in node.results if v.type == STATE
        )
        if count:
            for value in node.op.value_operands():
                if value.type == STATE:
                    found[value] += count
    return found


def prompt_tree(program: Program) -> list[Stretch]:
    """The stretches of a program's prompts, each before those that go on from it."""
    program = unchained(program)
    names = name_values(program)
    counts = readers(program.body)
    parts = Parts(program)
    children = _children(program)
    found: list[Stretch] = []
    todo: list[tuple[_Step, Stretch | None]] = [(root, None) for root in reversed(children[None])]
    while todo:
        step, parent = todo.pop()
        stretch = Stretch(parent, 0 if parent is None else parent.depth + 1, step.way)
        stretch.readers = counts[step.state] + int(isinstance(step.node.op, MODEL_CALLS))
        found.append(stretch)
        while True:
            _append(stretch, step.node, names, parts)
            state = step.state
            stretch.states.append(state)
            after = children.get(state, [])
            if len(after) != 1 or after[0].way:
                break
            step = after[0]
        todo += ((child, stretch) for child in reversed(after))
    return [stretch for stretch in found if stretch.pieces or stretch.parent is None]


@dataclass(frozen=True, slots=True)
class _Step:
    """A node that makes a state, and the way of an `if` that it is the first one of, if any."""

    node: Node
    state: Value
    way: str


def _children(program: Program) -> dict[Value | None, list[_Step]]:
    """What goes on from each state, in printed order; from None what starts."""
    children: dict[Value | None, list[_Step]] = {}
    home: dict[Value, Region] = {}
    for region, way in _regions(program.body):
        for node in region.nodes:
            made = next((v for v in node.results if v.type == STATE), None)
            if made is None:
                continue
            before = next((v for v in node.op.value_operands() if v.type == STATE), None)
            entered = way if before is not None and home[before] is not region else ""
            children.setdefault(before, []).append(_Step(node, made, entered))
            home[made] = region
    children.setdefault(None, [])
    return children


def _regions(body: Region) -> Iterator[tuple[Region, str]]:
    """All regions, outer ones first, each with the way that it is of an `if`."""
    todo = [(body, "")]
    while todo:
        region, way = todo.pop()
        yield region, way
        op = region.terminator.op
        if isinstance(op, If):
            todo += ((op.orelse, "else"), (op.then, "then"))


def _append(stretch: Stretch, node: Node, names: dict[Value, str], parts: Parts) -> None:
    def piece(operand: Operand) -> Piece:
        if isinstance(operand, Const):
            return Piece("text", str(operand.value), node.at)
        return Piece("open", names[operand], node.at)

    def made(name: str) -> Piece:
        return Piece("made", name, node.at)

    op, pieces = node.op, stretch.pieces
    match op:
        case Extend():
            pieces += map(piece, parts.of(op))
        case Role():
            pieces.append(Piece("role", f"{op.edge} {op.role}", node.at))
        case Match():
            for name, text in zip(op.names, op.texts, strict=True):
                pieces += (made(name), piece(text))
        case Score():
            pieces.append(piece(op.text))
        case Select():
            pieces.append(made(op.name))
        case HostCall():
            pass
        case _ if isinstance(op, MODEL_CALLS):
            pieces.append(made(call_name(node)))
    if isinstance(op, MODEL_CALLS):
        stretch.calls.append(call_name(node))


def call_name(node: Node) -> str:
    """What a model call is called in reports: its variable, or its variables."""
    return getattr(node.op, "name", None) or "+".join(getattr(node.op, "names", ()))
