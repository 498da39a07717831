"""Let the model read a shared beginning of prompts once."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

from lmc.errors import Location
from lmc.ir.analysis import calls_on_ways
from lmc.ir.core import Const, Node, Operand, Program, Region, Value
from lmc.ir.ops import Extend, If, Prefill, Role, Start
from lmc.ir.types import STATE
from lmc.passes.rewrite import region_of

__all__ = ["HoistPrefix"]

ROLE_CHARACTERS = 16  # what the markup of a message counts for; templates may add a system prompt


@dataclass(frozen=True)
class HoistPrefix:
    """Prefill the prompts that several rows, or several branches, have in common.

    What does not depend on the row is split off the first span, so that a batch computes it once:

        %s1 = lm.extend %s0, "Classify. Text: ", %x    =>    %s1 = lm.extend %s0, "Classify. Text: "
                                                             %s2 = lm.prefill %s1
                                                             %s3 = lm.extend %s2, %x

    A state from which several model calls start on one way (a fork) is computed before them:

        %s2, %a = lm.gen %s1 {...}                     =>    %s2 = lm.prefill %s1
        %s3 = lm.extend %s1, "..."                           %s3, %a = lm.gen %s2 {...}
        %s4, %b = lm.gen %s3 {...}                           %s4 = lm.extend %s2, "..."
                                                             %s5, %b = lm.gen %s4 {...}

    Tokens stay the same: a prefill is advice about those tokens that no later text can change, and
    the runtime still tokenizes the whole span at once. What a model call has just made is left
    alone, since its KV is there already.

    Running it again changes nothing.

    Attributes:
        min_characters: a prefill must compute at least so many characters, as far as known.
    """

    name: ClassVar[str] = "hoist-prefix"
    min_characters: int = 16

    def run(self, program: Program) -> Program:
        """The program with prefills, or `program` itself if nothing is shared."""
        return program.with_body(_Hoist(self.min_characters, program.body).region(program.body))


class _Hoist:
    """One walk through a program."""

    def __init__(self, least: int, body: Region) -> None:
        self.least = max(least, 1)
        self.calls = calls_on_ways(body)
        self.invariant: set[Value] = set()  # states that are the same in all rows
        self.pending: dict[Value, float] = {}  # characters of a state that no call has computed
        self.new: dict[Value, Operand] = {}  # states that their prefills stand for from now on

    def region(self, region: Region) -> Region:
        nodes: list[Node] = []
        for node in region.nodes:
            if isinstance(node.op, If):
                nodes.append(self.branch(node, node.op))
                continue
            node = node.substitute(self.new)
            if isinstance(node.op, Extend):
                node = self.split(node, node.op, nodes)
            self.note(node)
            nodes.append(node)
            for state in node.results[:1]:
                if self.calls.get(state, 0) > 1 and self.pending[state] >= self.least:
                    self.new[state] = self.prefill(state, node.at, nodes)
        return region_of(nodes, region)

    def branch(self, node: Node, op: If) -> Node:
        then, orelse = self.region(op.then), self.region(op.orelse)
        if then is op.then and orelse is op.orelse:
            return node
        return dataclasses.replace(node, op=If(op.condition, then, orelse, op.after))

    def split(self, node: Node, op: Extend, nodes: list[Node]) -> Node:
        """The rest of an extend whose constant beginning was put into `nodes`, with a prefill."""
        leading = tuple(itertools.takewhile(lambda part: isinstance(part, Const), op.parts))
        if op.state not in self.invariant or len(leading) == len(op.parts):
            return node
        pending = self.pending[op.state] + _characters(leading)
        if pending < self.least or not self.calls.get(node.results[0]):
            return node
        state = op.state
        if leading:
            nodes.append(Node(Extend(state, leading), (Value(STATE),), node.at))
            self.note(nodes[-1])
            state = nodes[-1].results[0]
        shared = self.prefill(state, node.at, nodes)
        return dataclasses.replace(node, op=Extend(shared, op.parts[len(leading) :]))

    def prefill(self, state: Value, at: Location | None, nodes: list[Node]) -> Value:
        """Put a prefill of a state into `nodes` and give the state that it makes."""
        made = Value(STATE, state.hint)
        nodes.append(Node(Prefill(state), (made,), at))
        self.note(nodes[-1])
        return made

    def note(self, node: Node) -> None:
        """Note what is known of the state that a node makes."""
        if not node.results:
            return
        state = node.results[0]
        same, pending = False, 0.0
        match node.op:
            case Start():
                same = True
            case Role(before):
                same, pending = before in self.invariant, self.pending[before] + ROLE_CHARACTERS
            case Extend(before, parts):
                same = before in self.invariant and _is_constant(parts)
                gained = _characters(parts) if _is_constant(parts) else math.inf
                pending = self.pending[before] + gained
            case Prefill(before):
                same = before in self.invariant
        self.pending.update((v, 0.0) for v in node.results if v.type == STATE)
        self.pending[state] = pending
        if same:
            self.invariant.add(state)


def _is_constant(parts: tuple[Operand, ...]) -> bool:
    return all(isinstance(part, Const) for part in parts)


def _characters(parts: tuple[Operand, ...]) -> int:
    return sum(len(str(part.value)) for part in parts if isinstance(part, Const))
