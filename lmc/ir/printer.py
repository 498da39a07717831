"""Graph to text, in one canonical form that `lmc.ir.parser` reads back.

Values are named by their hints, repeated ones with a number: `%answer`, `%answer.1`. Values without
a hint are numbered by type: `%s0` is a state, `%t0` a text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lmc.errors import Location
from lmc.ir.attributes import spell, spell_key
from lmc.ir.core import Const, Node, Operand, Program, Region, Value
from lmc.ir.ops import HostCall, If, Resume, Ret
from lmc.ir.switches import Switch, switches_of
from lmc.ir.types import BOOL, FLOAT, INT, STATE, TEXT, Type

__all__ = ["Line", "name_values", "print_program", "printed_lines"]

_LETTERS = {STATE: "s", TEXT: "t", BOOL: "b", INT: "i", FLOAT: "n"}
_NUMBERED = re.compile(r"[stbinlv]?\d+")


def hint_of(name: str) -> str:
    """The hint that a printed name stands for: `answer.1` comes from `answer`, `s0` from none."""
    return "" if _NUMBERED.fullmatch(name) else name.partition(".")[0]


def _clean(hint: str) -> str:
    """A hint as a name: other characters than letters, digits and `_` become `_`."""
    name = re.sub(r"\W", "_", hint)
    if name[:1].isdigit():
        name = "_" + name
    return name + "_" if _NUMBERED.fullmatch(name) else name


def _letter(kind: Type) -> str:
    return "l" if kind.item else _LETTERS.get(kind, "v")


def name_values(program: Program) -> dict[Value, str]:
    """The printed name of every value that the program defines, without the `%`."""
    names: dict[Value, str] = {}
    hinted: Counter[str] = Counter()
    numbered: Counter[str] = Counter()

    def give(value: Value) -> None:
        if value in names:
            return
        if value.hint:
            stem = _clean(value.hint)
            names[value] = f"{stem}.{hinted[stem]}" if hinted[stem] else stem
            hinted[stem] += 1
        else:
            letter = _letter(value.type)
            names[value] = f"{letter}{numbered[letter]}"
            numbered[letter] += 1

    for value in program.params:
        give(value)
    for node in program.walk():
        for value in node.results:
            give(value)
    return names


@dataclass(frozen=True, slots=True)
class Line:
    """A printed line and the node that it shows; None for the header and for braces.

    A line of a `flow.switch` shows an `if`, and beside it the comparison that it asks for.
    """

    text: str
    node: Node | None = None
    beside: Node | None = None


class _Printer:
    def __init__(
        self, program: Program, *, locations: bool, names: dict[Value, str] | None
    ) -> None:
        self.program = program
        self.names = name_values(program) if names is None else names
        self.locations = locations
        self.switches = switches_of(program.body)
        self.lines: list[Line] = []

    def operand(self, operand: Operand) -> str:
        if isinstance(operand, Const):
            return spell(operand.value)
        # only an invalid graph uses a value that it does not define; it can still be printed
        return f"%{self.names[operand]}" if operand in self.names else f"%?{_clean(operand.hint)}"

    def operands(self, operands: tuple[Operand, ...]) -> str:
        return ", ".join(map(self.operand, operands))

    def show(self) -> list[Line]:
        program = self.program
        params = ", ".join(f"%{self.names[p]}: {p.type}" for p in program.params)
        held: dict[str, object] = {}
        if program.static != "{}":
            held["static"] = program.static
        if program.paths != tuple((hint_of(self.names[p]),) for p in program.params):
            held["paths"] = [list(path) for path in program.paths]
        if program.known:
            held["known"] = list(program.known)
        if program.source:
            held["source"] = [program.source.file, program.source.line]
        header = f"program @{spell_key(program.name)}({params})"
        self.lines.append(Line(" ".join(filter(None, (header, _attributes(held), "{")))))
        # nested regions are shown with a stack: programs may be nested deeper than Python's stack
        # each entry: what is left of a region, and the regions that follow it, with their lines
        stack: list[tuple[Iterator[Node], list[tuple[Line, Region]]]]
        stack = [(iter(program.body.nodes), [])]
        while stack:
            nodes, others = stack[-1]
            indent = "  " * len(stack)
            if node := next(nodes, None):
                if switch := self.switches.get(id(node)):
                    ways = list(self.ways(switch))
                    next(nodes)  # the `if`
                else:
                    line = Line(self.node(node) + self.place(node.at), node)
                    ways = [(line, Region(()))]
                    if isinstance(node.op, If):
                        ways = [(line, node.op.then), (Line("} else {"), node.op.orelse)]
                (line, way), *others = ways
                self.lines.append(replace(line, text=indent + line.text))
                if isinstance(node.op, If) or switch:
                    stack.append((iter(way.nodes), others))
            elif others:
                line, way = others.pop(0)
                self.lines.append(replace(line, text=indent[2:] + line.text))
                stack[-1] = iter(way.nodes), others
            else:
                self.lines.append(Line(indent[2:] + "}"))
                stack.pop()
        return self.lines

    def ways(self, switch: Switch) -> Iterator[tuple[Line, Region]]:
        """The ways of a switch, each with the line that it stands behind."""
        head = f"flow.switch {self.operand(switch.subject)}"
        for case in switch.cases:
            place = self.place(case.branches.at)
            text = f"{head} case {spell(case.text)} {{{place}"
            yield Line(text, case.branches, case.compares), case.way
            head = "}"
        yield Line("} else {"), switch.default

    def place(self, at: Location | None) -> str:
        return f"  // {at}" if self.locations and at else ""

    def node(self, node: Node) -> str:
        op = node.op
        results = ", ".join(map(self.operand, node.results))
        head = f"{results} = {op.mnemonic}" if results else op.mnemonic
        if isinstance(op, If):
            return f"{head} {self.operand(op.condition)}{self.after(op.after)} {{"
        if isinstance(op, Ret):
            pairs = zip(op.names, op.values, strict=False)
            variables = ", ".join(f"{spell_key(n)} = {self.operand(v)}" for n, v in pairs)
            value = "" if op.value == Const(None) else self.operand(op.value)
            shown = (self.operand(op.state), variables and f"{{{variables}}}", value)
            return f"{head} {', '.join(filter(None, shown))}{self.after(op.after)}"
        waits = op.after if isinstance(op, (Resume, HostCall)) else ()
        if isinstance(op, Resume):
            operands = ", ".join(f"({self.operands(pair)})" for pair in op.calls)
        else:
            operands = self.operands(op.args if isinstance(op, HostCall) else op.operands())
        parts = (head, operands, self.after(waits).strip(), _attributes(op.attributes()))
        return " ".join(filter(None, parts))

    def after(self, waits: tuple[Operand, ...]) -> str:
        return f" after {self.operands(waits)}" if waits else ""


def _attributes(held: dict[str, object]) -> str:
    inside = ", ".join(f"{spell_key(k)} = {spell(v)}" for k, v in held.items())
    return f"{{{inside}}}" if inside else ""


def printed_lines(
    program: Program, *, locations: bool = False, names: dict[Value, str] | None = None
) -> list[Line]:
    """The lines of `print_program`, each with its node; with `names` instead of canonical ones."""
    return _Printer(program, locations=locations, names=names).show()


def print_program(program: Program, *, locations: bool = False) -> str:
    """The program in the textual form, which `parse` reads back.

    Args:
        program: may be invalid: values that it uses without defining them show as `%?`.
        locations: end each line with the user's line it came from, as a comment.
    """
    lines = printed_lines(program, locations=locations)
    return "\n".join(line.text for line in lines) + "\n"
