"""Remove what nobody reads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.core import Const, Effect, Node, Op, Program, Region, Value
from lmc.ir.ops import PARTIAL, HostCall, If, Pure, Typed
from lmc.passes.rewrite import region_of

__all__ = ["DCE", "may_raise"]


@dataclass(frozen=True)
class DCE:
    """Drop pure nodes whose results are not used: dead-code elimination.

        %s1, %a = lm.gen %s0 {name = "a"}
        %s2, %b = lm.gen %s0 {name = "b"}    =>    %s2, %b = lm.gen %s0 {name = "b"}
        ret %s2, {b = %b}                          ret %s2, {b = %b}

    Model calls are pure, so those that nobody reads go too. What `ret` and `flow.resume` name is
    read. Ops with effects stay, and so do tools and functions that may raise on their arguments:
    dropping `text.at` could turn a program that fails into one that does not.

    Running it again changes nothing.
    """

    name: ClassVar[str] = "dce"

    def run(self, program: Program) -> Program:
        """The program without dead nodes, or `program` itself if all are alive."""
        return program.with_body(_living(program.body, set()))


def _living(region: Region, read: set[Value]) -> Region:
    """The region without dead nodes; adds to `read` what its nodes use."""
    kept: list[Node] = []
    for node in reversed(region.nodes):
        op = node.op
        if not (_must_stay(op) or any(value in read for value in node.results)):
            continue
        if isinstance(op, If):
            then, orelse = _living(op.then, read), _living(op.orelse, read)
            if then is not op.then or orelse is not op.orelse:
                node = dataclasses.replace(node, op=If(op.condition, then, orelse, op.after))
        read.update(op.value_operands())
        kept.append(node)
    return region_of(kept[::-1], region)


def _must_stay(op: Op) -> bool:
    return op.terminator or op.effect is not Effect.PURE or may_raise(op)


def may_raise(op: Op) -> bool:
    """Whether an op may fail on operands that have not."""
    match op:
        case HostCall() | Typed():
            return True
        case Pure("text.split", (_, Const(str(separator)))):
            return not separator
        case Pure(fn):
            return fn in PARTIAL
    return False
