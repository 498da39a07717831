"""Give equal values one name: value numbering on the state tree."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import released
from lmc.ir.core import Effect, Node, Op, Operand, Program, Region, Value
from lmc.ir.ops import Chain, Gen, If, Match, Score, Select
from lmc.passes.rewrite import region_of

__all__ = ["CSE"]


@dataclass(frozen=True)
class CSE:
    """Compute equal pure values once: common-subexpression elimination.

        %s1 = lm.extend %s0, %doc               %s1 = lm.extend %s0, %doc
        %s2 = lm.extend %s0, %doc               %s3, %a = lm.gen %s1 {name = "a"}
        %s3, %a = lm.gen %s1 {name = "a"}  =>   ret %s3, {a = %a, b = %a}
        %s4, %b = lm.gen %s2 {name = "b"}
        ret %s3, {a = %a, b = %b}

    A node is merged with an equal one before it in its region or in one around it. Greedy gens,
    selects and scores of one prompt are equal whatever their names and draws: the same prompt gives
    the same tokens. Calls that sample never are, since each has its own draw, and ops with effects
    are not touched.

    Running it again changes nothing.
    """

    name: ClassVar[str] = "cse"

    def run(self, program: Program) -> Program:
        """The merged program, or `program` itself if no two values are equal."""
        return program.with_body(_merged(program.body, {}, {}, released(program.body)))


def _merged(
    region: Region, known: dict[Op, Node], new: dict[Value, Operand], fixed: set[Value]
) -> Region:
    """Merge in a region.

    `known` holds the nodes that are visible, `new` the merged values, and `fixed` the states that
    must not be merged because their last use is marked.
    """
    known = dict(known)
    kept: list[Node] = []
    for node in region.nodes:
        op = node.op
        if isinstance(op, If):
            held = (op.condition, *op.after)
            condition, *after = (new.get(v, v) if isinstance(v, Value) else v for v in held)
            then, orelse = (_merged(r, known, new, fixed) for r in op.regions())
            if (condition, *after) != held or then is not op.then or orelse is not op.orelse:
                node = dataclasses.replace(node, op=If(condition, then, orelse, tuple(after)))
            kept.append(node)
            continue
        node = node.substitute(new)
        key = None if any(v in fixed for v in node.results) else _key(node.op)
        if key is not None:
            first = known.setdefault(key, node)
            if first is not node:
                new.update(zip(node.results, first.results, strict=True))
                continue
        kept.append(node)
    return region_of(kept, region)


def _key(op: Op) -> Op | None:
    """What two nodes have in common that give the same; None if this one is like no other."""
    if op.terminator or op.effect is not Effect.PURE:
        return None
    if isinstance(op, Gen):
        return dataclasses.replace(op, name="", draw=0) if op.params.greedy else None
    if isinstance(op, Match):
        unnamed = ("",) * len(op.names)
        return dataclasses.replace(op, names=unnamed, draw=0) if op.params.greedy else None
    if isinstance(op, Chain):
        unnamed, none = ("",) * len(op.names), (0,) * len(op.draws)
        greedy = all(gen.greedy for gen in op.gens)
        return dataclasses.replace(op, names=unnamed, draws=none) if greedy else None
    if isinstance(op, Select):
        return None if op.temperature else dataclasses.replace(op, name="", draw=0)
    if isinstance(op, Score):
        return dataclasses.replace(op, name="")
    return op
