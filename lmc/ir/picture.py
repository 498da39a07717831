"""A program as boxes and arrows: what DOT, Mermaid, SVG and networkx show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lmc.ir.attributes import spell
from lmc.ir.core import Program, Region, Value
from lmc.ir.ops import If
from lmc.ir.printer import name_values, printed_lines
from lmc.ir.switches import Switch, switches_of
from lmc.ir.types import STATE

__all__ = ["Arrow", "Box", "Group", "Picture", "picture_of", "pruned"]

LONGEST_LABEL = 72  # characters; the rest of a line is left out

ArrowKind = Literal["state", "data", "control"]


@dataclass(frozen=True, slots=True)
class Box:
    """A parameter or a node; `op` is its mnemonic, `param` for parameters, `more` if pruned."""

    id: str
    label: str
    op: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """From what defines a value to what uses it, or from an `if` into one of its ways."""

    source: str
    target: str
    label: str
    kind: ArrowKind


@dataclass(frozen=True, slots=True)
class Group:
    """The boxes of a region, in order, with the groups inside it."""

    id: str
    label: str
    boxes: tuple[Box, ...]
    inner: tuple[Group, ...] = ()

    def walk(self) -> Iterator[Box]:
        """All boxes, each before those of inner groups."""
        yield from self.boxes
        for group in self.inner:
            yield from group.walk()


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole program."""

    name: str
    group: Group
    arrows: tuple[Arrow, ...]

    def boxes(self) -> Iterator[Box]:
        """All boxes, in printed order."""
        return self.group.walk()


def picture_of(program: Program) -> Picture:
    """The boxes and arrows of a program."""
    return _Drawing(program).picture()


def pruned(picture: Picture, most: int) -> Picture:
    """The picture with at most about so many boxes: outer groups stay, inner ones shrink to one.

    The first box of a group that is left out stands for it: its `op` is `more`, its label says how
    many there were.
    """
    kept: set[str] = set()
    level = [picture.group]
    left = most
    while level:
        for group in level:
            if len(group.boxes) <= left:
                kept.add(group.id)
                left -= len(group.boxes)
        level = [inner for group in level if group.id in kept for inner in group.inner]
    group = _pruned(picture.group, kept)
    ops = {box.id: box.op for box in group.walk()}
    arrows = (
        arrow
        for arrow in picture.arrows
        if arrow.source in ops
        and ops[arrow.source] != "more"
        and arrow.target in ops
        and (ops[arrow.target] != "more" or arrow.kind == "control")
    )
    return Picture(picture.name, group, tuple(arrows))


def _pruned(group: Group, kept: set[str]) -> Group:
    if group.id in kept:
        return Group(
            group.id, group.label, group.boxes, tuple(_pruned(inner, kept) for inner in group.inner)
        )
    count = sum(1 for _ in group.walk())
    return Group(group.id, group.label, (Box(group.boxes[0].id, f"{count} nodes", "more"),))


class _Drawing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = name_values(program)
        self.switches = switches_of(program.body)
        self.lines = {id(ln.node): ln.text for ln in printed_lines(program) if ln.node}
        self.arrows: list[Arrow] = []
        self.made_by: dict[Value, str] = {}
        self.count = 0  # of nodes so far, in printed order: they and groups are named by it

    def picture(self) -> Picture:
        params = []
        for nth, param in enumerate(self.program.params):
            self.made_by[param] = f"p{nth}"
            params.append(Box(f"p{nth}", f"%{self.names[param]}: {param.type}", "param"))
        group = self.group(self.program.body, self.program.name, params)
        return Picture(self.program.name, group, tuple(self.arrows))

    def group(self, region: Region, label: str, boxes: list[Box]) -> Group:
        group_id = f"g{self.count}"
        inner: list[Group] = []
        for node in region.nodes:
            if switch := self.switches.get(id(node)):
                boxes.append(self.switch(switch, inner))
                break
            box_id = f"n{self.count}"
            self.count += 1
            line = self.lines[id(node)].strip().removesuffix(" {")
            if len(line) > LONGEST_LABEL:
                line = line[: LONGEST_LABEL - 1] + "…"
            boxes.append(Box(box_id, line, node.op.mnemonic))
            for value in dict.fromkeys(node.op.value_operands()):
                kind: ArrowKind = "state" if value.type == STATE else "data"
                self.arrows.append(
                    Arrow(self.made_by[value], box_id, f"%{self.names[value]}", kind)
                )
            self.made_by.update((value, box_id) for value in node.results)
            if isinstance(node.op, If):
                for way, part in (("then", node.op.then), ("else", node.op.orelse)):
                    self.way(box_id, part, way, inner)
        return Group(group_id, label, tuple(boxes), tuple(inner))

    def switch(self, switch: Switch, inner: list[Group]) -> Box:
        """The box of a switch, which has the number of its first `if`; adds the ways to `inner`."""
        box_id = f"n{self.count + 1}"
        name = f"%{self.names[switch.subject]}"
        self.arrows.append(Arrow(self.made_by[switch.subject], box_id, name, "data"))
        for case in switch.cases:
            self.count += 2
            self.way(box_id, case.way, spell(case.text), inner)
        self.way(box_id, switch.default, "else", inner)
        return Box(box_id, f"flow.switch {name}", "flow.switch")

    def way(self, box_id: str, way: Region, label: str, inner: list[Group]) -> None:
        """An arrow into a way, and its boxes."""
        self.arrows.append(Arrow(box_id, f"n{self.first_of(way)}", label, "control"))
        inner.append(self.group(way, label, []))

    def first_of(self, region: Region) -> int:
        """The number of the first box of a region that comes next."""
        return self.count + (id(region.nodes[0]) in self.switches)
