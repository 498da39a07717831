"""Chains of comparisons of one text, which are shown as one `flow.switch`.

    %b0 = text.eq %k, "a"                    flow.switch %k case "a" { A }
    flow.if %b0 { A } else {                 case "b" { B }
      %b1 = text.eq %k, "b"          <=>     else { C }
      flow.if %b1 { B } else { C }
    }

In a graph there are only ifs, so nothing that works on graphs has to know of switches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lmc.ir.core import Const, Node, Region, Value
from lmc.ir.ops import If, Pure

__all__ = ["Case", "Switch", "switches_of"]

_FEWEST = 2  # comparisons of a chain that is shown as a switch


@dataclass(frozen=True, slots=True)
class Case:
    """A way: the text that leads there, and the two nodes that lead there in the graph."""

    text: str
    way: Region
    compares: Node
    branches: Node


@dataclass(frozen=True, slots=True)
class Switch:
    """A chain: `subject` is compared with the texts of the cases in turn."""

    subject: Value
    cases: tuple[Case, ...]
    default: Region


def switches_of(body: Region) -> dict[int, Switch]:
    """The longest chains of a program, by the id of the first node of each: a comparison.

    A chain ends where anything else is done, waited for or named between two comparisons.
    """
    used = Counter(value for node in body.walk() for value in node.op.value_operands())
    found: dict[int, Switch] = {}
    todo = [body]
    while todo:
        region = todo.pop()
        cases: list[Case] = []
        subject: Value | None = None
        rest = region
        while (link := _link(rest, used, first=not cases)) is not None:
            value, case = link
            if cases and (value is not subject or case.text in [c.text for c in cases]):
                break
            assert isinstance(case.branches.op, If), "a link ends in an if"
            subject, rest = value, case.branches.op.orelse
            cases.append(case)
        if subject is None or len(cases) < _FEWEST:
            todo += region.nodes[-1].op.regions() if region.nodes else ()
            continue
        found[id(cases[0].compares)] = Switch(subject, tuple(cases), rest)
        todo += [*(case.way for case in cases), rest]
    return found


def _link(region: Region, used: Counter[Value], *, first: bool) -> tuple[Value, Case] | None:
    """The text that a region ends in a comparison of, and that way; it does nothing else."""
    if len(region.nodes) < 2 or (len(region.nodes) > 2 and not first):
        return None
    compares, branches = region.nodes[-2:]
    match compares.op, branches.op:
        case Pure("text.eq", (Value() as value, Const(str(text)))), If(condition, way, _, ()):
            (made,) = compares.results
            if condition is made and used[made] == 1 and not made.hint:
                return value, Case(text, way, compares, branches)
    return None
