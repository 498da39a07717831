"""The rules that every graph keeps, each once. All violations are reported, not the first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from lmc.errors import IRError, Location, VerifyError
from lmc.ir.core import Node, Op, Program, Region, Value
from lmc.ir.ops import Chain, Gen, Match, Release, Select
from lmc.ir.printer import Line, printed_lines
from lmc.ir.types import TEXT

__all__ = ["verify", "violations"]


def verify(program: Program) -> None:
    """Check a graph.

    Raises:
        VerifyError: it breaks rules; every violation shows the printed line and the user's line.
    """
    if found := violations(program):
        raise VerifyError(found, program.source)


def violations(program: Program) -> list[str]:
    """What is wrong with a graph, in printed order; empty if nothing is.

    The rules:
        * a region ends in a terminator and has none before its end;
        * a value is defined once, before its uses, in the region of the use or one around it;
        * operands and attributes are what the op takes, results what it gives;
        * two sampled calls on one way have different draws;
        * a state that was released is not used again;
        * the header's paths are one per parameter, as are its known texts, if it has any, and
          `static` is JSON text of an object.
    """
    check = _Check(program)
    return [check.shown(node, rule) for node, rule in check.run()]


@dataclass
class _Way:
    """What is known at a place, from the nodes on the way to it."""

    visible: set[Value]
    draws: set[int] = field(default_factory=set)
    released: set[Value] = field(default_factory=set)

    def branch(self) -> _Way:
        return _Way(set(self.visible), set(self.draws), set(self.released))


class _Check:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.everywhere: set[Value] = set()
        self.lines: dict[int, tuple[int, Line]] | None = None

    def run(self) -> Iterator[tuple[Node | None, str]]:
        """Every broken rule, and the node that breaks it; None for the header."""
        program = self.program
        yield from ((None, rule) for rule in _header_rules(program))
        for param in program.params:
            if param in self.everywhere:
                yield None, f"the parameter `{param.hint}` is listed twice"
            self.everywhere.add(param)
        # (region, way to it) still to check; a stack, as programs may nest deeply
        todo = [(program.body, _Way(set(program.params)))]
        while todo:
            region, way = todo.pop()
            yield from self.region(region, way)
            if region.nodes:
                todo += [(r, way.branch()) for r in reversed(region.terminator.op.regions())]

    def region(self, region: Region, way: _Way) -> Iterator[tuple[Node | None, str]]:
        if not region.nodes:
            yield None, "a region is empty; it must end in ret, flow.resume or flow.if"
            return
        for node in region.nodes:
            yield from ((node, rule) for rule in self.node(node, way))
            if node.op.terminator and node is not region.terminator:
                yield node, f"{node.op.mnemonic} ends the region, but nodes follow it"
        if not region.terminator.op.terminator:
            rule = "the region ends here, but not in ret, flow.resume or flow.if"
            yield region.terminator, rule

    def node(self, node: Node, way: _Way) -> Iterator[str]:
        op = node.op
        for value in dict.fromkeys(op.value_operands()):
            if value not in way.visible:
                elsewhere = value in self.everywhere
                yield (
                    f"uses a value{f' `{value.hint}`' if value.hint else ''} that is "
                    f"{'defined in another region' if elsewhere else 'not defined before it'}"
                )
            if value in way.released:
                yield "uses a state that was released"
        try:
            op.verify()
        except IRError as error:
            yield error.problem
        wanted, found = op.result_types(), tuple(v.type for v in node.results)
        if wanted != found:
            shown = (", ".join(map(str, types)) or "nothing" for types in (wanted, found))
            yield "gives {}, but its results are {}".format(*shown)
        for value in node.results:
            if value in self.everywhere:
                yield f"defines a value{f' `{value.hint}`' if value.hint else ''} a second time"
            self.everywhere.add(value)
            way.visible.add(value)
        for draw in _draws(op):
            if draw in way.draws:
                yield f"draws the same random numbers as another call: both have draw = {draw}"
            way.draws.add(draw)
        if isinstance(op, Release):
            way.released.add(op.state)

    def shown(self, node: Node | None, rule: str) -> str:
        """The violation with the printed line and the user's line."""
        if node is None:
            return rule
        if self.lines is None:
            printed = enumerate(printed_lines(self.program), 1)
            self.lines = {
                id(node): (nth, line)
                for nth, line in printed
                for node in (line.node, line.beside)
                if node is not None
            }
        number, line = self.lines[id(node)]
        return f"line {number}: `{line.text.strip()}`: {rule}{_place(node.at)}"


def _draws(op: Op) -> list[int]:
    """The keys of the random numbers that an op takes."""
    match op:
        case Chain():
            return [d for d, gen in zip(op.draws, op.gens, strict=False) if not gen.greedy]
        case Gen() | Match() if not op.params.greedy:
            return [op.draw]
        case Select() if op.temperature:
            return [op.draw]
    return []


def _place(at: Location | None) -> str:
    return f" ({at})" if at else ""


def _header_rules(program: Program) -> Iterator[str]:
    if len(program.paths) != len(program.params):
        yield f"there are {len(program.params)} parameters, but paths for {len(program.paths)}"
    if program.known and len(program.known) != len(program.params):
        yield f"there are {len(program.params)} parameters, but {len(program.known)} known texts"
    for value, text in zip(program.params, program.known, strict=False):
        if text is not None and value.type != TEXT:
            yield f"%{value.hint} is no text, but has a known one"
    for path in program.paths:
        if not path or not all(isinstance(k, (str, int)) and k is not True for k in path):
            yield f"a path is names and numbers, and not empty; found {path!r}"
    try:
        known = json.loads(program.static)
    except ValueError:
        known = None
    if not isinstance(known, dict):
        yield "static is not JSON text of an object"
